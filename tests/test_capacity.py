"""What a trial of a search comes to."""

import msgspec
import pytest

from loadtest.capacity import _judged, _Search
from loadtest.errors import Aborted
from loadtest.result import SloResult, VerdictName
from loadtest.search import Next
from loadtest.sitting import Playing
from loadtest.slo import parse
from tests.test_judgement import judged, one_of

LATE = parse("p99(ttft) < 300ms")


@pytest.mark.parametrize(
    ("verdict", "outcome", "resolved"), [("INCONCLUSIVE", "FAIL", True), ("INVALID", "INVALID", False)]
)
def test_a_trial_that_its_rule_ended_is_no_bound_where_the_client_was_the_limit(
    verdict: VerdictName, outcome: VerdictName, resolved: bool
) -> None:
    slo = SloResult(expression=LATE.text, value=900.0, ci=None, n=9, verdict=verdict, reason="", unit="ms")
    figures = msgspec.structs.replace(judged(one_of([50.0] * 9)), slo=[slo])
    ended = Playing(figures, [], None, Aborted("error_rate > 50%"))
    trial = _judged(_Search(setting="", tier="", slos=[LATE]), Next(4.0, look=True), figures, [0], [ended], whole=False)
    assert (trial.outcome, trial.resolved, trial.nearness) == (outcome, resolved, None)
