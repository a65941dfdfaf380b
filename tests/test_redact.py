import shlex

from loadtest.redact import MARK, Redactor, secrets_of

KEY = "sk-test-0123456789"


def test_a_key_is_taken_out_wherever_it_stands() -> None:
    redact = Redactor(secrets_of([], KEY, ""))
    assert redact(f"401: Incorrect API key provided: {KEY}.") == f"401: Incorrect API key provided: {MARK}."


def test_headers_that_carry_a_secret_are_known_by_name_and_harmless_ones_are_left() -> None:
    headers = [("Authorization", f"Bearer {KEY}"), ("X-Session", "abc-123456"), ("X-Team", "blue")]
    redact = Redactor(secrets_of(headers, None, ""))
    assert redact(f"Bearer {KEY} abc-123456 blue {KEY}") == f"{MARK} {MARK} blue {MARK}"


def test_the_query_and_the_user_of_a_url_are_never_shown() -> None:
    redact = Redactor(secrets_of([], None, f"key={KEY}&api-version=2024-02-01"))
    assert redact(f"https://me:pw@host/v1?key={KEY}") == f"https://{MARK}@host/v1?{MARK}"
    assert redact(f"no such path /v1/chat?key={KEY}&x") == f"no such path /v1/chat?key={MARK}&x"
    assert redact("since 2024-02-01") == "since 2024-02-01"


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
