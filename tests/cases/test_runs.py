"""The cases whose right answer is that of a whole run: the real command against the replay server."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cases.wires import RECORDED, SECRET, expectation

pytestmark = pytest.mark.e2e

BASE_URLS = json.loads((RECORDED / "conn-base-url-forms" / "urls.json").read_text("utf-8"))
PROXIES = json.loads((RECORDED / "conn-proxy-env" / "env.json").read_text("utf-8"))
ONE = ("-c", "1", "-n", "1")
TWO = ("-c", "1", "-n", "2")
BEFORE = 2  # requests before the clock: the rehearsal, and one that is to tell how tokens are counted and is in vain


class Order(NamedTuple):
    """A run of the command. ``url`` has PORT for its replay server's."""

    url: str
    flags: tuple[str, ...] = ONE
    variables: dict[str, str] = {}  # noqa: RUF012  # never changed


class Ran(NamedTuple):
    """How a run of the command ended, and what it left."""

    code: int
    out: str
    err: str
    folder: Path
    server: str

    @property
    def result(self) -> dict[str, Any]:
        """Its result.json, which must be strict JSON."""
        text = (self.folder / "result.json").read_text("utf-8")
        found: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in result.json"))
        return found

    @property
    def records(self) -> list[dict[str, Any]]:
        """Its journal."""
        return [json.loads(line) for line in (self.folder / "records.jsonl").read_text("utf-8").splitlines()]

    def counts(self, level: int = 0) -> dict[str, int]:
        """The counts of one level."""
        found: dict[str, int] = self.result["levels"][level]["counts"]
        return found

    def everything(self) -> str:
        """All that the run printed or wrote, but the bodies that the server got."""
        files = [path.read_text("utf-8", "replace") for path in self.folder.rglob("*") if path.is_file()]
        return "\n".join([self.out, self.err, *files])


def _case(name: str) -> str:
    return f"http://127.0.0.1:PORT/case/{name}"


# A run against a server of another API, by the path that it asks for and the model that it finds.
NATIVE = {
    "api-anthropic-thinking": ("anthropic", "/v1/messages", "claude-m"),
    "api-ollama-thinking": ("ollama", "/api/chat", "m:latest"),
    "api-tgi-special-end": ("tgi", "/generate_stream", "org/m"),
    "api-llamacpp-cached": ("llamacpp", "/completion", "m.gguf"),
    "api-triton-generate-stream": ("triton", "/v2/models/m/generate_stream", "m"),
}

# Each by the outcome of its requests, on both transports.
OTHERS = {
    ("api-ollama-ndjson", "ollama"): "ok",
    ("api-anthropic-cut", "anthropic"): "stream_error",
    ("api-triton-generate-stream", "triton"): "ok",
}
TRANSPORTS = ("fast", "aiohttp")

ORDERS = {
    "150 at once": Order(_case("conn-150-at-once"), ("-c", "150", "-n", "150")),
    "close header": Order(_case("conn-close-header"), ("-c", "5", "-n", "50")),
    "closed on reuse": Order(_case("conn-closed-on-reuse"), ("-c", "1", "-n", "10")),
    "stuck": Order(
        _case("sched-stuck-between-levels"), ("-c", "1,2", "-n", "2", "--grace", "1s", "--stall-timeout", "600ms")
    ),
    "no encoding": Order(_case("req-accept-encoding")),
    "prompts": Order(_case("work-repeated-prompts"), ("-c", "1,2,4", "-n", "8")),
    "proxy": Order(_case("sse-coalesced"), ("-c", "1", "-n", "3"), PROXIES),
    "refused": Order("http://127.0.0.1:9", ("-c", "4", "-n", "60")),
    "key": Order(_case("req-authorization"), (*ONE, "--api-key", SECRET, "-vv")),
    "key by variable": Order(_case("req-authorization"), ONE, {"LOADTEST_API_KEY": SECRET}),
    "key in URL, failing": Order(_case("http-400-reason") + f"?api-key={SECRET}"),
    "no key": Order(_case("req-authorization"), ("-c", "1", "-n", "2")),
    "stall": Order(_case("err-stall"), (*ONE, "--stall-timeout", "600ms")),
    "retry after": Order(_case("http-429-seconds"), ("-c", "1", "-n", "2")),
    "stream options": Order(_case("req-stream-options-400"), TWO),
    "stream options, aiohttp": Order(_case("req-stream-options-400"), (*TWO, "--transport", "aiohttp")),
    "max tokens": Order(_case("req-max-completion-tokens"), TWO),
    "max tokens, aiohttp": Order(_case("req-max-completion-tokens"), (*TWO, "--transport", "aiohttp")),
    "warming": Order(_case("http-503-warming"), (*TWO, "--wait-ready", "30s")),
    "redirect": Order(_case("http-307"), ("-c", "1", "-n", "2")),
    **{url: Order(url) for url in BASE_URLS},
    **{
        case: Order(
            _case(case) + path * (kind == "triton"), ("-c", "1", "-n", "2", "--endpoint", kind, "--api-key", "k")
        )
        for case, (kind, path, _) in NATIVE.items()
    },
    **{
        f"{case}, {transport}": Order(
            _case(case), (*TWO, "--endpoint", kind, "--model", "m", "--no-rehearsal", "--transport", transport)
        )
        for case, kind in OTHERS
        for transport in TRANSPORTS
    },
}


