"""What pairs of the same request prove: a cache, or none; the same text, or another; or that they are too few."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtest.audit import INDEX, audits, pairs_of
from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Settings
from loadtest.errors import ScenarioError
from loadtest.level import Level
from loadtest.plan import levels, requests
from loadtest.records import Record
from loadtest.result import Audit
from loadtest.scenario import load
from loadtest.scenario.model import AuditSettings, Override
from loadtest.schedule import Load
from loadtest.verdict import overall
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length
from loadtest.workload.model import Ask, Check, Conversation, Data, Message, Prefix, Probe, Workload
from loadtest.workload.rows import prepare
from tests.engine.playing import level, play

BOTH = AuditSettings(deterministic=True, cache=True, pairs=20)
PLAIN = Workload(Length(20, 40), Length(8, 16))


def records(*pairs: tuple[float, float], texts: tuple[str, str] = ("a", "a"), **given: Any) -> list[Record]:
    """Pairs that took so many ms to their first token, of such texts."""
    found, now = [], 0.0
    for number, pair in enumerate(pairs):
        for took, text in zip(pair, texts, strict=True):
            times = {"sent_ms": now, "first_token_ms": now + took, "done_ms": now + took + 5, "text": text}
            found.append(Record(number, INDEX, 0, now, "ok", True, 20, 8, **{**times, **given}))
            now += took + 5
    random.Random(1).shuffle(found)  # the journal of several workers is in no order
    return found


def noisy(second: float, pairs: int = 20, spread: float = 0.03) -> list[tuple[float, float]]:
    """Pairs of which the second takes that share of the first's time, with such a noise, and a slow start."""
    rng = random.Random(7)
    drift = (200.0, 150.0, *(100.0 + number for number in range(pairs - 2)))
    return [(took * rng.gauss(1, spread), took * second * rng.gauss(1, spread)) for took in drift]


def found(kind: str, asked: AuditSettings, given: list[Record]) -> Audit:
    (one,) = [each for each in audits(asked, given) if each.kind == kind]
    return one


@pytest.mark.parametrize(
    ("second", "outcome"),
    [(1.0, "PASS"), (1.5, "PASS"), (0.97, "PASS"), (0.9, "INCONCLUSIVE"), (0.8, "INVALID"), (0.1, "INVALID")],
)
def test_a_second_answer_that_is_more_than_a_tenth_faster_comes_from_a_cache(second: float, outcome: str) -> None:
    audit = found("cache", BOTH, records(*noisy(second)))
    assert audit.outcome == outcome
    assert audit.value == pytest.approx(1 - second, abs=0.03)
    assert audit.ci is not None
    assert audit.ci[0] <= audit.value <= audit.ci[1]
    assert audit.n == 20
    assert "TTFT" in audit.words


def test_a_cache_that_is_declared_is_no_fault_and_its_gain_is_told() -> None:
    declared = msgspec.structs.replace(BOTH, cache="declared")
    audit = found("cache", declared, records(*noisy(0.25)))
    assert audit.outcome == "PASS"
    assert audit.words.startswith("asked again at once, a request took 7")
    assert audit.words.endswith("a cache is declared")


def test_without_streams_the_whole_time_counts() -> None:
    whole = records(*noisy(0.5), first_token_ms=None)
    audit = found("cache", BOTH, whole)
    assert audit.outcome == "INVALID"
    assert "E2E" in audit.words


def test_a_failed_request_takes_its_pair_along_and_too_few_pairs_prove_nothing() -> None:
    given = records(*noisy(0.1))
    broken = [msgspec.structs.replace(r, outcome="timed_out") if r.id == 3 else r for r in given]
    for audit in audits(BOTH, broken):
        assert (audit.outcome, audit.n) == ("INCONCLUSIVE", 19)
        assert audit.words == "19 of 20 pairs were answered, and it takes 20 to tell"


def test_noise_is_seldom_taken_for_a_cache_or_hides_one() -> None:
    rng = random.Random(3)

    def outcome(second: float) -> str:
        pairs = [(100 * rng.lognormvariate(0, 0.1), 100 * second * rng.lognormvariate(0, 0.1)) for _ in range(20)]
        return found("cache", BOTH, records(*pairs)).outcome

    none = [outcome(1.0) for _ in range(200)]
    there = [outcome(0.6) for _ in range(200)]
    assert none.count("INVALID") == 0
    assert none.count("PASS") > 150
    assert there.count("PASS") == 0
    assert there.count("INVALID") > 190


