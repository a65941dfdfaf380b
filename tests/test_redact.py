"""No secret is stored or printed, in whatever form it stands."""

import html
import json
import shlex
from base64 import b64encode
from urllib.parse import quote, quote_plus

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.redact import MARK, Redactor, of_user, secrets_of

KEY = "sk-test-0123456789"


def test_a_key_is_taken_out_wherever_it_stands() -> None:
    redact = Redactor(secrets_of([], KEY, ""))
    assert redact(f"401: Incorrect API key provided: {KEY}.") == f"401: Incorrect API key provided: {MARK}."


def test_headers_that_carry_a_secret_are_known_by_name_and_harmless_ones_are_left() -> None:
    headers = [("Authorization", f"Bearer {KEY}"), ("X-Session", "abc-123456"), ("X-Team", "blue")]
    redact = Redactor(secrets_of(headers, None, ""))
    assert redact(f"Bearer {KEY} abc-123456 blue {KEY}") == f"Bearer {MARK} {MARK} blue {MARK}"


def test_the_query_and_the_user_of_a_url_are_never_shown() -> None:
    redact = Redactor(secrets_of([], None, f"key={KEY}&api-version=2024-02-01"))
    assert redact(f"https://me:pw@host/v1?key={KEY}") == f"https://{MARK}@host/v1?{MARK}"
    assert redact(f"no such path /v1/chat?key={KEY}&x") == f"no such path /v1/chat?key={MARK}&x"
    assert redact("since 2024-02-01") == "since 2024-02-01"


def test_the_version_of_an_api_is_no_secret_and_the_url_is_another_without_it() -> None:
    redact = Redactor()
    assert redact("https://h/chat?api-version=2024-10-21 said") == "https://h/chat?api-version=2024-10-21 said"
    for query in ("code=abc&api-version=2024-10-21", "api-version=2024-10-21&sv=1&code=abc"):
        assert redact(f"https://h/chat?{query}") == f"https://h/chat?api-version=2024-10-21&{MARK}"
    assert redact("https://h/chat?api-version=$(id)") == f"https://h/chat?{MARK}"


def test_the_name_of_a_command_is_shown_and_its_arguments_are_not() -> None:
    redact = Redactor()
    redact.learn(["./token.sh prod"], least=len("./token.sh ") + 1)
    assert redact("./token.sh gave no token") == "./token.sh gave no token"
    assert redact("--auth-command './token.sh prod' -c 1") == f"--auth-command '{MARK}' -c 1"


def test_no_secret_no_change() -> None:
    assert Redactor(secrets_of([], None, ""))("plain text 1=2") == "plain text 1=2"


def test_a_secret_stays_hidden_where_a_shell_would_quote_it() -> None:
    secret = "it's $ecret"
    redact = Redactor(secrets_of([("X-Api-Key", secret)], None, ""))
    said = redact(shlex.join(["loadtest", "run", "--api-key", secret, "-H", f"X-Api-Key: {secret}"]))
    assert said == f"loadtest run --api-key '{MARK}' -H 'X-Api-Key: {MARK}'"


def test_a_secret_of_the_query_is_hidden_as_the_server_reads_it_too() -> None:
    redact = Redactor(secrets_of([], None, "api_key=a%2Bb%2Fcc"))
    assert redact("401: a+b/cc is no key, nor is a%2Bb%2Fcc") == f"401: {MARK} is no key, nor is {MARK}"


def test_a_secret_is_known_in_whatever_it_is_quoted() -> None:
    secret = 'p@ss"w<ö>rd/+& \\x'
    redact = Redactor([secret])
    for text in (
        json.dumps({"key": secret}),
        json.dumps({"key": secret}, ensure_ascii=False),
        f"/v1?k={quote(secret)}",
        f"/v1?k={quote(secret, safe='')}",
        f"k={quote_plus(secret)}",
        quote(secret, safe="").lower(),
        f"<p>{html.escape(secret)}</p>",
        repr(secret),
        repr(f"Authorization: {secret}".encode()),
        repr(f"Authorization: {secret}".encode("latin-1")),
    ):
        said = redact(text)
        assert MARK in said
        assert "ss" not in said.replace("[redacted]", ""), said


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1).filter(str.strip), st.text(), st.text(max_size=3))
def test_what_was_learned_is_never_said(secret: str, before: str, other: str) -> None:
    redact = Redactor([other])
    redact.learn([secret])
    said = redact(f"{before} {secret} {before}")
    assert f" {secret} " not in said or secret in MARK


def test_a_short_secret_does_not_tear_words_apart() -> None:
    redact = Redactor(["a", "k1"])
    assert redact("a bad answer to k1, k12 and 'a'") == f"{MARK} bad answer to {MARK}, k12 and '{MARK}'"


def test_a_secret_that_is_part_of_the_mark_leaves_the_mark_whole() -> None:
    assert Redactor(["redacted", "dact"])("a redacted dact") == f"a {MARK} {MARK}"


def test_a_secret_that_begins_like_another_leaves_no_rest() -> None:
    assert Redactor(["secret", "secret-of-mine"])("secret-of-mine, secret") == f"{MARK}, {MARK}"


def test_a_user_is_hidden_as_it_is_typed_and_as_it_is_sent() -> None:
    sent = b64encode(b"me:pa55word").decode()
    for redact in (
        Redactor(of_user("me:pa55word")),
        Redactor(secrets_of([("Authorization", f"Basic {sent}")], None, "")),
    ):
        assert redact(f"{sent} me:pa55word pa55word me") == f"{MARK} {MARK} {MARK} me"
    assert Redactor(secrets_of([("Authorization", "Basic no base64!")], None, ""))("no base64!") == MARK


def test_each_cookie_is_a_secret_of_its_own() -> None:
    redact = Redactor(secrets_of([("Cookie", "sid=abc12345; theme=dark1")], None, ""))
    assert redact("no session abc12345") == f"no session {MARK}"


def test_what_is_learned_later_is_passed_on() -> None:
    redact = Redactor(["first-one"])
    redact.learn(["later-one", ""])
    assert sorted(redact.secrets) == ["first-one", "later-one"]
    assert Redactor(redact.secrets)("first-one later-one") == f"{MARK} {MARK}"


@settings(max_examples=200, deadline=None)
@given(
    st.text("abcdefgh0123-_'\"/é", min_size=8, max_size=60), st.integers(1, 60), st.sampled_from(["", "…", "; mend"])
)
def test_a_secret_that_was_cut_off_is_hidden_but_for_a_beginning_of_little_use(
    secret: str, kept: int, after: str
) -> None:
    said = Redactor([secret])(f"say {secret[:kept]}{after}")
    for size in range(min(16, (len(secret) + 1) // 2), kept + 1):
        assert secret[:size] not in said or secret[:size] in f"say {after}"


def test_what_only_begins_like_a_secret_is_left() -> None:
    redact = Redactor(["sk-proj-0123456789abcdef"])
    assert redact("keys begin with sk-proj-, so sk-proj-0123456789") == f"keys begin with sk-proj-, so {MARK}"
