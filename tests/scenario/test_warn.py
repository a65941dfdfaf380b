"""Warnings that a scenario asks for: in its file, by flags, and as nothing that is sent."""

from pathlib import Path

import pytest

from loadtest.errors import ScenarioError
from loadtest.scenario import load
from loadtest.scenario.model import Override, Resolved


def resolved(tmp_path: Path, text: str, flag: str | None = None) -> Resolved:
    path = tmp_path / "mine.yaml"
    path.write_text(f"locked: true\nseed: 1\nload: {{concurrency: 4, requests: 10}}\n{text}\n")
    return load(str(path), {} if flag is None else {"warn": Override(flag, "--warn")})


def test_one_or_a_list_is_read_and_written_out_again(tmp_path: Path) -> None:
    one = resolved(tmp_path, "warn: p99(ttft)>3*p50(ttft)")
    assert one.scenario.warn == ("p99(ttft) > 3 * p50(ttft)",)
    two = resolved(tmp_path, "warn: [error_rate > 1%, p99(itl) > 80ms]")
    assert two.scenario.warn == ("error_rate > 1%", "p99(itl) > 80ms")
    for found in (one, two):
        (tmp_path / "again.yaml").write_text(found.text)
        assert load(str(tmp_path / "again.yaml"), {}).scenario.warn == found.scenario.warn


def test_a_flag_takes_their_place_and_nothing_that_is_sent_changes(tmp_path: Path) -> None:
    of_file = resolved(tmp_path, "warn: error_rate > 1%")
    by_flag = resolved(tmp_path, "warn: error_rate > 1%", "p99(e2e) > 1s\np50(e2e) > 1s")
    none = resolved(tmp_path, "warn: error_rate > 1%", "")
    assert by_flag.scenario.warn == ("p99(e2e) > 1s", "p50(e2e) > 1s")
    assert none.scenario.warn == ()
    assert of_file.sha256 == by_flag.sha256 == none.sha256
    assert by_flag.not_comparable == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("warn: p99(tfft) > 1s", "warn: 'tfft' is no metric: did you mean ttft?"),
        ("warn: [error_rate > 1%, 5]", "expected an expression such as p99(ttft) > 3 * p50(ttft)"),
    ],
)
def test_a_fault_has_its_place_and_the_mend(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        resolved(tmp_path, line)
    assert "mine.yaml:4:" in str(caught.value)
    assert says in str(caught.value)