def test_another_text_to_the_same_request_fails() -> None:
    same, other = records(*noisy(1)), records(*noisy(1), texts=("the cat sat down here", "the cat sat down there"))
    audit = found("deterministic", BOTH, same)
    assert (audit.outcome, audit.value, audit.n) == ("PASS", 0.0, 20)
    mixed = [other[place] if record.id == 4 else record for place, record in enumerate(same)]
    audit = found("deterministic", BOTH, mixed)
    assert (audit.outcome, audit.value, audit.n) == ("FAIL", 0.05, 20)
    assert audit.ci is not None
    assert 0 < audit.ci[0] < 0.05 < audit.ci[1] < 0.3
    assert audit.words == (
        "the same request brought another text in 1 of 20 pairs, such as from character 18 on: "
        "'the cat sat down here', then 'the cat sat down there'"
    )


def test_one_pair_that_differs_is_proof_with_however_few() -> None:
    assert found("deterministic", BOTH, records((1, 1), (1, 1), texts=("a", "b"))).outcome == "FAIL"


def test_answers_without_text_prove_nothing() -> None:
    assert found("deterministic", BOTH, records(*noisy(1), texts=("", ""))).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("asked", "kinds"),
    [(BOTH, ["deterministic", "cache"]), (AuditSettings(False, "declared", 20), ["cache"]),
     (AuditSettings(True, False, 20), ["deterministic"])],
)  # fmt: skip
def test_what_was_not_asked_is_not_looked_into(asked: AuditSettings, kinds: list[str]) -> None:
    assert [each.kind for each in audits(asked, records(*noisy(1)))] == kinds


def test_an_audit_counts_for_the_verdict_but_is_no_answer_to_an_slo() -> None:
    said = audits(BOTH, records(*noisy(1)))
    assert overall([], audits=said).outcome is None
    cached = audits(BOTH, records(*noisy(0.1)))
    assert overall([], audits=cached).outcome == "INVALID"
    assert overall([], audits=cached).reasons == [f"audit cache: {cached[1].words}"]
    differs = audits(BOTH, records(*noisy(1), texts=("a", "b")))
    assert overall([], audits=differs).outcome == "FAIL"


# What is sent -------------------------------------------------------------------------------------------------


def test_each_request_is_sent_twice_in_a_row_and_no_prompt_begins_like_another(tmp_path: Path) -> None:
    asked = pairs_of(level(Load("poisson", rate_per_s=5.0), PLAIN, duration_s=9.0), 20, None)
    played = play(asked, tmp_path, lambda body: (body["messages"][-1]["content"][:3], 0.0))
    bodies = [msgspec.json.encode(one.body) for one in played.asked]
    assert len(bodies) == 40
    assert bodies[::2] == bodies[1::2]
    prompts = [one.body["messages"][-1]["content"] for one in played.asked[::2]]
    assert len({prompt[:12] for prompt in prompts}) == 20
    in_order = sorted(played.records, key=lambda record: record.intended_ms)
    assert [record.id for record in in_order] == [number for number in range(20) for _ in range(2)]
    for before, after in pairwise(in_order):
        assert before.done_ms is not None
        assert after.sent_ms is not None
        assert after.sent_ms >= before.done_ms  # one at a time
    assert [record.text for record in in_order[::2]] == [prompt[:3] for prompt in prompts]


def test_texts_are_kept_of_pairs_alone_and_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    usual = play(level(Load("closed", concurrency=1), PLAIN, requests=2), tmp_path / "plain")
    assert {record.text for record in usual.records} == {None}
    asked = pairs_of(level(Load("closed", concurrency=1), PLAIN), 20, None)
    secret = play(asked, tmp_path, lambda _: ("I know sesame-open", 0.0), secrets=("sesame-open",))
    assert {record.text for record in secret.records} == {"I know [redacted]"}


def audited(workload: Workload, **given: Any) -> Level:
    return pairs_of(level(Load("closed", concurrency=4), workload, duration_s=9.0, **given), 20, None)


def test_an_audit_asks_alone_whatever_the_level_is() -> None:
    talk = Conversation(Length(3, 3), Distribution("fixed", (1.0,)))
    checked = msgspec.structs.replace(
        PLAIN, conversation=talk, prefix=Prefix(1.0, 100, 1), checks=(Check(matches="z"),)
    )
    asked = audited(checked, probe=Probe(1.0, Length(1, 1), Length(1, 1)), warmup_s=2.0, repeat=2)
    assert (asked.load.concurrency, asked.requests, asked.duration_s, asked.warmup_s) == (1, 40, None, 0.0)
    assert (asked.probe, asked.index, asked.of_sessions) == (None, INDEX, False)
    assert asked.workloads == (PLAIN,)
    assert [request.id for request in requests(asked, 1, 0, 1)] == [number for number in range(20) for _ in range(2)]


