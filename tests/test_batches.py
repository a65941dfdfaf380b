"""Several samples a request: from the key of a scenario to the figures and what is said of them."""

import random
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest import plan, scenario
from loadtest.columns import Bounds, Columns, Requests
from loadtest.errors import ScenarioError
from loadtest.forecast import Source, forecast
from loadtest.level import Level, LevelRun, WorkerHealth
from loadtest.records import Record, RequestError
from loadtest.reports.console import table
from loadtest.reports.finding import finding
from loadtest.result import (
    Capacity,
    Conditions,
    Endpoint,
    Hardware,
    LevelResult,
    Result,
    ScenarioRef,
    Searched,
    Tool,
    Trial,
    Usable,
)
from loadtest.scenario.model import Override, Resolved
from loadtest.statement import statement
from loadtest.summary import summarise
from loadtest.window import Window, arrived
from loadtest.workload.compose import Composer
from loadtest.workload.model import Input, Tensors
from loadtest.workload.rows import prepare
from loadtest.workload.tokens import Tokens

DOCS = Path(__file__).parents[1] / "docs"


def of_text(folder: Path, text: str, **flags: str) -> Resolved:
    path = folder / "s.yaml"
    path.write_text(textwrap.dedent(text), "utf-8")
    return scenario.load(str(path), {name: Override(value, "--" + name) for name, value in flags.items()})


def levels(resolved: Resolved, **rows: Any) -> list[Level]:
    return plan.levels(resolved.scenario, bundled=False, **rows)


# The scenario and the plan ------------------------------------------------------------------------------------


def test_a_batch_size_is_an_axis_and_named_where_it_varies(tmp_path: Path) -> None:
    found = levels(of_text(tmp_path, "endpoint: embeddings\nload: {concurrency: [1, 2]}", batch_size="1,8"))
    assert [level.name for level in found] == ["c=1 batch=1", "c=2 batch=1", "c=1 batch=8", "c=2 batch=8"]
    assert [level.batch_size for level in found] == [1, 1, 8, 8]
    assert [level.input_tokens for level in found] == ["128", "128", "8 × 128", "8 × 128"]
    assert {level.output_tokens for level in found} == {"none"}
    (alone,) = levels(of_text(tmp_path, "endpoint: embeddings\nworkload: {batch_size: 8}"))
    assert (alone.name, alone.batch_size) == ("c=1", 8)


def test_blocks_and_zip_take_batch_sizes(tmp_path: Path) -> None:
    text = "endpoint: kserve\nload: {combine: zip}\nlevels: [{concurrency: [1, 4], batch_size: [8, 2]}, {rate: 5}]"
    assert [(level.name, level.batch_size) for level in levels(of_text(tmp_path, text))] == [
        ("c=1 batch=8", 8), ("c=4 batch=2", 2), ("5/s batch=1", 1),
    ]  # fmt: skip


def test_a_model_of_tensors_is_asked_for_no_lengths(tmp_path: Path) -> None:
    (level,) = levels(of_text(tmp_path, "endpoint: kserve"))
    assert (level.input_tokens, level.output_tokens) == ("none", "none")


