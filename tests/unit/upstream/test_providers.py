"""Names of providers become addresses and keys, or errors that say what to set."""

import pytest

from holdfast.config import ProviderSettings
from holdfast.errors import ConfigError
from holdfast.upstream.providers import PROVIDERS, Provider, resolve_provider


@pytest.mark.parametrize("name", [name for name, known in PROVIDERS.items() if known.key_variables])
def test_a_known_provider_takes_its_key_from_its_variable(name: str) -> None:
    known = PROVIDERS[name]
    provider = resolve_provider(name, None, {known.key_variables[0]: "key"})
    assert (provider.api_key, provider.base_url, provider.protocol) == ("key", known.base_url, known.protocol)


@pytest.mark.parametrize("name", [name for name, known in PROVIDERS.items() if known.key_variables])
def test_a_known_provider_without_a_key_names_the_variable_to_set(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_provider(name, None, {})
    assert PROVIDERS[name].key_variables[0] in caught.value.message
    assert f"providers.{name}.api_key" in caught.value.message


@pytest.mark.parametrize("name", ["ollama", "lmstudio", "vllm", "llamacpp"])
def test_a_local_provider_needs_no_key(name: str) -> None:
    provider = resolve_provider(name, None, {})
    assert provider.base_url.startswith("http://127.0.0.1:")
    assert provider.api_key == ""


def test_every_provider_has_an_address_that_works_and_a_codec() -> None:
    for name, known in PROVIDERS.items():
        environment = dict.fromkeys(known.key_variables, "key")
        assert resolve_provider(name, None, environment).make_codec().path
        assert known.base_url.startswith("https://" if known.key_variables else "http://127.0.0.1")


def test_the_file_goes_before_the_table_and_the_environment() -> None:
    settings = ProviderSettings(protocol="chat_completions", api_key="from the file", headers={"X-Org": "us"})
    provider = resolve_provider("openai", settings, {"OPENAI_API_KEY": "from the environment"})
    assert (provider.protocol, provider.api_key, provider.headers) == (
        "chat_completions",
        "from the file",
        {"X-Org": "us"},
    )


def test_a_key_of_the_environment_is_not_sent_to_an_address_of_ones_own() -> None:
    settings = ProviderSettings(base_url="https://proxy.example/v1")
    assert resolve_provider("openai", settings, {"OPENAI_API_KEY": "mine"}).api_key == ""
    same = ProviderSettings(base_url="https://api.openai.com/v1/")
    assert resolve_provider("openai", same, {"OPENAI_API_KEY": "mine"}).api_key == "mine"


def test_a_provider_of_ones_own_needs_an_address_and_nothing_else() -> None:
    provider = resolve_provider("mine", ProviderSettings(base_url="http://localhost:9000/v1/"), {})
    assert provider == Provider(name="mine", protocol="chat_completions", base_url="http://localhost:9000/v1")
    with pytest.raises(ConfigError, match=r"providers\.mine\.base_url"):
        resolve_provider("mine", None, {})


@pytest.mark.parametrize(
    "url", ["ftp://host/v1", "host/v1", "https://", "https://host:99999/v1", "http://[::1", "https://host:0/v1"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"providers\.mine\.base_url"):
        resolve_provider("mine", ProviderSettings(base_url=url), {})


@pytest.mark.parametrize(
    "url", ["https://me:hunter2@host/v1", "https://host/v1?key=hunter2", "https://host/v1#hunter2"]
)
def test_an_address_with_a_secret_in_it_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_provider("mine", ProviderSettings(base_url=url), {})
    assert "hunter2" not in caught.value.message


def test_a_key_with_a_line_break_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_provider("openai", ProviderSettings(api_key="half\r\nX-Evil: other"), {})
    assert "half" not in caught.value.message


def test_a_provider_is_printed_without_its_key() -> None:
    provider = Provider(
        name="x", protocol="responses", base_url="http://x", api_key="hunter2", headers={"a": "hunter3"}
    )
    assert "hunter" not in f"{provider!r} {provider!s} {provider}"