@pytest.fixture(scope="session")
def ran(
    replayer: Callable[[], str], environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ran]:
    """Every order, run once, a few at a time, against one server: no two whose counts are judged share a case."""
    server = replayer()

    def run(item: tuple[str, Order]) -> tuple[str, Ran]:
        name, order = item
        folder = tmp_path_factory.mktemp("run")
        url = order.url.replace("127.0.0.1:PORT", server.removeprefix("http://"))
        command = [sys.executable, "-m", "loadtest", "run", url, *order.flags, "--output-tokens", "5", "-o", "out"]
        ended = subprocess.run(
            command, cwd=folder, env={**environment, **order.variables}, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        return name, Ran(ended.returncode, ended.stdout, ended.stderr, folder / "out", server)

    with ThreadPoolExecutor(max_workers=2 + (os.cpu_count() or 1)) as pool:
        return dict(pool.map(run, ORDERS.items()))


@pytest.mark.parametrize("name", ORDERS)
def test_nothing_ends_in_a_traceback(name: str, ran: dict[str, Ran]) -> None:
    assert "Traceback" not in ran[name].err + ran[name].out


@pytest.mark.parametrize("name", ORDERS)
def test_every_request_is_accounted_for(name: str, ran: dict[str, Ran]) -> None:
    if name in ("refused", "no key", "redirect"):
        return  # it could not begin
    for level in ran[name].result["levels"]:
        counts = level["counts"]
        outcomes = ("ok", "http_error", "stream_error", "transport_error", "timed_out", "cancelled", "never_sent")
        assert counts["scheduled"] == sum(counts[outcome] for outcome in outcomes)


def test_conn_150_at_once(ran: dict[str, Ran], stats: Callable[..., Any]) -> None:
    """All 150 are in flight together: none waits in the client and reads as a slow server."""
    found = ran["150 at once"]
    assert found.counts()["ok"] == 150
    assert stats(found.server, "conn-150-at-once")["peak_in_flight"] == 150


def test_conn_close_header(ran: dict[str, Ran], stats: Callable[..., Any]) -> None:
    found = ran["close header"]
    assert found.counts()["ok"] == 50
    assert stats(found.server, "conn-close-header")["connections"] == BEFORE + 50


def test_conn_closed_on_reuse(ran: dict[str, Ran]) -> None:
    found = ran["closed on reuse"]
    assert (found.code, found.counts()["ok"]) == (0, 10)
    assert found.counts()["resent"] == 9
    assert [record.get("resent", False) for record in found.records] == [False] + [True] * 9


def test_sched_stuck_between_levels(ran: dict[str, Ran]) -> None:
    """A request that never ends does not keep the run from its next level."""
    found = ran["stuck"]
    assert [found.counts(level)["timed_out"] for level in (0, 1)] == [2, 2]
    assert found.code == 1


def test_req_accept_encoding(ran: dict[str, Ran], stats: Callable[..., Any]) -> None:
    assert list(stats(ran["no encoding"].server, "req-accept-encoding")["accept_encoding"]) == ["identity"]


def test_work_repeated_prompts(ran: dict[str, Ran], stats: Callable[..., Any]) -> None:
    counted = stats(ran["prompts"].server, "work-repeated-prompts")
    assert (counted["requests"], counted["repeated_prompts"]) == (BEFORE + 24, 0)


def test_conn_base_url_forms(ran: dict[str, Ran], stats: Callable[..., Any]) -> None:
    assert [ran[url].code for url in BASE_URLS] == [0] * len(BASE_URLS)
    path = expectation("conn-base-url-forms")["path"]
    counted = stats(ran[BASE_URLS[0]].server, "shape-usage-empty-choices")
    assert counted["paths"] == {path: (BEFORE + 1) * len(BASE_URLS)}


def test_conn_proxy_env(ran: dict[str, Ran]) -> None:
    """A proxy in the environment is not for loopback."""
    assert ran["proxy"].counts()["ok"] == 3


def test_conn_refused(ran: dict[str, Ran]) -> None:
    found = ran["refused"]
    assert found.code == 1
    assert "127.0.0.1:9" in found.err
    assert "refused" in found.err
    assert not found.folder.exists()


@pytest.mark.parametrize("name", ["key", "key by variable", "key in URL, failing"])
def test_run_secret_redacted(name: str, ran: dict[str, Ran]) -> None:
    assert SECRET not in ran[name].everything()


@pytest.mark.parametrize("name", ["key", "key by variable"])
def test_req_authorization(name: str, ran: dict[str, Ran]) -> None:
    assert (ran[name].code, ran[name].counts()["ok"]) == (0, 1)


def test_conn_blank_error_text(ran: dict[str, Ran]) -> None:
    """A timeout has a name and words, in the journal and in the result."""
    error = ran["stall"].records[0]["error"]
    assert error["kind"] == "timeout"
    assert "0.6 s" in error["message"]
    listed = ran["stall"].result["levels"][0]["errors"]
    assert [(one["kind"], one["count"], bool(one["example"])) for one in listed] == [("timeout", 1, True)]


def test_the_hint_of_a_429_is_kept_and_nothing_is_retried(ran: dict[str, Ran], stats: Callable[..., Any]) -> None:
    found = ran["retry after"]
    assert [record["error"]["retry_after_s"] for record in found.records] == [2.0, 2.0]
    again = 3  # of one that sizes prompts, before the clock
    assert stats(found.server, "http-429-seconds")["requests"] == BEFORE + again + 2


@pytest.mark.parametrize("transport", ["", ", aiohttp"])
@pytest.mark.parametrize(
    ("name", "case", "field", "tokens"),
    [
        ("stream options", "req-stream-options-400", "stream_options", None),
        ("max tokens", "req-max-completion-tokens", "max_tokens", 5),
    ],
)
def test_what_a_server_refuses_to_be_told_is_left_out_and_listed(
    name: str, case: str, field: str, tokens: int | None, transport: str, ran: dict[str, Ran], stats: Callable[..., Any]
) -> None:
    found = ran[name + transport]
    assert (found.code, found.counts()["ok"]) == (0, 2), found.err
    (changed,) = found.result["adaptations"]
    assert field in changed
    assert "sent again" in changed
    assert "changed: " in found.out
    assert [record.get("output_tokens") for record in found.records] == [tokens, tokens]
    assert field not in stats(found.server, case)["last_body"]


def test_http_503_warming(ran: dict[str, Ran]) -> None:
    """What answers 503 at first is waited for before the clock, and no request of the run fails."""
    found = ran["warming"]
    assert (found.code, found.counts()["ok"]) == (0, 2), found.err
    assert not [text for text in found.result["warnings"] if "503" in text]


@pytest.mark.parametrize(
    ("name", "words"),
    [("no key", "401"), ("key in URL, failing", "4096"), ("redirect", "moved")],
)
def test_a_refusal_reaches_the_user_in_the_server_s_own_words(name: str, words: str, ran: dict[str, Ran]) -> None:
    assert ran[name].code == 1
    assert words in ran[name].err


@pytest.mark.parametrize("case", NATIVE)
def test_a_server_of_another_api_is_measured_as_any(case: str, ran: dict[str, Ran], stats: Callable[..., Any]) -> None:
    found, expected = ran[case], expectation(case)
    kind, path, model = NATIVE[case]
    assert (found.code, found.counts()["ok"]) == (0, 2)
    assert found.result["conditions"]["endpoint"]["model"] == model
    for record in found.records:
        told = {key: record.get(key) for key in ("input_tokens", "cached_input_tokens", "output_tokens")}
        assert told == {
            "input_tokens": expected["prompt_tokens"],
            "cached_input_tokens": expected.get("cached_prompt_tokens"),
            "output_tokens": expected["completion_tokens"],
        }
        assert record["events"] == expected["content_events"]
        assert record.get("finish_reason") == expected["finish_reason"]
        assert record["sent_ms"] < record["first_byte_ms"] <= record["first_token_ms"] <= record["last_token_ms"]
    counted = stats(found.server, case)
    assert counted["paths"][f"/case/{case}{path}"] >= 2
    assert counted["authorization_seen"] is (kind != "anthropic")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("case", "kind"), OTHERS)
def test_a_case_ends_alike_on_both_transports(case: str, kind: str, transport: str, ran: dict[str, Ran]) -> None:
    found, expected = ran[f"{case}, {transport}"], expectation(case)
    outcome = OTHERS[case, kind]
    assert found.counts()[outcome] == 2
    assert found.code == (0 if outcome == "ok" else 1)
    for record in found.records:
        assert record["events"] == expected["content_events"]
        assert record.get("output_tokens") == expected["completion_tokens"]
        assert (record.get("error") or {}).get("kind") == expected["error_kind"]
