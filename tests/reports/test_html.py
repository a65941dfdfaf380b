"""The page of a result holds all of it, of whatever run, and nothing that a target said is markup in it."""

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner

from loadtest import cli, terminal
from loadtest import page as files
from loadtest.errors import ResultError
from loadtest.records import Record
from loadtest.reports import html, html_overlay
from loadtest.reports.console import table
from loadtest.reports.markdown import markdown
from loadtest.result import (
    Capacity,
    ErrorGroup,
    LevelResult,
    Result,
    Searched,
    SloResult,
    Trial,
    Usable,
    Verdict,
    not_reached,
    write,
)
from tests.comparing import OPEN, a_level, a_result, a_run, changed, conditions, played, requests
from tests.reports.pages import LIMIT, TRAP, a_page_of, closed, lines, read

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Parsed(HTMLParser):
    """A page taken apart: that every element is closed in its turn, the text that is seen, the scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def parsed(result: Result, written: list[bytes] | None = None) -> Parsed:
    return Parsed(html.page(result, read(written or []), "/* vega */", "results/here"))


@pytest.mark.parametrize("name", ["matrix", "interrupted", "mix", "users"])
def test_a_page_has_every_level_of_any_run(name: str, request: pytest.FixtureRequest) -> None:
    result: Result = request.getfixturevalue(name)
    page = parsed(result)
    for level in result.levels:
        assert str(level.load) in page.text
    assert json.loads(page.scripts[1]) == json.loads(msgspec.json.encode(result))
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(ids) == len({*ids})


def test_an_interrupted_run_says_so(interrupted: Result) -> None:
    assert "The run was interrupted: this is what it had measured until then." in parsed(interrupted).text


def test_a_run_with_failures_says_how_they_failed(sweep: Callable[..., Result]) -> None:
    page = parsed(sweep(failing=0.2))
    assert "http_status 503" in page.text
    assert "the server said: overloaded" in page.text


def test_a_run_without_a_single_answer_has_a_page() -> None:
    level = a_level()
    failed = [
        msgspec.structs.replace(
            record, outcome="transport_error", first_token_ms=None, first_answer_ms=None, last_token_ms=None,
            output_tokens=None, input_tokens=None, events=0, itl_ms=None,
        )
        for record in requests(level, 1)
    ]  # fmt: skip
    page = parsed(a_result([played(level, failed)], exit_code=1), lines(failed))
    assert "Every request failed" in page.text
    assert "Failures over time" in page.text


def test_a_run_that_reached_no_level_has_a_page() -> None:
    page = parsed(a_result([not_reached(a_level())], complete=False, exit_code=130))
    assert "There is nothing to draw: no request became due." in page.text
    assert parsed(a_result([], complete=False)).text


@pytest.mark.parametrize("outcome", ["PASS", "FAIL", "INCONCLUSIVE", "INVALID"])
def test_the_verdict_stands_first_with_its_reasons(outcome: str) -> None:
    slo = SloResult(expression="p99(ttft) < 200ms", value=None, ci=None, n=9, verdict=outcome, reason="so it is")
    result, written = a_page_of(*closed(4))
    level = msgspec.structs.replace(result.levels[0], slo=[slo])
    result = msgspec.structs.replace(result, levels=[level], verdict=Verdict(outcome=outcome))
    page = parsed(result, written)
    assert page.text.index(f" {outcome} ") < page.text.index("Conditions endpoint")
    assert ("so it is" in page.text) is (outcome != "PASS")
    assert ("section", {"id": "verdict", "aria-labelledby": "verdict-head", "class": f"banner {outcome.lower()}"}) in (
        page.elements
    )


def test_without_an_slo_there_is_no_verdict() -> None:
    assert "No SLO was asked" in parsed(a_run().result).text
    unfinished = parsed(changed(a_run(), complete=False, exit_code=1).result).text
    assert "No verdict The run did not finish" in unfinished


@pytest.mark.parametrize(("count", "said"), [(7, "1 more reason "), (8, "2 more reasons ")])
def test_many_reasons_are_folded(count: int, said: str) -> None:
    result, written = a_page_of(*closed(4))
    slos = [SloResult(expression=f"p99(ttft) < {place}ms", value=9.0, ci=None, n=9, verdict="FAIL", reason=str(place))
            for place in range(1, count + 1)]  # fmt: skip
    level = msgspec.structs.replace(result.levels[0], slo=slos)
    verdict = Verdict(outcome="FAIL", reasons=[f"c=4: {slo.expression}: FAIL" for slo in slos])
    assert said in parsed(msgspec.structs.replace(result, levels=[level], verdict=verdict), written).text


def test_everything_that_a_figure_needs_is_told() -> None:
    result, written = a_page_of(*closed(4), labels={"region": "eu-1"}, warnings=["mind this"], adaptations=["dropped"])
    text = parsed(result, written).text
    told = result.conditions
    for said in (
        told.endpoint.url, "demo", "fp32", "8 × H100", "2 × x86_64", "server 1.0", told.scenario.sha256, "seed 1",
        result.command, "region eu-1", "mind this", "dropped",
    ):  # fmt: skip
        assert said in text
    watched = msgspec.structs.replace(told, telemetry=["server: vllm, http://x/metrics", "GPUs: NVIDIA H100"])
    assert "watched server: vllm, http://x/metrics; GPUs: NVIDIA H100" in (
        parsed(changed(a_run(), conditions=watched).result).text
    )
    unknown = msgspec.structs.replace(told, precision=None)
    assert "unknown: tell it with --label precision=" in parsed(changed(a_run(), conditions=unknown).result).text


def test_the_conditions_say_what_was_played_as_the_terminal_does(matrix: Result) -> None:
    text = parsed(matrix).text
    for said in (
        "workload 64 input and 32 output tokens", "arrivals closed loop", "batch timeout 50 ms",
        "window 2.50 s measured a level after 0.5 s of warm-up",
    ):  # fmt: skip
        assert f" {said} " in text
    alone = msgspec.structs.replace(matrix, levels=matrix.levels[:1])
    assert " batching continuous 1 " in parsed(alone).text, "it has no column where it is the same in all levels"


def test_a_resumed_run_says_so_and_when() -> None:
    result = changed(a_run(), resumed=["2026-01-01T02:00:00Z", "2026-01-01T05:00:00Z"]).result
    said = "ended before its time, and resumed 2026-01-01T02:00:00Z, 2026-01-01T05:00:00Z."
    assert said in parsed(result).text
    assert said in " ".join(table(result, 80, color=False).split())
    assert said in markdown(result)
    assert "resumed" not in parsed(a_run().result).text


def test_a_level_at_which_the_client_was_the_limit_is_told_first_without_an_slo_as_well() -> None:
    (level,) = a_run().result.levels
    late = msgspec.structs.replace(level, client=msgspec.structs.replace(level.client, valid=False, reasons=["late"]))
    said = "Invalid, as the client and not the server was the limit: c=4."
    text = parsed(a_result([late])).text
    assert text.index("No SLO was asked") < text.index(said) < text.index("Conditions endpoint")
    judged = msgspec.structs.replace(late, slo=[LIMIT])
    assert said not in parsed(a_result([judged], verdict=Verdict(outcome="INVALID"))).text, "its verdict says so"


def test_the_gaps_between_events_stand_beside_how_many_tokens_are_in_one(matrix: Result) -> None:
    assert "ITL p50 ms ITL p99 ms tokens /event" in parsed(matrix).text
    assert "ITL" in table(matrix, 120, color=False)
    assert not re.search("ITL|/event", table(matrix, 80, color=False))


def test_a_search_shows_its_statement_and_its_trials() -> None:
    result, written = a_page_of(*closed(4, 8, 16))
    outcomes = ["PASS", "PASS", "FAIL"]
    trials = [
        Trial(load=float(load), outcome=outcome, resolved=True, nearness=near, levels=[place])
        for place, (load, outcome, near) in enumerate(zip((4, 8, 16), outcomes, (0.4, 0.8, 1.7), strict=True))
    ]
    found = Capacity(
        axis="concurrency", setting="", tier="", slo=["p99(ttft) < 200ms"], trials=trials, raw_peak=None, cliff=False,
        searched=Searched(start=4, least=1, most=None, trials=3), bracket=(8.0, 16.0), ended="found",
        usable=Usable(reserve=0.0, replicas=1, lost=0, value=8.0), statement="Capacity: 8 in flight passed, 16 did not",
    )  # fmt: skip
    names = ("c=4", "c=8", "c=8 #2")
    levels = [msgspec.structs.replace(level, name=name) for level, name in zip(result.levels, names, strict=True)]
    page = parsed(msgspec.structs.replace(result, capacity=found, levels=levels), written)
    assert found.statement in page.text
    assert " c=16 #2 " in page.text, "levels are called alike wherever they are named"
    assert "Trials of the search" in page.text
    assert "passed of trials" in page.text
    assert "3 trials: 2 PASS, 1 FAIL" in page.text


def test_five_hundred_levels_have_a_page() -> None:
    result, written = a_page_of(*closed(*range(1, 501)), count=12)
    text = html.page(result, read(written), "", None)
    assert "12 of 500 levels are drawn" in Parsed(text).text
    assert len(text) < 3 * len(msgspec.json.encode(result))


def test_whatever_a_target_says_is_text() -> None:
    """A trap in each text of the result that is not the tool's own, and in each name of a level."""
    level = a_level(name=TRAP, model=TRAP)
    records: list[Record] = requests(level, 1, failing=0.1)
    figures: LevelResult = msgspec.structs.replace(
        played(level, records),
        errors=[ErrorGroup(kind=TRAP, count=3, example=TRAP)],
        finish_reasons={TRAP: 1},
        slo=[SloResult(expression=TRAP, value=1, ci=None, n=1, verdict="INVALID", reason=TRAP)],
    )
    figures = msgspec.structs.replace(
        figures, client=msgspec.structs.replace(figures.client, valid=False, reasons=[TRAP])
    )
    result = a_result([figures], verdict=Verdict(outcome="INVALID", reasons=[TRAP]), warnings=[TRAP],
                      adaptations=[TRAP], command=TRAP, labels={TRAP: TRAP})  # fmt: skip
    result = conditions(
        a_run()._replace(result=result),
        precision=TRAP, not_comparable=[TRAP], software={TRAP: TRAP}, prompts_sized=TRAP, telemetry=[TRAP],
        endpoint=msgspec.structs.replace(result.conditions.endpoint, model=TRAP, url=TRAP),
        scenario=msgspec.structs.replace(result.conditions.scenario, name=TRAP),
    ).result  # fmt: skip
    text = html.page(result, read(lines(records)), "", TRAP)
    page = Parsed(text)
    assert len(page.scripts) == 5
    assert "img" not in [tag for tag, _ in page.elements]
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert json.loads(page.scripts[1])["command"] == TRAP
    assert page.text.count("<script>alert('x')</script>") > 15
    both = Parsed(html_overlay.page([a_run()._replace(name=TRAP), a_run()._replace(result=result)], [{}, {}], ""))
    assert len(both.scripts) == 4
    assert "img" not in [tag for tag, _ in both.elements]