def test_the_example_of_the_page_is_what_it_says_and_is_written_as_it_is_read(tmp_path: Path) -> None:
    page = (DOCS / "endpoints.md").read_text("utf-8").partition("## Tensors")[2].partition("\n## ")[0]
    example = page.partition("```yaml\n")[2].partition("```")[0]
    np.savez(tmp_path / "images.npz", pixels=np.zeros((1, 2)))
    resolved = of_text(tmp_path, example)
    assert resolved.scenario.workloads[0].tensors == Tensors(
        (
            Input("input_ids", None, (-1, 128), None, 0, 30521),
            Input("attention_mask", None, (-1, 128), 1.0),
            Input("pixels", None, None, str(tmp_path / "images.npz"), order="file"),
        ),
        binary=True,
    )
    assert of_text(tmp_path, resolved.text).scenario == resolved.scenario


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("endpoint: chat\nworkload: {batch_size: 8}",
         "2:24: workload.batch_size: does not apply: chat is asked for one thing a request, and the server makes the "
         "batches: raise concurrency"),
        ("endpoint: completions\nlevels: [{batch_size: [1, 2]}]", "2:23: levels.0.batch_size: does not apply"),
        ("endpoint: embeddings\nworkload: {batch_size: 0}", "2:24: workload.batch_size: expected at least 1, got 0"),
        ("endpoint: embeddings\nload: {trace: {path: s.yaml}}\nworkload: {batch_size: 2}",
         "3:24: workload.batch_size: excludes trace (line 2): its arrivals are single requests; keep one"),
        ("endpoint: chat\nworkload: {inputs: [{name: x}]}",
         "2:20: workload.inputs: needs an endpoint of tensors, such as kserve: chat takes text"),
        ("endpoint: kserve\nworkload: {data: {path: s.yaml}}",
         "2:18: workload.data: does not apply: the endpoint kserve takes tensors; give inputs"),
        ("endpoint: kserve\nworkload: {inputs: [{dtype: FP32}]}", "2:21: workload.inputs.0: is missing 'name'"),
        ("endpoint: kserve\nworkload: {inputs: [{name: x, dtype: fp32}]}",
         "2:38: workload.inputs.0.dtype: expected 'BOOL'"),
        ("endpoint: kserve\nworkload: {inputs: [{name: x, values: sometimes}]}",
         "2:39: workload.inputs.0.values: expected random, zeros, a number, or the path of a .npy or .npz file, got "
         "'sometimes'"),
        ("endpoint: kserve\nworkload: {inputs: [{name: x, values: ./none.npy}]}",
         "2:39: workload.inputs.0.values: no such file"),
        ("endpoint: kserve\nworkload: {inputs: [{name: x, range: [5, 1]}]}",
         "2:38: workload.inputs.0.range: expected [least, most], such as [0, 255], got a list"),
        ("endpoint: kserve\nworkload: {inputs: [{name: x, shape: [-2]}]}",
         "2:39: workload.inputs.0.shape: expected at least -1, got -2"),
    ],
)  # fmt: skip
def test_a_batch_or_a_tensor_that_cannot_be_is_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        of_text(tmp_path, text)
    assert message in str(caught.value)


# The requests -------------------------------------------------------------------------------------------------


def asked(level: Level, count: int) -> list[tuple[str, ...]]:
    composer = Composer(level.workloads, Tokens("bytes"), 1)
    composed = [composer.compose(one) for one, _ in zip(plan.requests(level, 1, 0, 1), range(count), strict=False)]
    composer.close()
    assert all(one.ask.samples == level.batch_size for one in composed)
    texts = [tuple(message.content for message in one.ask.messages) for one in composed]
    if not level.workloads[0].rows:
        assert [one.input_tokens for one in composed] == [sum(map(len, each)) for each in texts]
    return texts


def test_each_sample_is_a_text_of_the_length_asked_and_none_is_like_another(tmp_path: Path) -> None:
    text = "endpoint: embeddings\nworkload: {batch_size: 5, input_tokens: 'uniform(20, 60)'}\nload: {requests: 9}"
    (level,) = levels(of_text(tmp_path, text))
    found = asked(level, 9)
    assert all(len(each) == 5 and len({*map(len, each)}) == 1 for each in found)
    assert len({len(each[0]) for each in found}) > 3
    assert len({one for each in found for one in each}) == 45


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_of_data_are_dealt_to_the_samples_each_once(tmp_path: Path, workers: int) -> None:
    (tmp_path / "rows.txt").write_text("".join(f"row {number}\n" for number in range(12)))
    text = "endpoint: embeddings\nworkload: {batch_size: 3, data: {path: ./rows.txt, order: file}}\nload: {requests: 4}"
    resolved = of_text(tmp_path, text)
    data = resolved.scenario.workloads[0].data
    assert data is not None
    (level,) = levels(resolved, rows={data: prepare(data, tmp_path, len, conversation=False)})
    assert asked(level, 4) == [tuple(f"row {number}" for number in range(at, at + 3)) for at in (0, 3, 6, 9)]
    parts = [plan.requests(level, 1, worker, workers) for worker in range(workers)]
    dealt = [row for part in parts for one in part for row in (one.row, *one.others)]
    assert sorted(row for row in dealt if row is not None) == [*range(12)]


