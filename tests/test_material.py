"""The files of a scenario made ready, and what none of them leaves a use for."""

from pathlib import Path

import pytest

from loadtest import scenario
from loadtest.errors import ScenarioError
from loadtest.material import material

SHARED = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
ALONE = '{"timestamp": 0, "input_tokens": 600, "output_tokens": 5}\n'
PREFIX = "workload: {prefix: {share: 1, tokens: 20, pool: 1}}\n"
TRACE = "load: {trace: {path: ./t.jsonl}}\n"
BOTH = "load: {duration: 5s}\nlevels: [{trace: {path: ./t.jsonl}}, {rate: 5}]\n"


def prepared(folder: Path, text: str, trace: str) -> None:
    (folder / "t.jsonl").write_text(trace, "utf-8")
    (folder / "asked.yaml").write_text(text, "utf-8")
    with material(scenario.load(str(folder / "asked.yaml"), {}).scenario, bundled=False) as found:
        assert len(found) == 1


def test_a_prefix_is_refused_that_the_hash_ids_of_a_trace_would_leave_without_use(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"workload\.prefix: would do nothing, since .*t\.jsonl says by hash_ids"):
        prepared(tmp_path, PREFIX + TRACE, SHARED)


@pytest.mark.parametrize(
    ("text", "trace"),
    [(TRACE, SHARED), (PREFIX + TRACE, ALONE), (PREFIX + BOTH, SHARED)],
    ids=["no prefix", "no hash ids", "a level beside it"],
)
def test_a_prefix_that_is_of_use_is_not_refused(tmp_path: Path, text: str, trace: str) -> None:
    prepared(tmp_path, text, trace)