def test_a_mix_of_data_plays_the_same_row_twice(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt\n" + "".join(f"question {number}\n" for number in range(40)))
    data = Data(str(path), order="file")
    rows = prepare(data, tmp_path, len, False)
    read = Workload(None, Length(4, 4), data=data, rows=rows, name="read")
    asked = pairs_of(level(Load("closed", concurrency=2), read, PLAIN, duration_s=9.0), 30, None)
    found = [*requests(asked, 5, 0, 1)]
    first, second = found[::2], found[1::2]
    assert [(r.workload, r.row) for r in first] == [(r.workload, r.row) for r in second]
    played = [r.row for r in first if r.workload == 0]
    assert played == [*range(len(played))]
    assert len(played) > 5


@pytest.mark.parametrize(
    ("kind", "body", "key", "value"),
    [
        ("chat", None, "temperature", 0),
        ("chat", '{"temperature":0.7,"top_p":1}', "temperature", 0.7),
        ("responses", None, "temperature", 0),
        ("anthropic", None, "temperature", 0),
        ("ollama", '{"options":{"top_k":3}}', "options", {"temperature": 0, "top_k": 3, "num_predict": 8}),
    ],
)
def test_the_likeliest_token_is_asked_for_unless_the_user_says_otherwise(
    kind: str, body: str | None, key: str, value: object
) -> None:
    spoken = speak(Settings(kind, "m"))
    (workload,) = pairs_of(
        level(Load("closed", concurrency=1), msgspec.structs.replace(PLAIN, body=body)), 20, spoken.greedy
    ).workloads
    sent = msgspec.json.decode(spoken.body(Ask((Message("user", "hi"),), 8, body=workload.body)))
    assert sent[key] == value


# In a scenario ------------------------------------------------------------------------------------------------


def settings(folder: Path, text: str, **flags: str) -> AuditSettings | None:
    path = folder / "s.yaml"
    path.write_text(text)
    resolved = load(str(path), {key: Override(value, f"--{key}") for key, value in flags.items()})
    path.write_text(resolved.text)
    again = load(str(path), {})
    assert again.scenario == resolved.scenario
    return resolved.scenario.audit


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("audit: {}", BOTH),
        ("audit: null", None),
        ("audit: {cache: declared, pairs: 50}", AuditSettings(True, "declared", 50)),
        ("audit: {deterministic: false}", AuditSettings(False, True, 20)),
        ("endpoint: embeddings\naudit: {}", AuditSettings(False, True, 20)),
    ],
)
def test_an_audit_in_a_scenario(text: str, asked: AuditSettings | None, tmp_path: Path) -> None:
    assert settings(tmp_path, text) == asked


@pytest.mark.parametrize(
    ("flag", "asked"),
    [
        ("deterministic,cache", BOTH),
        ("cache:declared", AuditSettings(False, "declared", 20)),
        ("deterministic", AuditSettings(True, False, 20)),
    ],
)
def test_an_audit_by_a_flag(flag: str, asked: AuditSettings, tmp_path: Path) -> None:
    assert settings(tmp_path, "name: x", audit=flag) == asked


@pytest.mark.parametrize(
    ("text", "flags", "fault"),
    [
        ("audit: {pairs: 5}", {}, "audit.pairs: expected at least 20, got 5"),
        ("audit: true", {}, "audit: expected a mapping"),
        ("audit: {cash: true}", {}, "audit.cash: unknown key; did you mean 'cache'?"),
        (
            "endpoint: kserve\naudit: {deterministic: true}",
            {},
            "audit.deterministic: does not apply: the endpoint kserv",
        ),
        ("name: x", {"audit": "caches"}, "--audit: expected deterministic, cache, or cache:declared"),
        ("name: x", {"audit": "cache,cache:declared"}, "--audit: expected deterministic, cache, or cache:declared"),
    ],
)
def test_an_audit_that_cannot_be_meant_is_refused(text: str, flags: dict[str, str], fault: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        settings(tmp_path, text, **flags)
    assert fault in str(caught.value)


def test_an_audit_changes_nothing_of_what_the_levels_are(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("locked: true\nseed: 1\nload: {concurrency: 2}\n")
    without, audited = (load(str(path), given) for given in ({}, {"audit": Override("cache", "--audit")}))
    assert without.sha256 == audited.sha256
    assert audited.not_comparable == []
    assert levels(without.scenario, bundled=False) == levels(audited.scenario, bundled=False)
