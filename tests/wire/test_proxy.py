"""The proxy of a run: the one that is named, else the environment's, and never one that nobody meant."""

import pytest

from loadtest.errors import UsageError
from loadtest.wire.origin import parse
from loadtest.wire.proxy import Proxy, proxy_for

FAR, FAR_TLS = parse("http://far.example:8000"), parse("https://far.example")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without proxies."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def test_without_a_word_there_is_none() -> None:
    assert proxy_for(FAR, None) is None


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_the_environment_s_is_for_http(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "http://p:3128")
    assert proxy_for(FAR, None) == Proxy("p", 3128)


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_the_environment_s_is_for_https(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "p:3128")
    assert proxy_for(FAR_TLS, None) == Proxy("p", 3128)


def test_each_scheme_has_its_own_and_all_is_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://one:1")
    assert proxy_for(FAR_TLS, None) is None
    monkeypatch.setenv("ALL_PROXY", "http://two:2")
    assert proxy_for(FAR, None) == Proxy("one", 1)
    assert proxy_for(FAR_TLS, None) == Proxy("two", 2)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1", "http://127.8.8.8", "http://localhost", "http://a.localhost", "https://[::1]:2", "unix:/s"],
)
def test_loopback_goes_direct_but_for_a_proxy_that_is_named(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://p:3128")
    assert proxy_for(parse(url), None) is None
    if not url.startswith("unix:"):
        assert proxy_for(parse(url), "http://q:1") == Proxy("q", 1)


@pytest.mark.parametrize(
    "excepted", ["far.example", ".example", "example", "*", "other, far.example", "far.example:8000"]
)
def test_no_proxy_excepts_hosts(monkeypatch: pytest.MonkeyPatch, excepted: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://p:3128")
    monkeypatch.setenv("NO_PROXY", excepted)
    assert proxy_for(FAR, None) is None
    assert proxy_for(parse("http://near.test"), None) == (None if excepted == "*" else Proxy("p", 3128))
    assert proxy_for(FAR, "http://q:1") == Proxy("q", 1), "the one that is named is meant"


def test_an_empty_one_is_none_whatever_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://p:3128")
    assert proxy_for(FAR, "") is None


def test_user_and_password_are_for_the_proxy_and_not_shown() -> None:
    proxy = proxy_for(FAR, "http://us%40er:p%3Aw@[::1]:3128/")
    assert proxy is not None
    assert proxy.url == "http://[::1]:3128"
    assert proxy.headers == {"Proxy-Authorization": "Basic dXNAZXI6cDp3"}


@pytest.mark.parametrize(
    "url", ["socks5://user:pw@p:1080", "https://user:pw@p:3128", "http://user:pw@", "http://user:pw@p:x"]
)
def test_what_is_no_http_proxy_is_refused_with_its_source_and_the_mend(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    with pytest.raises(UsageError, match="--proxy") as refused:
        proxy_for(FAR, url)
    assert "pw" not in str(refused.value)
    monkeypatch.setenv("ALL_PROXY", url)
    with pytest.raises(UsageError, match="ALL_PROXY") as refused:
        proxy_for(FAR, None)
    assert "'' to go direct" in str(refused.value)


def test_a_unix_socket_has_no_proxy() -> None:
    with pytest.raises(UsageError, match="unix socket"):
        proxy_for(parse("unix:/run/s"), "http://p:1")