def test_a_plan_counts_the_tokens_of_every_sample(tmp_path: Path) -> None:
    text = "endpoint: embeddings\nworkload: {input_tokens: 20}\nload: {requests: 9}"
    found = levels(of_text(tmp_path, text, batch_size="1,5"))
    source = Source("s", "", "", {"endpoint": "embeddings"}, {})
    seen = forecast(source, found, 1, target=None, workers=1, cooldown_s=0, prices=None, warnings=(), count=len)
    assert [level.input_tokens for level in seen.levels] == [180, 900]
    assert [level.output_tokens for level in seen.levels] == [None, None]


# The figures --------------------------------------------------------------------------------------------------


def played(level: Level, e2e_ms: float, outcomes: tuple[Any, ...] = ("ok",)) -> LevelResult:
    records = list(_records(level, e2e_ms, outcomes))
    health = WorkerHealth(0, 0.1, 0.2, 0.4, 100, 0, 1)
    return summarise(level, records, LevelRun(level.index, "completed", 3000.0, 3100.0, [health]))


def _records(level: Level, e2e_ms: float, outcomes: tuple[Any, ...]) -> list[Record]:
    rng = random.Random(level.name)
    found: list[Record] = []
    for slot in range(level.load.concurrency or 1):
        at = slot * 0.1
        while at < 3000:
            outcome = outcomes[len(found) % len(outcomes)]
            done = at + e2e_ms * rng.uniform(0.9, 1.1)
            error = None if outcome == "ok" else RequestError("http_status", "busy", 503)
            found.append(
                Record(
                    len(found), level.index, 0, at, outcome, True, None, None, at + 0.01, first_byte_ms=done,
                    done_ms=done, streamed=False, error=error, samples=level.batch_size,
                )
            )  # fmt: skip
            at = done + 0.05
    return found


def batches(folder: Path, *sizes: int) -> list[Level]:
    text = "endpoint: kserve\nload: {concurrency: 1, duration: 3s, warmup: 0.5s}"
    return levels(of_text(folder, text, batch_size=",".join(map(str, sizes))))


def test_samples_per_second_are_those_of_good_answers_within_the_window(tmp_path: Path) -> None:
    one, eight = batches(tmp_path, 1, 8)
    figures = played(eight, 20.0, ("ok", "ok", "ok", "http_error"))
    assert figures.client.valid, figures.client.reasons
    assert figures.batch_size == 8
    assert figures.rates.completed_per_s is not None
    assert figures.throughput.samples_per_s == pytest.approx(8 * figures.rates.completed_per_s, rel=0.02)
    assert figures.whole_run.samples_per_s == pytest.approx(8 * figures.counts.ok / 3.02, rel=0.02)
    assert (figures.throughput.output_tokens_per_s, figures.throughput.total_tokens_per_s) == (None, None)
    assert figures.workload.output_tokens.asked.n == 0
    assert played(one, 20.0).throughput.samples_per_s == pytest.approx(50, rel=0.05)


def test_figures_that_do_not_follow_from_the_samples_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (level,) = batches(tmp_path, 8)
    of = Columns.of

    def doubled(*given: Any) -> Columns:
        found = of(*given)
        found.samples = found.samples * 2
        return found

    monkeypatch.setattr(Columns, "of", doubled)
    reasons = played(level, 20.0).client.reasons
    assert len(reasons) == 2, "of the window and of the whole level"
    assert all(" samples of " in reason and "contradicts its own records" in reason for reason in reasons)


