"""M1: what may be said to the Messages API, and what reaches the model of it, in whatever protocol it is asked."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.config import AgentSettings, WireProtocol
from holdfast.testing import Reply, tool_call
from tests.messages_world import ask, message_of
from tests.serving import serving

PIXEL = "iVBORw0KGgo="
CHAT: WireProtocol = "chat_completions"
ANTHROPIC: WireProtocol = "anthropic_messages"
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "sky"}}
LOOK = {"name": "look", "description": "Look at it", "input_schema": {"type": "object", "properties": {}}}


async def shown(messages: list[dict[str, Any]], protocol: WireProtocol = CHAT, **fields: Any) -> dict[str, Any]:
    """What the model is asked for these messages."""
    async with serving([Reply(text="Hi")], protocol=protocol) as world:
        message_of(await ask(world.client, messages=messages, **fields))
        body: dict[str, Any] = world.provider.requests[0].body
        return body


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


# M1.d: instructions


@pytest.mark.parametrize(
    "system",
    ["Be brief.\n\nBe kind.", [text("Be brief.", cache_control={"type": "ephemeral"}), text("Be kind.")]],
)
async def test_the_system_prompt_is_text_or_blocks(system: Any) -> None:
    """M1.d: layered on the agent's own prompt, as on chat completions (C10)."""
    async with serving([Reply(text="Hi")], agent=AgentSettings(prompt="You are Holdfast.", tools=())) as world:
        message_of(await ask(world.client, system=system))
        said = world.provider.requests[0].body["messages"]
    assert said == [
        {"role": "system", "content": "You are Holdfast.\n\nBe brief.\n\nBe kind."},
        {"role": "user", "content": "Hello?"},
    ]


async def test_a_system_message_at_the_start_is_part_of_the_instructions() -> None:
    """M1.d: after the field."""
    body = await shown([{"role": "system", "content": "Be kind."}, user(text("Hello?"))], system="Be brief.")
    assert body["messages"] == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "Hello?"},
    ]


async def test_a_system_message_among_the_others_stays_in_its_place() -> None:
    """M1.d: moved to the front it would be about something else, and undo what the provider has cached."""
    messages = [
        user(text("Hello?")),
        {"role": "system", "content": [text("It is night.")]},
        {"role": "assistant", "content": "Hi."},
        {"role": "system", "content": "It is day."},
        user(text("And now?")),
    ]
    body = await shown(messages)
    night, day = (f"<system-reminder>\nIt is {time}.\n</system-reminder>" for time in ("night", "day"))
    assert body["messages"] == [
        {"role": "user", "content": [text("Hello?"), text(night)]},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": [text(day), text("And now?")]},
    ]


async def test_a_system_message_that_is_over_is_not_shown() -> None:
    """M1.d: `clear_at` says until when."""
    messages = [
        user(text("Hello?")),
        {"role": "system", "content": "Over.", "clear_at": "next_user_message"},
        {"role": "assistant", "content": "Hi."},
        user(text("And now?")),
        {"role": "system", "content": "Now.", "clear_at": "next_user_message"},
    ]
    body = await shown(messages)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert "Over." not in str(body) and "Now." in str(body["messages"][-1])


# M1.e: what is said


async def test_images_reach_the_model() -> None:
    """M1.e: in the request itself, and by URL."""
    inline = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.invalid/cat.png"}}
    body = await shown([user(text("What is it?"), inline, linked)])
    assert body["messages"][-1]["content"][1:] == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "image_url", "image_url": {"url": "https://example.invalid/cat.png"}},
    ]
    again = await shown([user(text("What is it?"), inline, linked)], ANTHROPIC)
    assert again["messages"][-1]["content"][1:] == [inline, linked]


@pytest.mark.parametrize(
    ("content", "output"),
    [
        ("Blue.", "Blue."),
        ([text("Blue"), text("and grey.")], "Blue\nand grey."),
        (None, ""),
        ([{"type": "tool_reference", "tool_name": "pick"}], "The tool pick can be called now."),
        ([{"type": "search_result", "source": "s", "title": "Sky", "content": [text("Blue.")]}], "Sky (s)\nBlue."),
    ],
)
async def test_a_tool_result_reaches_the_model_behind_its_call(content: Any, output: str) -> None:
    """M1.e: text or blocks; what the user says with it comes after it."""
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, "cache_control": None}
    messages = [user(text("Look.")), {"role": "assistant", "content": [CALL]}, user(result, text("Well?"))]
    body = await shown(messages, tools=[LOOK])
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": '{"at":"sky"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": output},
        {"role": "user", "content": "Well?"},
    ]


