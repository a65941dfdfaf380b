"""A base URL in any of its forms leads to the same place, and one that leads nowhere is refused with the mend."""

import pytest

from loadtest.errors import TargetError, UsageError
from loadtest.wire.origin import parse, resolve

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
