"""SLOs of a scenario: in its file, by flags, and as nothing that is sent."""

from pathlib import Path

import pytest

from loadtest.errors import ScenarioError
from loadtest.scenario import load
from loadtest.scenario.model import Override, Resolved

FILE = """
locked: true
seed: 1
load: {concurrency: 4, requests: 10}
slo: ["p99( ttft ) <  300ms", error_rate < 1%]
"""


def resolved(tmp_path: Path, text: str = FILE, slo: str | None = None) -> Resolved:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return load(str(path), {} if slo is None else {"slo": Override(slo, "--slo")})


def test_they_are_read_and_written_out_again(tmp_path: Path) -> None:
    found = resolved(tmp_path)
    assert found.scenario.slo == ("p99(ttft) < 300ms", "error_rate < 1%")
    assert found.sources["slo"] == f"{tmp_path / 'mine.yaml'}:5"
    assert resolved(tmp_path, found.text).scenario == found.scenario


def test_a_flag_takes_their_place_and_an_empty_one_takes_them_away(tmp_path: Path) -> None:
    assert resolved(tmp_path, slo="p50(e2e) < 1s\ngoodput >= 99%").scenario.slo == ("p50(e2e) < 1s", "goodput >= 99%")
    none = resolved(tmp_path, slo="")
    assert none.scenario.slo == ()
    assert resolved(tmp_path, none.text).scenario == none.scenario


def test_they_change_nothing_that_is_sent(tmp_path: Path) -> None:
    with_, without = resolved(tmp_path), resolved(tmp_path, slo="")
    assert with_.sha256 == without.sha256
    assert without.not_comparable == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("slo: [p99(tfft) < 1s]", ":1:7: slo: 'tfft' is no metric: did you mean ttft?"),
        ("slo: p99(ttft) < 1s", "expected a list"),
        ("slo: []", "is empty"),
        ("slo: [5]", "expected an expression such as p99(ttft) < 300ms"),
    ],
)
def test_a_fault_has_its_place_and_the_mend(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        resolved(tmp_path, line)
    assert says in str(caught.value)