async def test_a_failed_tool_is_told_as_failed() -> None:
    """M1.e: `is_error`, where the model's protocol has it."""
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "No sky.", "is_error": True}
    messages = [user(text("Look.")), {"role": "assistant", "content": [CALL]}, user(result)]
    body = await shown(messages, ANTHROPIC, tools=[LOOK])
    assert body["messages"][-1]["content"] == [result]


async def test_a_picture_in_a_tool_result_reaches_the_model() -> None:
    """M1.e: no other protocol has pictures in results: it comes right behind them."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("A picture:"), image]}
    messages = [user(text("Look.")), {"role": "assistant", "content": [CALL]}, user(result)]
    body = await shown(messages, tools=[LOOK])
    assert body["messages"][-2:] == [
        {"role": "tool", "tool_call_id": "toolu_1", "content": "A picture:\n(An image, which follows.)"},
        {
            "role": "user",
            "content": [
                text("(From the result of toolu_1:)"),
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
            ],
        },
    ]


async def test_what_cannot_be_read_in_a_tool_result_is_told_to_the_model() -> None:
    """M1.e: the client would send it again for ever; refused, its session could never go on."""
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PIXEL}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [pdf]}
    messages = [user(text("Look.")), {"role": "assistant", "content": [CALL]}, user(result)]
    body = await shown(messages, tools=[LOOK])
    assert body["messages"][-1]["content"] == "(Content of type document, which cannot be shown here.)"


async def test_a_document_of_text_is_text() -> None:
    """M1.e: with its title."""
    source = {"type": "text", "media_type": "text/plain", "data": "All of it."}
    body = await shown([user({"type": "document", "source": source, "title": "A book"}, text("Sum it up."))])
    assert body["messages"][-1]["content"][0] == text("A book\nAll of it.")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (
            user({"type": "document", "source": {"type": "url", "url": "https://example.invalid"}}),
            "messages[0].content[0]",
        ),
        (user({"type": "hologram"}), "messages[0].content[0].type"),
        (user({"type": "image", "source": {"type": "file", "file_id": "f"}}), "messages[0].content[0].source"),
        (user({"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}), "content[0].source.url"),
        (user({"type": "tool_result", "content": "?"}), "messages[0].content[0].tool_use_id"),
        (user({"type": "text"}), "messages[0].content[0].text"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "robot", "content": "Beep"}, "messages[0].role"),
        ({"role": "assistant", "content": [{"type": "tool_use", "name": "x"}]}, "messages[0].content[0].id"),
        ("Hello", "messages[0]"),
    ],
)
async def test_what_cannot_be_used_is_named(message: Any, param: str) -> None:
    """M1.e, M1.j: 400, with the place in its message; nothing is run."""
    async with serving() as world:
        answer = await ask(world.client, messages=[message])
        assert not world.provider.requests
    assert (answer.status, answer.json["type"], answer.json["error"]["type"]) == (400, "error", "invalid_request_error")
    assert param in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": None}, "messages is missing"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "system", "content": "Be kind."}]}, "no user message"),
        ({"messages": [user(text("  "))]}, "messages[0].content is empty"),
        ({"messages": [user()]}, "messages[0].content is empty"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"tool_choice": {"type": "all"}}, "tool_choice"),
        ({"tools": [{"name": "two words", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [LOOK, LOOK]}, "tools[1].name"),
        ({"system": 7}, "system"),
        ({"output_config": {"effort": 7}}, "output_config.effort"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(fields: dict[str, Any], said: str) -> None:
    """M1.e, M1.j: as on chat completions (C12), in Anthropic's shape."""
    async with serving() as world:
        answer = await ask(world.client, **fields)
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
    assert said in answer.json["error"]["message"]


async def test_a_conversation_that_began_elsewhere_goes_on_here() -> None:
    """M1.e: what other servers' tools did is told in a few words."""
    searched = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "cats"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"title": "Cats"}]},
        text("Cats are good."),
    ]
    body = await shown([user(text("Cats?")), {"role": "assistant", "content": searched}, user(text("Why?"))])
    said = body["messages"][1]["content"]
    assert "web_search" in said and "Cats are good." in said