# Several runs -------------------------------------------------------------------------------------------------


def overlay(*runs: object) -> Parsed:
    return Parsed(html_overlay.page(runs, [read(lines(run.records[0])) for run in runs], ""))  # type: ignore[attr-defined, arg-type]


def test_runs_that_were_measured_alike_are_laid_over_each_other() -> None:
    page = overlay(a_run("before"), a_run("after", 2))
    assert "loadtest compare before after" in page.text
    (specs,) = [json.loads(text) for text in page.scripts[:1]]
    drawn = {chart["name"]: chart["spec"]["datasets"]["rows"] for chart in specs}
    assert {row["run"] for row in drawn["percentiles"]} == {"before", "after"}
    assert {row["series"] for row in drawn["latency-throughput"]} == {"before", "after"}


def test_runs_that_have_no_level_in_common_are_drawn_all_the_same() -> None:
    page = overlay(a_run("before"), a_run("after", 1, a_level(OPEN)))
    drawn = {chart["name"]: chart for chart in json.loads(page.scripts[0])}
    assert drawn["percentiles"]["levels"] == ["c=4", "20/s"]
    assert "levels that only the base has: c=4" in page.text


def test_what_unlike_runs_differ_in_is_named_and_neither_is_praised() -> None:
    other = conditions(a_run("after", 2, slower=2.0), precision="int8")
    page = overlay(a_run("before"), other)
    assert "precision: fp32 against int8" in page.text
    assert "1 condition differs." in page.text
    seen = page.text + page.scripts[0]
    assert not re.search(r"\b(better|worse|faster|slower|beats|regression)\b", seen)


