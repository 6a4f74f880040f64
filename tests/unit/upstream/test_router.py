"""From a model's name to whoever answers for it."""

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.config import ModelSettings, NamedAgentSettings, ProviderSettings, Settings
from holdfast.errors import ConfigError, ProviderRefusedError
from holdfast.testing import Reply, ScriptedProvider, ScriptedUpstream, says
from holdfast.upstream.demo.upstream import DemoUpstream
from holdfast.upstream.fallback import fallbacks_of
from holdfast.upstream.providers import Provider, ProviderDirectory
from holdfast.upstream.router import ModelRouter
from tests.upstream_world import CALL, QUICK, hear

KEYS = {"OPENAI_API_KEY": "key"}


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("demo", True),
        ("demo/anything", True),
        ("openai/gpt-5.2", True),
        ("mine/llama", True),
        ("anthropic/claude", False),  # known, and without a key
        ("ollama/llama3", False),  # local, and nobody has named it
        ("nobody/model", False),
        ("gpt-5.2", False),
        ("openai", False),
        ("openai/", False),
        ("", False),
        ("/", False),
    ],
)
def test_a_model_is_known_when_its_provider_can_be_asked(model: str, known: bool) -> None:
    settings = Settings(providers={"mine": ProviderSettings(base_url="http://127.0.0.1:1/v1")})
    assert ModelRouter(settings, KEYS).has_model(model) is known


@pytest.mark.parametrize(
    "settings",
    [
        Settings(model="ollama/llama3"),
        Settings(fallbacks=("ollama/llama3",)),
        Settings(models={"ollama/llama3": ModelSettings()}),
        Settings(providers={"ollama": ProviderSettings()}),
        Settings(agents={"research": NamedAgentSettings(model="ollama/llama3")}),
        Settings(agents={"research": NamedAgentSettings(fallbacks=("ollama/llama3",))}),
    ],
)
def test_a_local_provider_is_asked_once_somebody_has_named_it(settings: Settings) -> None:
    assert ModelRouter(settings, {}).has_model("ollama/mistral")


@pytest.mark.parametrize("environment", [{}, {"HTTPS_PROXY": "socks5://127.0.0.1:1", **KEYS}])
def test_a_provider_of_the_settings_has_its_models_also_when_it_cannot_be_asked(environment: dict[str, str]) -> None:
    """C16.b: else another model would answer in its place, and nobody would hear what is missing."""
    settings = Settings(providers={"openai": ProviderSettings()})
    assert ModelRouter(settings, environment).has_model("openai/gpt-5.2")


def test_an_unknown_provider_is_an_error_that_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        ProviderDirectory({}, {}).provider_of("anthropic/claude")


def test_a_models_own_fallbacks_go_before_the_default_ones() -> None:
    settings = Settings(
        model="a/one", fallbacks=("b/two",), models={"c/three": ModelSettings(fallbacks=("d/four", "demo"))}
    )
    assert fallbacks_of(settings, "a/one") == ("b/two",)
    assert fallbacks_of(settings, "c/three") == ("d/four", "demo")
    assert fallbacks_of(settings, "e/five") == ()


async def test_a_model_nobody_answers_for_is_a_refusal_and_not_a_crash() -> None:
    router = ModelRouter(Settings(), {})
    heard = await hear(router, replace(CALL, model="anthropic/claude"))
    await router.aclose()
    assert isinstance(heard.error, ProviderRefusedError)
    assert (heard.error.status, heard.error.code) == (404, "model_not_found")
    assert "ANTHROPIC_API_KEY" in heard.error.message


async def test_a_key_that_cannot_be_sent_is_a_refusal_and_not_a_crash() -> None:
    """The message names what to mend, and nothing of the key."""
    odd = Provider(name="odd", protocol="responses", base_url="http://127.0.0.1:9", api_key="se\u0142cret")
    router = ModelRouter(Settings(), {}, providers=[odd])
    heard = await hear(router, replace(CALL, model="odd/m"))
    await router.aclose()
    assert isinstance(heard.error, ProviderRefusedError)
    assert (heard.error.status, heard.error.code) == (404, "model_not_found")
    assert "providers.odd" in heard.error.message
    assert "cret" not in heard.error.message


def test_a_provider_that_is_ready_made_goes_before_one_of_the_settings() -> None:
    """Nobody's file can stand in the place of what the server itself has opened."""
    ready = Provider(name="chaos", protocol="chat_completions", base_url="http://127.0.0.1:1/v1")
    directory = ProviderDirectory({"chaos": ProviderSettings(base_url="http://elsewhere.test/v1")}, {}, [ready])
    assert directory.provider_of("chaos/reset") is ready


async def test_a_provider_without_a_key_falls_back_to_one_with() -> None:
    settings = Settings(model="anthropic/claude", fallbacks=("demo",))
    router = ModelRouter(settings, {}, built_in={"demo": DemoUpstream(0.0)})
    heard = await hear(router, replace(CALL, model="anthropic/claude"))
    await router.aclose()
    assert heard.answered is not None and heard.answered.model == "demo"
    assert [each.to_model for each in heard.fallbacks] == ["demo"]


async def test_a_built_in_model_is_asked_by_its_name() -> None:
    async with ScriptedUpstream([says("hi")]) as scripted:
        router = ModelRouter(Settings(), {}, built_in={"puppet": scripted})
        assert router.has_model("puppet") and not router.has_model("demo")
        assert (await hear(router, replace(CALL, model="puppet"))).text == "hi"
        assert not scripted.is_closed
        await router.aclose()
        assert scripted.is_closed


async def test_a_provider_of_the_file_is_asked_as_it_says() -> None:
    async with ScriptedProvider([Reply(text="Hello")]) as provider:
        mine = ProviderSettings(protocol="anthropic_messages", base_url=provider.url, api_key="k")
        router = ModelRouter(Settings(providers={"mine": mine}, stream=QUICK), {})
        heard = await hear(router, replace(CALL, model="mine/m"))
        await router.aclose()
        assert provider.requests[0].path == "/v1/messages"
    assert heard.answered is not None and heard.answered.model == "mine/m"


async def test_calls_of_one_provider_share_its_connections() -> None:
    async with ScriptedProvider([Reply(text="Hello"), Reply(text="again")]) as provider:
        mine = ProviderSettings(base_url=provider.url)
        router = ModelRouter(Settings(providers={"mine": mine}, stream=QUICK), {})
        for model in ("mine/a", "mine/b"):
            await hear(router, replace(CALL, model=model))
        assert provider.connections_made == 1
        await router.aclose()
        await provider.closed()


async def test_a_count_that_does_not_come_in_time_is_none_and_its_connection_is_closed() -> None:
    """M1.h, U17: whoever asked can estimate, and the provider is not kept busy for nobody."""
    closed = asyncio.Event()

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        closed.set()
        writer.close()

    async with await asyncio.start_server(keep_silent, "127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        mine = ProviderSettings(protocol="anthropic_messages", base_url=url, api_key="k")
        router = ModelRouter(Settings(providers={"mine": mine}), {}, count_seconds=0.05)
        assert await router.count_tokens(replace(CALL, model="mine/m")) is None
        async with asyncio.timeout(5):
            await closed.wait()
        await router.aclose()
