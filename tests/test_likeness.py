"""What makes two runs unlike, and what is only said."""

from collections.abc import Callable

import msgspec
import pytest

from loadtest.likeness import Run, likeness
from loadtest.result import DataRef, Endpoint, Hardware, Lengths, ScenarioRef, TokenLengths
from loadtest.schedule import Load
from tests.comparing import a_level, a_run, changed, conditions, level_changed

BASE = a_run("base", 1)
LIKE = a_run("candidate", 2)


def endpoint(**of: object) -> Callable[[Run], Run]:
    return lambda run: conditions(run, endpoint=msgspec.structs.replace(run.result.conditions.endpoint, **of))


def workload(**of: object) -> Callable[[Run], Run]:
    return lambda run: level_changed(run, workload=msgspec.structs.replace(run.result.levels[0].workload, **of))


def observed(mean: float) -> TokenLengths:
    return TokenLengths(requested="8", asked=Lengths(n=400), observed=Lengths(n=400, mean=mean, p50=mean, p99=mean + 2))


def test_runs_of_the_same_are_alike() -> None:
    assert likeness([BASE], [LIKE]) == ([], [])
    assert likeness([BASE, LIKE], [LIKE]) == ([], [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (endpoint(kind="completions"), "endpoint kind: chat against completions"),
        (endpoint(model="other"), "model: demo against other"),
        (endpoint(proxy="http://proxy:3128"), "proxy: none against http://proxy:3128"),
        (endpoint(transport="aiohttp"), "transport: fast against aiohttp"),
        (lambda run: conditions(run, precision="fp8"), "precision: fp32 against fp8"),
        (
            lambda run: conditions(run, hardware=Hardware(server="1 × L4", client="2 × x86_64")),
            "the server's hardware: 8 × H100 against 1 × L4",
        ),
        (lambda run: conditions(run, not_comparable=["--scale 0.1"]), "candidate says itself: --scale 0.1"),
        (
            lambda run: conditions(run, scenario=ScenarioRef(name="chat", sha256="1" * 64)),
            "scenario: chat against chat, and their digests differ",
        ),
        (lambda run: level_changed(run, load=Load("closed", concurrency=5)), "c=4: load: c=4 against c=5"),
        (lambda run: level_changed(run, model="b"), "c=4: model: None against b"),
        (workload(data=[DataRef(source="a.json", sha256="ab" * 32, rows=3, order="file")]), "c=4: data: "),
        (workload(output_tokens=observed(6.5)), "c=4: output tokens as observed: 8.0 against 6.5 on average"),
        (lambda run: level_changed(run, name="c=8"), "levels that only the base has: c=4"),
    ],
)  # fmt: skip
def test_each_condition_that_differs_is_named(change: Callable[[Run], Run], said: str) -> None:
    unlike, _ = likeness([BASE], [change(LIKE)])
    assert any(what.startswith(said) for what in unlike), unlike


def test_lengths_that_differ_by_chance_are_alike() -> None:
    few = TokenLengths(requested="8", asked=Lengths(n=9), observed=Lengths(n=9, mean=9.0, p50=8.0, p99=14.0))
    assert likeness([BASE], [workload(output_tokens=few)(LIKE)]) == ([], [])
    unknown = TokenLengths(requested="8", asked=Lengths(n=9), observed=Lengths(n=0))
    assert likeness([BASE], [workload(output_tokens=unknown)(LIKE)]) == ([], [])


def test_one_run_of_a_side_that_is_unlike_the_others_is_named() -> None:
    assert likeness([BASE, endpoint(model="b")(BASE)], [LIKE]).unlike == ["model: b and demo against demo"]
    both = [BASE, endpoint(model="b")(BASE)]
    assert likeness(both, both).unlike == ["model: b and demo against b and demo"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda run: conditions(run, software={"loadtest": "0.1.0", "server": "2.0"}), "server: 1.0 against 2.0"),
        (lambda run: conditions(run, software={"loadtest": "0.1.0"}), "server: 1.0 against unknown"),
        (
            lambda run: conditions(run, hardware=Hardware(server="8 × H100", client="laptop")),
            "the client's machine: 2 × x86_64 against laptop",
        ),
        (lambda run: conditions(run, precision=None), "precision: fp32 against unknown; tell it with --label"),
        (lambda run: changed(run, adaptations=["no stream_options"]), "changes made to requests: none against no"),
        (lambda run: changed(run, schema_version=2), "schema_version of the result: 1 against 2"),
        (
            workload(
                cached_input_tokens=12_800,
                input_tokens=TokenLengths(
                    requested="64", asked=Lengths(n=400), observed=Lengths(n=400, mean=64.0, p50=64.0, p99=64.0)
                ),
            ),
            "c=4: input tokens that came from the server's cache: 0% against 50%",
        ),
    ],
)  # fmt: skip
def test_what_may_be_the_very_change_is_said_and_not_refused(change: Callable[[Run], Run], said: str) -> None:
    unlike, notes = likeness([BASE], [change(LIKE)])
    assert unlike == []
    assert any(note.startswith(said) for note in notes), notes


def test_scenarios_are_told_apart_by_their_values() -> None:
    other = ScenarioRef(name="chat", sha256="1" * 64)
    values = {"load.concurrency": "[1, 4]", "timeout": "300s", "seed": "1", "slo": "[]"}
    base = BASE._replace(values=values)
    changed = {**values, "load.concurrency": "[4]", "seed": "2", "warn": "['error_rate > 1%']", "audit": "['cache']"}
    candidate = conditions(LIKE, scenario=other)._replace(values=changed)
    assert likeness([base], [candidate]).unlike == ["load.concurrency of the scenario: [1, 4] against [4]"]
    # Names, SLOs and warnings are in no digest.
    assert likeness([base], [LIKE._replace(values={**values, "slo": "[p99(ttft) < 1s]"})]).unlike == []


def test_endpoints_at_other_addresses_are_what_is_compared() -> None:
    moved = conditions(LIKE, endpoint=Endpoint(kind="chat", url="http://new:1", model="demo", transport="fast"))
    assert likeness([BASE], [moved]) == ([], [])


def test_repeats_of_a_level_are_one() -> None:
    repeated = [a_level(index=i, name=f"c=4 ({i + 1}/2)", repeat=i + 1) for i in range(2)]
    assert likeness([a_run("base", 1, *repeated)], [LIKE]).unlike == []