def test_runs_over_each_other_tell_their_conditions_once_and_what_differs_of_each() -> None:
    other = conditions(a_run("after", 2), precision="int8")
    text = overlay(a_run("before"), other).text
    assert text.count("chat at http://127.0.0.1:8000") == 1
    assert text.count("64 input and 8 output tokens") == 1
    assert "condition before after precision fp32 int8" in text
    assert "not the same in all runs" not in overlay(a_run("before"), a_run("after")).text


def test_several_runs_are_one_table_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, result in (("a", a_run().result), ("b", conditions(a_run("", 2), precision="int8").result)):
        (tmp_path / name).mkdir()
        write(msgspec.structs.replace(result, resumed=["2026-01-01T02:00:00Z"]), tmp_path / name)
    done = CliRunner().invoke(cli.main, ["report", "a", "b"])
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert said.count("model: demo") == 1
    assert "precision: a: fp32; b: int8" in said
    assert "unlike: b: precision: fp32 against int8" in said
    assert [line.split()[:2] for line in done.stdout.splitlines() if "c=4 " in line] == [["a", "c=4"], ["b", "c=4"]]
    assert said.count("2026-01-01T02:00:00Z") == 2
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"], "a page is written where it is asked for"


def test_what_marks_a_level_is_told_of_its_run() -> None:
    after = a_run("after", 2)
    (level,) = after.result.levels
    late = msgspec.structs.replace(level, client=msgspec.structs.replace(level.client, valid=False, reasons=["late"]))
    page = overlay(a_run("before"), after._replace(result=msgspec.structs.replace(after.result, levels=[late])))
    assert "after: ! c=4: invalid, late" in page.text
    assert "before: !" not in page.text


