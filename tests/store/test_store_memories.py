"""What the agent remembers, over every store."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.store.port import Store
from holdfast.store.search_terms import MAX_QUERY_TERMS, query_terms


async def recalled(store: Store, query: str, scope: str = "me", limit: int = 10) -> list[str]:
    return [memory.text for memory in await store.recall(scope, query, limit)]


async def test_memories_are_found_by_their_words_the_best_match_first(store: Store) -> None:
    """Long-term memory."""
    for text in (
        "The user's cat is called Miso.",
        "The user lives in Lisbon.",
        "The user's dog, a beagle, is called Rex.",
        "Deploys happen on Fridays.",
    ):
        await store.remember("me", text)
    assert (await recalled(store, "what is the dog called?"))[0].startswith("The user's dog")
    assert (await recalled(store, "what is the cat called?"))[0].startswith("The user's cat")
    assert await recalled(store, "LISBON") == ["The user lives in Lisbon."]
    assert await recalled(store, "friday") == ["Deploys happen on Fridays."]
    assert await recalled(store, "quantum") == []
    assert len(await recalled(store, "user", limit=2)) == 2


async def test_scopes_do_not_see_each_other(store: Store) -> None:
    """C14.a: the session key scopes memory."""
    await store.remember("me", "my secret is plum")
    await store.remember("you", "your secret is pear")
    assert await recalled(store, "secret") == ["my secret is plum"]
    assert await recalled(store, "secret", scope="you") == ["your secret is pear"]
    assert await recalled(store, "secret", scope="Me") == []
    assert await recalled(store, "", scope="nobody") == []


async def test_an_empty_query_gives_the_newest(store: Store) -> None:
    """What was last remembered."""
    kept = [await store.remember("me", f"fact {number}") for number in range(5)]
    assert await store.recall("me", "  ", 3) == kept[:1:-1]


async def test_scripts_without_spaces_are_searched_too(store: Store) -> None:
    """Chinese, Japanese, Korean, Thai."""
    texts = ["用户的猫叫米索", "東京に住んでいます", "사용자는 서울에 산다", "ผู้ใช้อยู่ที่กรุงเทพ", "I like 寿司 a lot"]
    for text in texts:
        await store.remember("me", text)
    assert (await recalled(store, "猫叫什么名字?"))[0] == texts[0]
    assert await recalled(store, "猫") == [texts[0]]
    assert await recalled(store, "索") == [texts[0]]
    assert await recalled(store, "東京") == [texts[1]]
    assert await recalled(store, "서울") == [texts[2]]
    assert await recalled(store, "กรุงเทพ") == [texts[3]]
    assert await recalled(store, "寿司") == [texts[4]]


@pytest.mark.parametrize(
    "query", ["C++", "🎉", '"', "50%", "AND", "NEAR(a b)", "a:b*", "^x", "(", "-", "'; DROP TABLE memories"]
)
async def test_signs_in_a_query_are_signs(store: Store, query: str) -> None:
    """Nothing a person writes is query syntax, and it is found where it stands."""
    await store.remember("me", f"before {query} after")
    await store.remember("me", "nothing of the kind")
    assert (await recalled(store, query))[0] == f"before {query} after"


async def test_a_piece_of_a_word_is_found_when_no_word_matches(store: Store) -> None:
    """Breakfast has `fast` in it."""
    await store.remember("me", "Breakfast at eight")
    assert await recalled(store, "FAST") == ["Breakfast at eight"]


async def test_a_short_word_is_found_whole_and_a_longer_one_by_its_beginning(store: Store) -> None:
    """`a` does not find everything that begins with it."""
    for text in ("an apple a day", "go ahead", "gone fishing"):
        await store.remember("me", text)
    assert await recalled(store, "go") == ["go ahead"]
    assert await recalled(store, "a") == ["an apple a day"]
    assert await recalled(store, "gon") == ["gone fishing"]


async def test_letters_of_another_width_are_the_same_letters(store: Store) -> None:
    """As an East Asian keyboard writes them."""
    await store.remember("me", "The user lives in Lisbon.")
    assert await recalled(store, "ＬＩＳＢＯＮ") == ["The user lives in Lisbon."]


async def test_a_query_of_any_length_is_answered_and_looks_for_its_beginning(store: Store) -> None:
    """A page that somebody pasted is no reason to search for an hour."""
    await store.remember("me", "first and last")
    words = [f"word{number}" for number in range(20_000)]
    assert await recalled(store, " ".join(["first", *words])) == ["first and last"]
    assert await recalled(store, " ".join([*words, "last"])) == []
    assert len(query_terms(" ".join(words))) == MAX_QUERY_TERMS


async def test_half_a_character_does_not_break_it(store: Store) -> None:
    """Text that is not valid Unicode is kept as well as it can be."""
    memory = await store.remember("me", "odd \ud83d text")
    assert memory.text == "odd ? text"
    assert await recalled(store, "odd \udc00") == ["odd ? text"]


async def test_whatever_is_remembered_is_found_by_its_own_words(store: Store) -> None:
    """For any text."""
    examples: list[str] = []

    @settings(max_examples=150, database=None, suppress_health_check=list(HealthCheck))
    @given(st.text(min_size=1, max_size=40))
    def collect(text: str) -> None:
        examples.append(text)

    collect()
    for number, text in enumerate(examples):
        await store.remember(f"scope {number}", text)
        assert await recalled(store, text, scope=f"scope {number}") == [text]
