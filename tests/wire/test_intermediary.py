"""Whoever answers in the application's place is named, and the application itself is never taken for one."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.wire.intermediary import signing_in, spoke

NGINX = (
    "<html>\r\n<head><title>{0}</title></head>\r\n<body>\r\n<center><h1>{0}</h1></center>\r\n<hr><center>nginx</center>"
)
SIGN_IN = (
    '<!DOCTYPE html><html><head><title>Sign in &amp; go on</title></head><form><input type="password"></form></html>'
)
EVERY_HEADER = {
    "server": "cloudflare", "via": "1.1 google, 1.1 varnish, 1.1 x.cloudfront.net (CloudFront)", "cf-ray": "8f-AMS",
    "cf-mitigated": "challenge", "x-cache": "Error from cloudfront", "x-azure-ref": "0", "x-iinfo": "1",
    "x-sucuri-id": "1", "x-amzn-waf-action": "challenge", "content-type": "text/html",
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        (200, {}, SIGN_IN, ["title “Sign in & go on”", "a page to sign in at", "not the endpoint"]),
        (200, {"server": "nginx"}, "<html><title>Grafana</title>", ["“Grafana”", "a web page, from nginx,"]),
        (200, {}, "\ufeff\n<HTML><body>hello", ["an HTML page where an answer was expected: a web page answered"]),
        (403, {"cf-mitigated": "challenge", "server": "cloudflare"}, "<!DOCTYPE html><title>Just a moment...</title>",
         ["“Just a moment...”", "proof of a human, from Cloudflare"]),
        (403, {"server": "AkamaiGHost"}, "<HTML><HEAD>\n<TITLE>Access Denied</TITLE>", ["refuses access, from Akamai"]),
        (200, {}, "<html><head><title>Request Rejected</title></head>The requested URL was rejected. Please consult "
         "with your administrator.", ["a page that refuses access, from F5 BIG-IP"]),
        (511, {}, "<html><title>Hi</title>", ["a page of the network between"]),
        (200, {}, "<html><head><title>Hotel Wi-Fi</title>", ["a page of the network between"]),
        (502, {"server": "nginx/1.25.3"}, NGINX.format("502 Bad Gateway"), ["“502 Bad Gateway”): nginx answered in"]),
        (413, {}, NGINX.format("413 Request Entity Too Large"), ["nginx answered in the application's place"]),
        (503, {}, "<html><body><h1>503 Service Unavailable</h1>\nNo server is available to handle this request.\n",
         ["HAProxy answered"]),
        (503, {"server": "awselb/2.0"}, "<html>\n<head><title>503 Service Temporarily Unavailable</title></head>",
         ["an AWS load balancer answered"]),
        (504, {"server": "CloudFront", "x-cache": "Error from cloudfront"}, "<!DOCTYPE HTML><TITLE>ERROR</TITLE>",
         ["CloudFront answered"]),
        (503, {"server": "istio-envoy"}, "upstream connect error or disconnect/reset", ["said by Envoy"]),
        (503, {}, "no healthy upstream", ["said by Envoy in the application's place"]),
        (522, {"server": "cloudflare"}, "error code: 522", ["said by Cloudflare"]),
        (404, {"ngrok-error-code": "ERR_NGROK_3200"}, "Tunnel not found", ["said by ngrok"]),
        (503, {"server": "nginx"}, "", ["by way of nginx, which may"]),
    ],
)  # fmt: skip
def test_who_answered_is_named(status: int, headers: dict[str, str], body: str, expected: list[str]) -> None:
    words = spoke(status, headers, body.encode())
    assert words is not None
    for each in expected:
        assert each in words


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (500, {"server": "nginx"}, "Internal Server Error"),
        (503, {"server": "envoy", "x-envoy-upstream-service-time": "3"}, "busy"),
        (503, {"server": "uvicorn"}, "loading the model"),
        (200, {"server": "cloudflare"}, "plain text that is no answer"),
        (404, {"server": "Apache"}, ""),
    ],
)  # fmt: skip
def test_what_may_be_the_applications_own_is_left_alone(status: int, headers: dict[str, str], body: str) -> None:
    assert spoke(status, headers, body.encode()) is None


def test_an_error_page_that_may_be_the_applications_own_is_only_described() -> None:
    assert spoke(500, {"server": "nginx"}, b"<html><title>TypeError at /v1/chat</title>") == (
        "an HTML page (title “TypeError at /v1/chat”)"
    )


VALUES = st.recursive(
    st.text() | st.sampled_from([SIGN_IN, NGINX, "no healthy upstream"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@settings(max_examples=200, deadline=None)
@given(
    VALUES, st.sampled_from([200, 400, 401, 403, 429, 500, 502, 503, 504, 511]), st.sampled_from(["", " \n", "\ufeff"])
)
def test_what_is_json_is_never_taken_for_a_page(value: Any, status: int, lead: str) -> None:
    assert (
        spoke(status, EVERY_HEADER, (lead + json.dumps(value, ensure_ascii=False)).encode("utf-8", "replace")) is None
    )


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.dictionaries(st.sampled_from(sorted(EVERY_HEADER)), st.text(max_size=9)))
def test_no_bytes_at_all_make_it_raise(body: bytes, headers: dict[str, str]) -> None:
    for status in (200, 403, 502):
        words = spoke(status, headers, b"<html><title>" + body)
        assert words is not None
        assert "\n" not in words


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("https://login.microsoftonline.com/t/oauth2/v2.0/authorize?client_id=1", True),
        ("https://acme.okta.com/app/x", True),
        ("/login?next=/v1/chat/completions", True),
        ("https://idp.acme.example/saml2/sso", True),
        ("https://other.example/v1/chat/completions", False),
        ("/v1/chat/completions/", False),
        ("https://authors.example/v1?back=login", False),
        ("http://[broken", False),
    ],
)
def test_a_redirect_to_sign_in_is_told_from_a_move(location: str, expected: bool) -> None:
    assert signing_in(location) is expected
