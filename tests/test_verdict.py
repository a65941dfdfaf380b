"""What a run is, by what its levels are; and which SLOs are refused before it begins."""

import msgspec
import pytest

from loadtest.result import LevelResult, SloResult, VerdictName, not_reached
from loadtest.schedule import Load
from loadtest.slo import parse
from loadtest.verdict import OnInconclusive, exit_code, overall, refusals, unjudged
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length
from loadtest.workload.model import Conversation, Weighted, Workload
from tests.test_summary import level


def figures(*verdicts: VerdictName, name: str = "c=2", valid: bool = True) -> LevelResult:
    blank = not_reached(level(name=name))
    slos = [
        SloResult(expression=f"slo {n}", value=1.0, ci=None, n=1, verdict=verdict, reason=f"why {n}")
        for n, verdict in enumerate(verdicts)
    ]
    client = msgspec.structs.replace(blank.client, valid=valid, reasons=[] if valid else ["it was late"])
    return msgspec.structs.replace(blank, slo=slos, client=client)


@pytest.mark.parametrize(
    ("levels", "outcome", "code"),
    [
        ([figures("PASS", "PASS"), figures("PASS")], "PASS", 0),
        ([figures("PASS"), figures("INCONCLUSIVE")], "INCONCLUSIVE", 98),
        ([figures("INCONCLUSIVE", "FAIL"), figures("PASS")], "FAIL", 99),
        ([figures("FAIL"), figures("INVALID")], "INVALID", 97),
        ([figures(), figures()], None, 0),
    ],
)
def test_a_matrix_takes_the_worst(levels: list[LevelResult], outcome: VerdictName | None, code: int) -> None:
    verdict = overall(levels)
    assert verdict.outcome == outcome
    assert exit_code(verdict) == code


def test_the_reasons_are_those_of_the_worst_and_name_level_and_slo() -> None:
    assert overall([figures("FAIL", "PASS"), figures("INCONCLUSIVE", name="c=4")]).reasons == ["c=2: slo 0: why 0"]
    assert overall([figures("PASS")]).reasons == []


def test_a_client_that_was_the_limit_counts_where_an_slo_rests_on_it_or_when_told_to() -> None:
    unsound = figures(valid=False)
    assert overall([unsound]).outcome is None
    assert overall([unsound], strict=True).outcome == "INVALID"
    assert overall([unsound], strict=True).reasons == ["c=2: it was late"]
    assert overall([figures("PASS"), unsound]).outcome == "PASS"


def test_a_run_that_did_not_finish_is_no_pass() -> None:
    assert overall([figures("PASS")], complete=False).outcome == "INCONCLUSIVE"
    assert overall([figures("FAIL")], complete=False).outcome == "FAIL"
    assert overall([figures()], complete=False).outcome is None


@pytest.mark.parametrize(
    ("policy", "outcome"), [("report", "INCONCLUSIVE"), ("extend", "INCONCLUSIVE"), ("fail", "FAIL")]
)
def test_what_is_not_decided_is_a_failure_if_one_says_so(policy: OnInconclusive, outcome: VerdictName) -> None:
    assert overall([figures("PASS", "INCONCLUSIVE")], inconclusive=policy).outcome == outcome
    assert overall([figures("PASS")], inconclusive=policy).outcome == "PASS"


def test_a_level_that_was_not_played_keeps_nothing() -> None:
    slos = [parse("p99(ttft) < 1s"), parse("error_rate(level=other) < 1%")]
    (found,) = unjudged(not_reached(level()), slos).slo
    assert (found.expression, found.verdict, found.n) == ("p99(ttft) < 1s", "INCONCLUSIVE", 0)


CHAT = Workload(Length(8, 8), Length(4, 4), name="chat")
TALK = Conversation(turns=Length(2, 2), think_s=Distribution("fixed", (0.0,)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("p99(ttft) < 1s", "answers that are not streamed have none; stream them, or take e2e"),
        ("goodput(tpot < 40ms) >= 99%", "tpot: answers that are not streamed"),
        ("events_per_s > 5", "events_per_s: answers that are not streamed"),
        ("samples_per_s > 5", "chat answers with tokens and not with samples"),
        ("goodput >= 99%", "goodput needs limits: write goodput(ttft < 300ms"),
        ("p99(e2e, level=c=9) < 1s", "no level has that name; they are c=2"),
        ("p99(e2e, workload=code) < 1s", "no workload has that name; they are chat"),
        ("p99(e2e, model=llama) < 1s", "no level asks that model by name; they ask the one that is listed"),
        ("p99(e2e, turn=2) < 1s", "there are no turns: the scenario has no conversation"),
    ],
)
def test_an_slo_that_no_run_could_judge_is_refused(text: str, says: str) -> None:
    (found,) = refusals([parse(text)], [level(workloads=(CHAT,))], "chat", stream=False)
    assert found.startswith(f"slo {parse(text).text}: ")
    assert says in found


def test_an_slo_that_a_run_can_judge_is_not_refused() -> None:
    talk = msgspec.structs.replace(CHAT, conversation=TALK, models=(Weighted("llama", 1.0),))
    texts = ["p99(ttft) < 1s", "goodput >= 99%", "error_rate(turn=2) < 1%", "p99(tpot, workload=chat) < 1s",
             "p95(e2e, model=llama, level='c=2') < 9s"]  # fmt: skip
    assert refusals([parse(text) for text in texts], [level(workloads=(talk,))], "chat", stream=True) == []
    trace = level(load=Load("trace", events=3, span_s=1.0))
    assert refusals([parse("p99(ttft, turn=2) < 1s")], [trace], "chat", stream=True) == []


def test_a_turn_that_no_conversation_has_is_refused() -> None:
    talk = level(workloads=(msgspec.structs.replace(CHAT, conversation=TALK),))
    (found,) = refusals([parse("p99(ttft, turn=3) < 1s")], [talk], "chat", stream=True)
    assert "no conversation has more than 2 turns" in found
    told_by_data = msgspec.structs.replace(CHAT, conversation=msgspec.structs.replace(TALK, turns=None))
    assert refusals([parse("p99(ttft, turn=3) < 1s")], [level(workloads=(told_by_data,))], "chat", stream=True) == []


def test_an_embedding_has_no_first_token() -> None:
    (found,) = refusals([parse("p99(ttft) < 1s")], [level()], "embeddings", stream=False)
    assert "embeddings writes no tokens; take e2e" in found
    assert refusals([parse("samples_per_s > 5")], [level()], "embeddings", stream=False) == []