def test_an_objective_on_samples_has_its_own_series(tmp_path: Path) -> None:
    (level,) = batches(tmp_path, 8)
    columns = Columns.of(records := _records(level, 20.0, ("ok",)))
    bounds = Bounds(500.0, 3000.0, 3000.0)
    found = arrived(Window(Requests(records, columns), columns.belonging_to(bounds), bounds), "samples_per_s")
    assert found is not None
    assert found[0] == pytest.approx(400, rel=0.05)
    assert float(found[1].mean()) == pytest.approx(found[0], rel=0.02)


# What is said of them -----------------------------------------------------------------------------------------


def whole(found: list[LevelResult]) -> Result:
    return Result(
        tool=Tool(name="loadtest", version="1"), command="loadtest run", started_at="2026-01-01T00:00:00Z", seed=1,
        complete=True, exit_code=0, levels=found,
        conditions=Conditions(
            endpoint=Endpoint(kind="kserve", url="http://triton:8000", model="resnet50"),
            hardware=Hardware(), scenario=ScenarioRef(name="classifier", sha256="0"),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_speaks_of_samples_and_not_of_tokens(tmp_path: Path, width: int) -> None:
    one, eight = batches(tmp_path, 1, 8)
    text = table(whole([played(one, 5.0), played(eight, 20.0)]), width, color=False)
    head = "samples" + " " * 10 + "requests" + " " * 23 + "E2E     E2E"
    assert head in text
    assert "a request  load        ok  req/s  samples/s  p50 ms  p99 ms" in text
    assert "tok" not in text
    assert "none" not in text
    assert max(map(len, text.splitlines())) <= width
    alone = table(whole([played(eight, 20.0)]), width, color=False)
    assert "8 samples a request" in alone.splitlines()[0] + alone.splitlines()[1]
    assert "a request  load" not in alone


def test_what_larger_batches_brought_is_told(tmp_path: Path) -> None:
    one, eight = batches(tmp_path, 1, 8)
    said = finding(whole([played(one, 5.0), played(eight, 20.0)]))
    assert said.startswith("From 1 to 8 samples a request at c=1, throughput went from 1")
    assert said.endswith(" ms.")
    assert "samples/s; E2E p50 from " in said
    assert finding(whole([played(one, 5.0)])).startswith("At c=1: 1")


def test_a_sweep_of_loads_is_of_one_batch_size(tmp_path: Path) -> None:
    text = "endpoint: kserve\nload: {concurrency: [1, 2], duration: 3s, warmup: 0.5s}\nworkload: {batch_size: [1, 8]}"
    found = [played(level, 5.0 * level.batch_size) for level in levels(of_text(tmp_path, text))]
    assert finding(whole(found)).startswith(("With 1 sample a request, ", "With 8 samples a request, "))


def test_a_capacity_says_of_what_batch_it_is_and_of_no_tokens(tmp_path: Path) -> None:
    (eight,) = batches(tmp_path, 8)
    figures = played(eight, 20.0)
    found = Capacity(
        axis="concurrency", setting="", tier="", slo=["samples_per_s > 100"], statement="", ended="", cliff=False,
        searched=Searched(start=1, least=1, most=None, trials=3), bracket=(1.0, None), raw_peak=None,
        trials=[Trial(load=1.0, outcome="PASS", resolved=True, nearness=0.5, levels=[0])],
        usable=Usable(reserve=0.0, replicas=1, lost=0, value=1.0),
    )  # fmt: skip
    said = statement(found, [figures], whole([figures]).conditions, 1)
    assert "kserve endpoint, 8 samples a request, closed loop" in said
    assert "tokens" not in said


def test_probes_beside_a_batch_are_of_one_sample_and_of_the_same_tensors(tmp_path: Path) -> None:
    text = (
        "endpoint: kserve\nworkload: {batch_size: 8, inputs: [{name: x, values: 1}]}\n"
        "probe_stream: {rate: 1, input_tokens: 4}"
    )
    (level,) = levels(of_text(tmp_path, text))
    beside, _ = plan.probe(level, 1)
    assert beside.batch_size == 1
    assert beside.workloads[0].tensors == level.workloads[0].tensors