async def test_blocks_that_cannot_be_read_are_named() -> None:
    """M1.c, M1.e: those that would have to be refused for ever are told in a few words; the header says which."""
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
    searched = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "cats"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [pdf]}
    messages = [user(text("Cats?")), {"role": "assistant", "content": [searched, CALL]}, user(result)]
    async with serving([Reply(text="Hi")]) as world:
        answer = await ask(world.client, messages=messages, tools=[LOOK])
        assert "cannot be shown here" in str(world.provider.requests[0].body["messages"][-1])
    assert answer.headers["X-Holdfast-Warning"] == (
        "These blocks cannot be read here; the model is told in a few words: document, server_tool_use."
    )


async def test_a_document_of_text_comes_with_all_that_is_said_of_it() -> None:
    """M1.c, M1.e: its title and context; that nobody here can cite from it is named."""
    source = {"type": "text", "media_type": "text/plain", "data": "Cats sleep."}
    document = {"type": "document", "title": "Cats", "context": "From 1901.", "source": source}
    asked = [user({**document, "citations": {"enabled": True}}, text("Why?"))]
    async with serving([Reply(text="Hi")]) as world:
        answer = await ask(world.client, messages=asked)
        told = world.provider.requests[0].body["messages"][-1]["content"][0]["text"]
    assert told == "Cats\nFrom 1901.\nCats sleep."
    assert answer.headers["X-Holdfast-Warning"].endswith("left out: citations.")


async def test_a_summary_that_another_server_made_stands_for_what_it_summarizes() -> None:
    """M1.e: whole."""
    summary = {"type": "compaction", "content": "They spoke of cats. " * 500}
    body = await shown([{"role": "assistant", "content": [summary]}, user(text("Why?"))])
    assert summary["content"] in body["messages"][0]["content"]


# M1.f: thinking


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", [ANTHROPIC, "responses"])
async def test_thinking_goes_back_to_whoever_signed_it(protocol: WireProtocol, stream: bool) -> None:
    """M1.f, U3: shown with its signature, sent back by the client, and given to the provider as it was."""
    script = [Reply(text="Hi", reasoning="Hmm.", seal="sealed-1"), Reply(text="Bye")]
    thinking = {"type": "enabled", "budget_tokens": 2000}
    async with serving(script, protocol=protocol) as world:
        first = message_of(await ask(world.client, stream=stream, thinking=thinking, max_tokens=9000))
        assert [block["type"] for block in first["content"]] == ["thinking", "text"]
        assert first["content"][0]["thinking"] == "Hmm." and first["content"][0]["signature"]
        again = [user(text("Hello?")), {"role": "assistant", "content": first["content"]}, user(text("Bye?"))]
        message_of(await ask(world.client, messages=again, thinking=thinking, max_tokens=9000))
        sent = world.provider.requests[1].body
    assert "sealed-1" in str(sent)
    if protocol == ANTHROPIC:
        assert first["content"][0]["signature"] == "sealed-1"
        assert sent["messages"][1]["content"] == first["content"]


async def test_redacted_thinking_goes_back_as_it_came() -> None:
    """M1.f: and one whose words were kept from us has its signature alone."""
    hidden = [
        {"type": "redacted_thinking", "data": "EmwK"},
        {"type": "thinking", "thinking": "", "signature": "sig"},
        text("Hi."),
    ]
    messages = [user(text("Hello?")), {"role": "assistant", "content": hidden}, user(text("Bye?"))]
    assert (await shown(messages, ANTHROPIC))["messages"][1]["content"] == hidden


async def test_thinking_that_nobody_signed_is_shown_and_not_mistaken_for_text() -> None:
    """M1.f, U6.a: a model that only thinks aloud; the block has an empty signature."""
    async with serving([Reply(text="Hi", reasoning="Hmm.")]) as world:
        message = message_of(await ask(world.client, stream=True))
    assert message["content"] == [{"type": "thinking", "thinking": "Hmm.", "signature": ""}, text("Hi")]