# Files --------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def test_a_page_and_its_charts_are_files(tmp_path: Path) -> None:
    result, written = a_page_of(*closed(2, 4, 16))
    write(result, tmp_path)
    (tmp_path / "records.jsonl").write_bytes(b"".join(written))
    runs = files.read([tmp_path])
    path = files.write(runs)
    assert path == tmp_path / "report.html"
    assert path.stat().st_size < 1_500_000
    assert not re.search(r"(src|href)=\"?(https?:)?//", path.read_text("utf-8"))
    names = {"latency-throughput", "percentiles", "prompt-length", "timeline-arrivals", "timeline-in-flight",
             "timeline-times", "timeline-failures", "slowest"}  # fmt: skip
    pictures = [*files.pictures(runs, tmp_path / "png", "png")]
    assert {picture.stem for picture in pictures} == names
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    for picture in files.pictures(runs, tmp_path / "svg", "svg"):
        assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_folder_with_runs_in_it_stands_for_them(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        write(a_run().result, tmp_path / name)
    done = CliRunner().invoke(cli.main, ["report", str(tmp_path), "--html", str(tmp_path / "both.html")])
    assert (done.exit_code, done.stdout) == (0, ""), done.output
    assert "2 runs" in Parsed((tmp_path / "both.html").read_text("utf-8")).text


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    write(a_run().result, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultError, match=r"cannot write .*file/report\.html"):
        files.write(files.read([tmp_path]), tmp_path / "file" / "report.html")


def test_a_page_that_cannot_be_written_costs_no_run_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    terminal.keep_page(a_run().result, tmp_path / "file")
    assert "warning: there is no page: cannot write" in capsys.readouterr().err
