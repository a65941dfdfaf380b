"""The server's own count of tokens is held against the client's: a contradiction is not passed over."""

import pytest

from loadtest.records import Record, RequestError, TokenSource
from loadtest.telemetry import tokens
from loadtest.telemetry.figures import Counted, Gpu, Server
from loadtest.telemetry.tokens import Told, told


def record(output: int | None = 100, source: TokenSource | None = "usage", **of: object) -> Record:
    values: dict[str, object] = {
        "id": 0, "level": 0, "worker": 0, "intended_ms": 0.0, "outcome": "ok", "in_window": True, "sent_ms": 1.0,
        "asked_input_tokens": 10, "asked_output_tokens": 100, "input_tokens": 10, "output_tokens": output,
        "token_source": source,
    }  # fmt: skip
    return Record(**{**values, **of})  # type: ignore[arg-type]


def server(count: int) -> Server:
    return Server(kind="vllm", url="http://x/metrics", looks=9, generation_tokens=Counted(server=count))


def test_the_records_tell_the_tokens_of_the_whole_level() -> None:
    warm_up, probe = record(in_window=False), record(5, probe=True)
    assert told([record(), warm_up, probe]) == Told(30, 205, by_usage=True)


@pytest.mark.parametrize(
    "other",
    [
        record(outcome="timed_out", error=RequestError(kind="timeout", message="late")),
        record(outcome="cancelled"),
        record(output=None),
    ],
    ids=["failed", "cut off", "not told"],
)
def test_a_request_whose_tokens_nobody_knows_leaves_nothing_to_compare(other: Record) -> None:
    assert told([record(), other]).output is None
    assert not tokens.short(tokens.counted(server(1), told([record(), other])))


def test_a_request_that_was_never_sent_had_no_tokens() -> None:
    assert told([record(), record(output=None, outcome="never_sent", sent_ms=None)]).output == 100


@pytest.mark.parametrize(
    ("count", "share"),
    [(10_000, None), (10_199, None), (10_201, 0.0201), (9_801, None), (9_700, -0.03), (20_000, 1.0)],
)
def test_two_percent_are_apart(count: int, share: float | None) -> None:
    found = tokens.counted(server(count), told([record()] * 100))
    assert found.generation_tokens == Counted(server=count, client=10_000)
    assert tokens.apart(found.generation_tokens) == (None if share is None else pytest.approx(share))


def test_a_health_checks_few_tokens_are_no_contradiction() -> None:
    assert tokens.apart(tokens.counted(server(260), told([record()] * 2)).generation_tokens) is None


def test_fewer_than_its_own_usage_said_is_a_contradiction_and_says_what_to_look_at() -> None:
    by = told([record()] * 100)
    why = tokens.unsound(tokens.counted(server(5_000), by), by)
    assert why is not None
    assert "10,000" in why
    assert "5,000" in why
    assert "--metrics" in why


def test_more_is_other_peoples_load_and_no_contradiction() -> None:
    by = told([record()] * 100)
    assert tokens.unsound(tokens.counted(server(15_000), by), by) is None


def test_a_tokenizers_count_may_be_another_than_the_servers() -> None:
    by = told([record(source="tokenizer")] * 100)
    found = tokens.counted(server(5_000), by)
    assert tokens.short(found)
    assert tokens.unsound(found, by) is None


def test_energy_is_of_all_gpus_or_of_none() -> None:
    by = told([record()] * 10)
    assert tokens.energy([Gpu(id="0", energy_j=500.0), Gpu(id="1", energy_j=250.0)], by) == 0.75
    assert tokens.energy([Gpu(id="0", energy_j=500.0), Gpu(id="1")], by) is None
    assert tokens.energy([], by) is None
    assert tokens.energy([Gpu(id="0", energy_j=500.0)], told([record(output=None)])) is None
