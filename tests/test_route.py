"""The route to a target: which transport and proxy it takes, and who requests say they are."""

from typing import Any

import pytest

from loadtest.endpoints.site import site
from loadtest.errors import UsageError
from loadtest.options import Options
from loadtest.route import RUN_HEADER, headers_of, route_of

URL = "http://staging.example:8000"


def options(**given: Any) -> Options:
    return Options(**{"url": URL, "source": None, "overrides": {}, "proxy": "", **given})


@pytest.mark.parametrize(
    ("given", "transport", "proxied"),
    [
        ({}, "fast", None),
        ({"transport": "aiohttp"}, "aiohttp", None),
        ({"proxy": "http://gate:3128"}, "aiohttp", "http://gate:3128"),
        ({"proxy": "http://gate:3128", "url": None}, "fast", None),
    ],
)
def test_a_proxy_decides_the_transport(given: dict[str, Any], transport: str, proxied: str | None) -> None:
    route = route_of(options(**given))
    assert (route.transport, route.proxy and route.proxy.url) == (transport, proxied)


def test_what_the_fast_transport_cannot_do_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--transport fast cannot go through the proxy http://gate:3128: leave it"):
        route_of(options(proxy="http://gate:3128", transport="fast"))


def test_what_is_of_no_use_for_the_bundled_server_is_said() -> None:
    notes = route_of(options(url=None, proxy="http://gate:3128", wait_ready_s=5.0)).notes
    assert [note.partition(" ")[0] for note in notes] == ["--proxy", "--wait-ready"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"api_key": "k"}, ("Authorization", "Bearer k")),
        ({"basic": "n:p"}, ("Authorization", "Basic bjpw")),
        ({"url": "http://n:p@staging.example"}, ("Authorization", "Basic bjpw")),
        ({"headers": (("Authorization", "mine"),)}, ("Authorization", "mine")),
    ],
)
def test_each_way_to_say_who_we_are_is_a_header(given: dict[str, Any], found: tuple[str, str]) -> None:
    assert headers_of(options(**given), site(URL, "chat")) == (found,)


def test_a_key_goes_where_the_api_wants_it() -> None:
    azure = "https://a.openai.azure.com/openai/deployments/d/chat/completions?api-version=1"
    assert headers_of(options(url=azure, api_key="k"), site(azure, "chat")) == (("api-key", "k"),)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"headers": (("Content-Length", "3"),)}, "-H Content-Length: follows from the body"),
        ({"headers": (("traceparent", "x"),), "traceparent": True}, "-H traceparent and --traceparent both say it"),
        ({"basic": "n:p", "url": "http://n:p@h"}, "--basic and the user name in the URL both say who we are"),
        ({"basic": ":p"}, "--basic: not of the form NAME:PASSWORD"),
        ({"headers": (("a b", "x"),)}, "-H: the header 'a b' holds a character"),
        ({"headers": (("a", "x\x00"),)}, "-H: the header 'a' holds a character"),
    ],
)
def test_headers_that_cannot_be_meant_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        headers_of(options(**given), site(URL, "chat"))
    assert words in str(refused.value)


def test_a_request_names_its_run_once_and_not_where_that_is_not_wanted() -> None:
    place = site(URL, "chat")
    assert headers_of(options(), place, "r1") == ((RUN_HEADER, "r1"),)
    assert headers_of(options(run_header=False), place, "r1") == ()
    own = ((RUN_HEADER.lower(), "mine"),)
    assert headers_of(options(headers=own), place, "r1") == own
