"""A base URL in any of its forms leads to the same place, and one that leads nowhere is refused with the mend."""

from pathlib import Path

import pytest

from loadtest.errors import TargetError, UsageError
from loadtest.wire.origin import basic, parse, resolve, shown, user_of

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", CHAT, CHAT + "/", "//"])
@pytest.mark.parametrize("prefix", ["", "/api", "/deep/er", "/myv1"])
def test_every_form_of_a_base_url_gives_one_path(prefix: str, end: str) -> None:
    origin = parse(f"http://h:8000{prefix}{end}", (CHAT,))
    assert origin.path(CHAT) == f"{prefix}{CHAT}"
    assert origin.url == f"http://h:8000{prefix}"


@pytest.mark.parametrize(
    ("url", "authority", "port"),
    [
        ("http://h", "h", 80),
        ("https://h", "h", 443),
        ("h:8000", "h:8000", 8000),
        ("HTTP://H:80", "h", 80),
        ("http://[::1]:8000", "[::1]:8000", 8000),
        ("https://[fe80::1]", "[fe80::1]", 443),
        ("http://bücher.example", "xn--bcher-kva.example", 80),
    ],
)
def test_host_and_port(url: str, authority: str, port: int) -> None:
    assert (parse(url).authority, parse(url).port) == (authority, port)


def test_query_and_odd_letters_make_a_whole_request_line() -> None:
    origin = parse("http://h/a b/ü%20c?key=1 2&x=/y?z")
    assert origin.path(CHAT) == f"/a%20b/%C3%BC%20c{CHAT}?key=1%202&x=/y?z"


def test_user_and_query_are_not_shown() -> None:
    assert parse("http://user:pass@h/p?key=1").url == "http://h/p"


@pytest.mark.parametrize(
    "url", ["", "http://", "ftp://h", "http://h:port", "http://h:99999", "http://h:0", "http://[::1", "http://a..ü"]
)
def test_what_is_no_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(url)
    assert repr(url) in str(refused.value)
    assert "http" in str(refused.value)


def test_addresses_need_no_resolver_and_names_that_are_none_are_named() -> None:
    assert resolve(parse("http://127.0.0.1:1"), 0.1) == "127.0.0.1"
    assert resolve(parse("http://[::1]:1"), 0.1) == "::1"
    with pytest.raises(TargetError, match=r"no\.such\.host\.invalid"):
        resolve(parse("http://no.such.host.invalid"), 0.5)


@pytest.mark.parametrize(
    ("url", "path", "prefix", "shown"),
    [
        ("unix:/run/server.sock", "/run/server.sock", "", "unix:/run/server.sock"),
        ("unix:///run/server.sock", "/run/server.sock", "", "unix:/run/server.sock"),
        ("unix:/run/server.sock:/v1", "/run/server.sock", "", "unix:/run/server.sock"),
        ("unix:/run/server.sock:/api/v1/", "/run/server.sock", "/api", "unix:/run/server.sock:/api"),
        ("unix:/run/my sock", "/run/my sock", "", "unix:/run/my sock"),
    ],
)
def test_a_unix_socket_has_a_path_and_may_have_a_prefix(url: str, path: str, prefix: str, shown: str) -> None:
    origin = parse(url, (CHAT,))
    assert (origin.socket, origin.prefix, origin.url) == (path, prefix, shown)
    assert origin.authority == "localhost"
    assert origin.path(CHAT) == prefix + CHAT
    assert parse(origin.url) == origin
    assert resolve(origin, 0.1) == path


def test_a_unix_socket_may_have_a_query() -> None:
    assert parse("unix:/run/s:/p?key=1").path(CHAT) == f"/p{CHAT}?key=1"
    assert parse("unix:/run/s?key=1").path(CHAT) == f"{CHAT}?key=1"


def test_a_relative_socket_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("unix:s").socket == str(tmp_path / "s")


@pytest.mark.parametrize("url", ["unix:", "unix:/", "unix://", "unix::/v1"])
def test_a_unix_socket_without_a_path_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"unix:/run/server\.sock"):
        parse(url)


@pytest.mark.parametrize(
    ("url", "user", "value"),
    [
        ("http://user:pass@h", "user:pass", "Basic dXNlcjpwYXNz"),
        ("user:pass@h:80", "user:pass", "Basic dXNlcjpwYXNz"),
        ("https://to%40ken@h/p@q", "to%40ken", "Basic dG9Aa2VuOg=="),
        ("http://u:p@ss@h", "u:p@ss", "Basic dTpwQHNz"),
        ("http://u:ü@h", "u:ü", "Basic dTrDvA=="),
    ],
)
def test_the_user_in_a_url_is_who_we_are_and_is_not_shown(url: str, user: str, value: str) -> None:
    assert user_of(url) == user
    assert basic(user) == value
    assert user not in shown(url)
    assert "[redacted]@h" in shown(url)


@pytest.mark.parametrize("url", ["http://h/a@b", "h:80", "unix:/run/a@b", "http://h?x=u:p@h"])
def test_a_url_without_a_user_is_shown_as_it_is(url: str) -> None:
    assert user_of(url) is None
    assert shown(url) == url


def test_a_wrong_url_keeps_its_password_to_itself() -> None:
    for url in ("http://user:pw@h:port", "ftp://user:pw@h", "http://user:pw@h:0", "http://user:pw@"):
        with pytest.raises(UsageError) as refused:
            parse(url)
        assert "pw" not in str(refused.value)