# M1.g: how the model should answer


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"max_tokens": 77}, {"max_tokens": 77}),
        ({"temperature": 0.3}, {"temperature": 0.3}),
        ({"top_p": 0.9}, {"top_p": 0.9}),
        ({"stop_sequences": ["END", "STOP"]}, {"stop": ["END", "STOP"]}),
        ({"metadata": {"user_id": "u-1234"}}, {"user": "u-1234"}),
        ({"thinking": {"type": "adaptive"}}, {"reasoning_effort": "high"}),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"output_config": {"effort": "xhigh"}}, {"reasoning_effort": "xhigh"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"reasoning_effort": "low"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 8000}}, {"reasoning_effort": "medium"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 60000}}, {"reasoning_effort": "high"}),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, {"reasoning_effort": "none"}),
        ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        (
            {"tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True}},
            {"tool_choice": {"type": "function", "function": {"name": "look"}}, "parallel_tool_calls": False},
        ),
    ],
)
async def test_options_reach_the_model(fields: dict[str, Any], sent: dict[str, Any]) -> None:
    """M1.g: in the words of its protocol."""
    body = await shown([user(text("Hello?"))], tools=[LOOK], **fields)
    limit = body.get("max_tokens") or body.get("max_completion_tokens")
    assert {**body, "max_tokens": limit} | sent == {**body, "max_tokens": limit}


@pytest.mark.parametrize(
    ("budget", "max_tokens", "sent"),
    [(2_000, 2_500, 2_000), (9_000, 9_001, 9_000), (30_000, 32_000, 4_000), (600, 2_000, 600)],
)
async def test_a_budget_for_thinking_reaches_a_model_that_takes_one(budget: int, max_tokens: int, sent: int) -> None:
    """M1.g: as it was named, unless the agent's settings leave no room for it."""
    agent = AgentSettings(prompt="", tools=(), max_output_tokens=8_000 if max_tokens == 32_000 else None)
    asked = {"type": "enabled", "budget_tokens": budget}
    async with serving([Reply(text="Hi")], protocol=ANTHROPIC, agent=agent) as world:
        message_of(await ask(world.client, max_tokens=max_tokens, thinking=asked))
        assert world.provider.requests[0].body["thinking"] == {"type": "enabled", "budget_tokens": sent}


async def test_thinking_without_its_words_is_asked_for_as_each_protocol_has_it() -> None:
    """M1.g: `display`; Responses has no word for none, and OpenAI refuses what it does not know."""
    thinking = {"type": "adaptive", "display": "omitted"}
    assert (await shown([user(text("Why?"))], "responses", thinking=thinking))["reasoning"] == {"effort": "high"}
    body = await shown([user(text("Why?"))], ANTHROPIC, model="scripted/claude-opus-4-6", thinking=thinking)
    assert body["thinking"] == thinking


@pytest.mark.parametrize(("asked", "sent"), [(128_000, 8_000), (500, 500)])
async def test_no_answer_is_longer_than_the_agent_s_settings_allow(asked: int, sent: int) -> None:
    """M1.g: clients must name a number, and name the largest of a model of Anthropic's."""
    agent = AgentSettings(prompt="", tools=(), max_output_tokens=8_000)
    async with serving([Reply(text="Hi")], protocol=ANTHROPIC, agent=agent) as world:
        message_of(await ask(world.client, max_tokens=asked))
        assert world.provider.requests[0].body["max_tokens"] == sent


async def test_the_client_s_tools_reach_the_model() -> None:
    """M1.g: name, description, schema, strictness."""
    tool = {**LOOK, "type": "custom", "strict": True, "cache_control": {"type": "ephemeral"}}
    body = await shown([user(text("Hello?"))], tools=[tool])
    function = {"name": "look", "description": "Look at it", "parameters": LOOK["input_schema"], "strict": True}
    assert body["tools"] == [{"type": "function", "function": function}]


MARK: dict[str, Any] = {"type": "ephemeral"}
HOUR: dict[str, Any] = {"type": "ephemeral", "ttl": "1h"}


@pytest.mark.parametrize(
    ("fields", "mark"),
    [
        ({"system": [text("Be brief.", cache_control=MARK)]}, MARK),
        ({"tools": [{**LOOK, "cache_control": MARK}], "system": "Be brief."}, MARK),
        ({"messages": [user(text("Hello?", cache_control=MARK))], "system": [text("Be brief.")]}, MARK),
        ({"cache_control": MARK, "system": "Be brief."}, MARK),
        ({"system": [text("Be brief.", cache_control=HOUR)], "cache_control": MARK}, HOUR),
    ],
)
async def test_a_provider_keeps_what_it_has_read_where_the_client_asks_for_that(
    fields: dict[str, Any], mark: dict[str, Any], tmp_path: Path
) -> None:
    """M1.g: `cache_control`, in every turn: as far as the conversation goes, and the instructions by themselves."""
    (tmp_path / "notes.txt").write_text("Feed the cat.")
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    script = [Reply(calls=(tool_call("read_file", path="notes.txt"),)), Reply(text="Fed.")]
    async with serving(script, protocol=ANTHROPIC, agent=agent) as world:
        answer = await ask(world.client, **fields)
        message_of(answer)
        bodies = [request.body for request in world.provider.requests]
    for body in bodies:
        assert body["system"] == [{"type": "text", "text": "Be brief.", "cache_control": mark}]
        assert [block.get("cache_control") for turn in body["messages"] for block in turn["content"]][-1] == mark
        assert str(body).count("cache_control") == 2
    assert "X-Holdfast-Warning" not in answer.headers


@pytest.mark.parametrize(
    ("protocol", "fields"),
    [(ANTHROPIC, {}), ("chat_completions", {"cache_control": MARK}), ("responses", {"cache_control": MARK})],
)
async def test_nothing_is_marked_for_who_did_not_ask_or_keeps_it_anyway(
    protocol: WireProtocol, fields: dict[str, Any]
) -> None:
    """M1.g: other protocols have no such field; their providers keep what they have read without being asked."""
    body = await shown([user(text("Hello?"))], protocol, system="Be brief.", **fields)
    assert "cache_control" not in str(body)


async def test_top_k_reaches_a_model_that_has_it() -> None:
    """M1.g: on its own protocol."""
    assert (await shown([user(text("Hello?"))], ANTHROPIC, top_k=5))["top_k"] == 5


async def test_a_schema_for_the_answer_reaches_the_model() -> None:
    """M1.g: `output_config.format`, and the field that it replaced."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    wanted = {"type": "json_schema", "schema": schema}
    for fields in ({"output_config": {"format": wanted}}, {"output_format": wanted}):
        body = await shown([user(text("Hello?"))], **fields)
        assert body["response_format"]["json_schema"]["schema"] == schema


async def test_the_name_of_a_user_is_one_that_every_provider_takes() -> None:
    """M1.g: Claude Code's is a long JSON text, which OpenAI, OpenRouter and others refuse."""
    long = '{"device_id":"' + "e" * 64 + '","account_uuid":"","session_id":"3912be75"}'
    names = [(await shown([user(text("Hello?"))], metadata={"user_id": name}))["user"] for name in (long, long, "a b")]
    assert names[0] == names[1] != names[2]
    assert all(len(name) <= 64 and name.replace("_", "").replace("-", "").isalnum() for name in names)


async def test_tools_that_are_not_loaded_yet_are_not_shown() -> None:
    """M1.g: until a result, or a message of the system, names them; one that was taken away is gone."""
    later = {**LOOK, "name": "later", "defer_loading": True}
    other = {**LOOK, "name": "other"}
    inline = {**LOOK, "name": "inline"}

    async def offered(*messages: dict[str, Any], tools: tuple[dict[str, Any], ...] = ()) -> list[str]:
        body = await shown([user(text("Hello?")), *messages], tools=[LOOK, later, other, *tools])
        return [tool["function"]["name"] for tool in body["tools"]]

    def change(kind: str, tool: dict[str, Any]) -> dict[str, Any]:
        return {"role": "system", "content": [{"type": kind, "tool": tool}]}

    result = {"type": "tool_result", "tool_use_id": "toolu_1"}
    found = user({**result, "content": [{"type": "tool_reference", "tool_name": "later"}]})
    assert await offered() == ["look", "other"]
    assert await offered({"role": "assistant", "content": [CALL]}, found) == ["look", "later", "other"]
    added = change("tool_addition", {"type": "tool_reference", "name": "later"})
    assert await offered(added) == ["look", "later", "other"]
    defined = change("tool_addition", {"type": "tool_definition", "definition": inline})
    assert await offered(defined) == ["look", "other", "inline"]
    gone = change("tool_removal", {"type": "tool_reference", "name": "look"})
    assert await offered(added, gone) == ["later", "other"]
    # Anthropic's own search is not here to find them: then all are shown.
    search = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
    assert await offered(tools=(search,)) == ["look", "later", "other"]
