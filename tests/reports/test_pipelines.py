"""What pipelines are told: JUnit by a real parser, Markdown by another, annotations as a runner reads them."""

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from markdown_it import MarkdownIt

from loadtest.errors import TargetError, UsageError
from loadtest.level import Level
from loadtest.pipeline import MOST_SUMMARY_BYTES, Pipeline
from loadtest.reports.annotations import MOST, github, gitlab
from loadtest.reports.cases import Case, cases, no_result
from loadtest.reports.column import Column
from loadtest.reports.junit import junit
from loadtest.reports.markdown import MOST_CHARACTERS, MOST_LINES, MOST_ROWS, markdown, table, text
from loadtest.result import ErrorGroup, LevelResult, Result, SloResult, Verdict

HOSTILE = (
    "]]>\x00\x1b[31m<script>alert(1)</script>\u202e\ud800\ufffe\r\n::error::no | `code` **bold** [a](http://evil.example)"
    " </details> <!-- @everyone #1 www.evil.example &lt; \\| $x$ ##[error]no"
)
NAMES = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "❔", "INVALID": "⛔", "ERROR": "❌"}
CODES = {"PASS": 0, "INVALID": 97, "INCONCLUSIVE": 98, "FAIL": 99}


def slo(verdict: str, **given: object) -> SloResult:
    values: dict[str, object] = {
        "expression": "p99(ttft) < 300ms", "value": 412.3, "ci": (390.0, 450.0), "n": 40_000, "verdict": verdict,
        "reason": "500 of 40,000 requests that were due were later or failed, 400 are allowed", "unit": "ms",
    }  # fmt: skip
    return SloResult(**{**values, **given})  # type: ignore[arg-type]


@pytest.fixture
def judged(sweep: Callable[..., Result]) -> Callable[..., Result]:
    """A run of two levels whose SLOs have these verdicts."""

    def build(*slos: SloResult, **given: object) -> Result:
        result = sweep()
        levels = [msgspec.structs.replace(level, slo=list(slos)) for level in result.levels[:2]]
        worst = min((one.verdict for one in slos), key=["INVALID", "FAIL", "INCONCLUSIVE", "PASS"].index)
        values = {"levels": levels, "exit_code": CODES[worst], "verdict": Verdict(outcome=worst), **given}
        return msgspec.structs.replace(result, **values)

    return build


@pytest.fixture
def failing(
    play: Callable[..., LevelResult], level: Callable[..., Level], result: Callable[..., Result]
) -> Callable[[float], Result]:
    """A run of one level without SLOs, of whose requests a share fails."""
    return lambda share: result([play(level(), 50, 5, failing=share)])


def parsed(document: str) -> tuple[ElementTree.Element, list[ElementTree.Element]]:
    suite = ElementTree.fromstring(document).find("testsuite")
    assert suite is not None
    return suite, list(suite)


def rendered(comment: str) -> str:
    """As HTML, by a parser that lets HTML through, as those of GitHub and GitLab do before they sanitise it."""
    return str(MarkdownIt("commonmark", {"html": True}).enable("table").render(comment))


# Cases --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", ["PASS", "FAIL", "INCONCLUSIVE", "INVALID"])
def test_each_slo_of_each_level_is_a_case_with_its_verdict(verdict: str, judged: Callable[..., Result]) -> None:
    found = cases(judged(slo(verdict), slo("PASS", expression="error_rate < 0.1%", unit="share", value=0.0004)))
    assert [(case.title, case.outcome) for case in found] == [
        ("c=1: p99(ttft) < 300ms", verdict),
        ("c=1: error_rate < 0.1%", "PASS"),
        ("c=8: p99(ttft) < 300ms", verdict),
        ("c=8: error_rate < 0.1%", "PASS"),
    ]
    assert found[0].reason.startswith("500 of 40,000")
    assert found[0].figures == "measured 412 ms, 95 % confidence interval 390 ms to 450 ms, n 40,000"
    assert found[1].figures.startswith("measured 0.04 %, ")


def test_a_value_among_the_failures_is_not_told_as_nothing(judged: Callable[..., Result]) -> None:
    inside, nothing = slo("FAIL", value=None, ci=(390.0, None)), slo("INCONCLUSIVE", value=None, ci=None, n=0)
    assert cases(judged(inside))[0].figures == "measured ∞, 95 % confidence interval from 390 ms, n 40,000"
    assert cases(judged(nothing))[0].figures == "measured –, 95 % confidence interval –, n 0"


def test_without_slos_a_level_is_bad_only_when_all_of_it_failed(failing: Callable[[float], Result]) -> None:
    assert {case.outcome for case in cases(failing(0.5))} == {"PASS"}
    (last,) = cases(failing(1.0))
    assert (last.title, last.outcome) == ("c=4: requests", "ERROR")
    assert "all" in last.reason
    assert "http_status 503: the server said: overloaded" in last.reason


@pytest.mark.parametrize(
    ("given", "outcome", "says"),
    [
        ({"exit_code": 130, "complete": False}, "ERROR", "it was interrupted"),
        ({"exit_code": 0, "complete": False}, "ERROR", "it did not finish"),
        ({"exit_code": 3, "complete": False, "warnings": ["the server died"]}, "ERROR", "the server died"),
        ({"exit_code": 99, "complete": False, "warnings": ["ended by --abort-on"]}, "FAIL", "ended by --abort-on"),
        ({"exit_code": 97, "verdict": Verdict(outcome="INVALID", reasons=["c=1: late"])}, "INVALID", "c=1: late"),
        ({"exit_code": 99, "verdict": Verdict(outcome="FAIL", reasons=["not decided"])}, "FAIL", "not decided"),
        ({"exit_code": 1, "complete": False}, "ERROR", "exit code 1"),
    ],
)
def test_what_no_level_says_is_a_case_of_the_run(
    given: dict[str, object], outcome: str, says: str, judged: Callable[..., Result]
) -> None:
    whole = cases(judged(slo("PASS"), **{"warnings": [], **given}))[0]
    assert (whole.title, whole.outcome) == ("the run", outcome)
    assert says in whole.reason


@pytest.mark.parametrize("code", [0, 1, 3, 97, 98, 99, 130])
@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("verdict", ["PASS", "FAIL", "INCONCLUSIVE", "INVALID"])
def test_a_report_is_never_green_beside_an_exit_code_that_is_not_0(
    code: int, complete: bool, verdict: str, judged: Callable[..., Result]
) -> None:
    found = cases(judged(slo(verdict), exit_code=code, complete=complete))
    assert any(case.bad for case in found) == (code != 0 or not complete or verdict != "PASS")


def test_levels_that_were_not_reached_are_skipped_and_the_run_is_not_green(interrupted: Result) -> None:
    assert [case.outcome for case in cases(interrupted)] == ["ERROR", "PASS", "PASS", "SKIPPED"]


# JUnit --------------------------------------------------------------------------------------------------------


def test_junit_is_what_its_readers_read(judged: Callable[..., Result]) -> None:
    slos = [slo(verdict, expression=f"p99({verdict}) < 1s") for verdict in ("PASS", "FAIL", "INCONCLUSIVE", "INVALID")]
    suite, tests = parsed(junit("chat", cases(judged(*slos)), "2025-01-31T12:00:00Z"))
    assert {name: suite.get(name) for name in ("name", "tests", "failures", "errors", "skipped")} == {
        "name": "chat", "tests": "8", "failures": "4", "errors": "2", "skipped": "0",
    }  # fmt: skip
    assert suite.get("timestamp") == "2025-01-31T12:00:00"
    assert [[(child.tag, child.get("type")) for child in test] for test in tests[:4]] == [
        [("system-out", None)], [("failure", "FAIL")], [("failure", "INCONCLUSIVE")], [("error", "INVALID")],
    ]  # fmt: skip
    # GitLab shows the text, the actions of GitHub the message.
    for test in tests[1:4]:
        assert "500 of 40,000 requests" in (test[0].text or "")
        assert "500 of 40,000 requests" in (test[0].get("message") or "")
    # GitLab drops a case whose name another one had.
    assert len({test.get("name") for test in tests}) == 8
    # Each case says how long its level took, and the suite counts it once.
    levels = {test.get("time") for test in tests}
    assert float(suite.get("time") or 0) == pytest.approx(sum(float(time or 0) for time in levels), abs=0.01)


def test_junit_survives_what_a_server_says(failing: Callable[[float], Result]) -> None:
    result = failing(1.0)
    last = msgspec.structs.replace(result.levels[-1], errors=[ErrorGroup(kind="http_status", count=1, example=HOSTILE)])
    _, tests = parsed(junit(HOSTILE, cases(msgspec.structs.replace(result, levels=[last]))))
    (error,) = tests[0]
    assert "]]> [31m<script>alert(1)</script>" in (error.text or "")
    assert (error.text or "").isprintable()


def test_a_run_without_a_result_is_a_case_in_error() -> None:
    suite, tests = parsed(junit("chat", no_result("nobody answers at http://staging:8000")))
    assert suite.get("errors") == "1"
    assert "nobody answers" in (tests[0][0].text or "")


# Markdown -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", ["FAIL", "INCONCLUSIVE", "INVALID"])
def test_a_comment_begins_with_the_verdict_the_worst_slo_and_why(verdict: str, judged: Callable[..., Result]) -> None:
    comment = markdown(judged(slo("PASS", expression="error_rate < 1%"), slo(verdict)), "results/a")
    assert comment.startswith(f"### {NAMES[verdict]} {verdict} · quickstart\n")
    html = rendered(comment)
    cells = [cell.strip() for cell in re.findall(r"<td.*?>(.*?)</td>", html, re.DOTALL)]
    assert cells[:6] == [verdict, "p99(ttft) &lt; 300ms", "c=1", "412 ms", "390 ms to 450 ms", "40,000"]
    (why,) = re.findall(r"<li>(.*500 of 40,000.*)</li>", html)
    assert why.startswith("c=1: p99(ttft) &lt; 300ms, c=8: p99(ttft) &lt; 300ms: ")


def test_a_comment_on_a_run_that_passed_gives_no_reasons(judged: Callable[..., Result]) -> None:
    comment = markdown(judged(slo("PASS")))
    assert comment.startswith("### ✅ PASS · quickstart\n")
    assert "500 of 40,000" not in comment


def test_a_comment_of_a_run_without_slos_is_no_pass_and_one_of_a_broken_run_says_what_broke(
    sweep: Callable[..., Result], interrupted: Result
) -> None:
    assert markdown(sweep()).startswith("### No SLO was asked · quickstart\n")
    assert markdown(interrupted).startswith("### ❌ ERROR · quickstart\n\n**the run:** it was interrupted")


def test_conditions_and_failures_are_folded_and_whole(matrix: Result, failing: Callable[[float], Result]) -> None:
    html = rendered(markdown(matrix, "results/a"))
    assert html.count("<details>") == html.count("</details>") == 1
    folded = html[html.index("<details>") :]
    assert "fp32" in html[: html.index("<details>")]  # which model is seen at once
    assert "seed" in folded
    assert "result: results/a" in folded
    assert html.count("<tr>") == 13
    assert "Failures and warnings (" in markdown(failing(0.5))


def test_nothing_that_a_server_says_has_a_meaning_in_a_comment(judged: Callable[..., Result]) -> None:
    result = judged(slo("FAIL", reason=HOSTILE, expression=HOSTILE))
    levels = [
        msgspec.structs.replace(level, errors=[ErrorGroup(kind="http_status", count=1, example=HOSTILE)], model=HOSTILE)
        for level in result.levels
    ]
    comment = markdown(msgspec.structs.replace(result, levels=levels, warnings=[HOSTILE], adaptations=[HOSTILE]))
    plain = markdown(msgspec.structs.replace(result, levels=[
        msgspec.structs.replace(level, errors=[ErrorGroup(kind="http_status", count=1, example="x")], model="x",
                                slo=[slo("FAIL", reason="x", expression="x")])
        for level in levels
    ], warnings=["x"], adaptations=["x"]))  # fmt: skip
    tags = re.compile(r"<[^>]*>")
    assert tags.findall(rendered(comment)) == tags.findall(rendered(plain))
    shown = re.sub(tags, "", rendered(comment))
    assert "alert(1)" in shown
    assert not re.search(r"://evil|@everyone|#1|www\.evil|::error", shown)


@pytest.mark.parametrize("sign", "|`*_~<>[]()!#@$&\\-+=.:")
def test_a_sign_is_itself_in_a_cell_an_item_and_a_paragraph(sign: str) -> None:
    said = f"a {sign}b{sign} {sign * 3}c"
    for source in (text(said), f"- {text(said)}", table([Column("head", [said], "setup")])):
        shown = re.sub(r"<[^>]*>", "", rendered(source)).replace("\u200b", "").removeprefix("\nhead").split()
        assert "".join(shown).removeprefix("head") == said.translate({38: "&amp;", 60: "&lt;", 62: "&gt;", 32: None})


def test_a_comment_fits_into_one_however_much_went_wrong(matrix: Result) -> None:
    levels = [
        msgspec.structs.replace(
            level, name=f"{level.name} {number}", slo=[slo("FAIL", reason=f"{number} late" * 99)] * 3
        )
        for number in range(9)
        for level in matrix.levels
    ]
    said = [f"{number} " + "words " * 999 for number in range(99)]
    comment = markdown(msgspec.structs.replace(matrix, levels=levels, warnings=said, exit_code=99))
    assert len(comment) < 65_536
    assert f"and {3 * len(levels) - MOST_ROWS} rows more" in comment
    assert f"and {99 - MOST_LINES} more" in comment
    assert text("<" * 5000).count("&#60;") == MOST_CHARACTERS


# Annotations --------------------------------------------------------------------------------------------------


def test_github_annotates_what_is_bad_and_nothing_else() -> None:
    found = [
        Case(name="p99(ttft) < 300ms", level="c=1", outcome="FAIL", reason="50% late\nof all, and: more"),
        Case(name="error_rate < 1%", level="c=1, a", outcome="INCONCLUSIVE", reason="too few"),
        Case(name="requests", level="c=4", outcome="PASS"),
        Case(name="requests", level="c=8", outcome="SKIPPED"),
    ]
    assert github(found) == [
        "::error title=FAIL · c=1%3A p99(ttft) < 300ms::50%25 late of all, and: more",
        "::warning title=INCONCLUSIVE · c=1%2C a%3A error_rate < 1%25::too few",
    ]


def test_no_server_begins_an_annotation_of_its_own() -> None:
    for lines in (github, gitlab):
        (line,) = lines([Case(name=HOSTILE, outcome="ERROR", reason=HOSTILE)])
        assert line.count("\x1b") == (2 if lines is gitlab else 0)
        assert len(line.splitlines()) == 1
        assert "##[" not in line


def test_of_many_annotations_the_last_says_how_many_are_left() -> None:
    found = [Case(name=str(number), outcome="FAIL", reason="late") for number in range(25)]
    for lines in (github(found), gitlab(found)):
        assert len(lines) == MOST
        assert "and 16 more" in lines[-1]


def test_gitlab_gets_coloured_lines() -> None:
    assert gitlab([Case(name="p99", outcome="INCONCLUSIVE", reason="too few")]) == [
        "\x1b[33;1mINCONCLUSIVE\x1b[0m p99: too few"
    ]


# The pipeline -------------------------------------------------------------------------------------------------

BAD = [Case(name="a", outcome="FAIL", reason="late")]


def test_files_are_written_and_the_summary_is_added_to(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    told = Pipeline.of(tmp_path / "a.xml", tmp_path / "a.md", {"GITHUB_STEP_SUMMARY": str(summary)})
    assert told.tell("chat", BAD, "comment\n") == []
    assert parsed((tmp_path / "a.xml").read_text())[0].get("failures") == "1"
    assert (tmp_path / "a.md").read_text() == "comment\n"
    assert summary.read_text() == "before\ncomment\n\n"


def test_no_earlier_report_is_taken_for_this_run(tmp_path: Path) -> None:
    stale = tmp_path / "a.xml"
    stale.write_text("<testsuites/>")
    Pipeline.of(stale, None, {})
    assert not stale.read_text()


@pytest.mark.parametrize(
    ("environment", "lines"),
    [
        ({}, []),
        ({"GITHUB_ACTIONS": "true"}, ["::error title=FAIL · a::late"]),
        ({"GITLAB_CI": "true"}, ["\x1b[31;1mFAIL\x1b[0m a: late"]),
        ({"GITHUB_ACTIONS": "false", "GITLAB_CI": ""}, []),
    ],
)
def test_the_service_is_known_by_its_variable(environment: dict[str, str], lines: list[str]) -> None:
    assert Pipeline.of(None, None, environment).tell("chat", BAD, "comment") == lines


def test_a_file_that_cannot_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for flag, paths in (("--junit", (tmp_path, None)), ("--markdown", (None, tmp_path / "file" / "a.md"))):
        with pytest.raises(UsageError, match=f"{flag} .*name a file that can be written"):
            Pipeline.of(*paths, {})
    with pytest.raises(UsageError, match=r"a.md: Not a directory; name a file"):
        Pipeline.of(None, tmp_path / "file" / "a.md", {})
    with pytest.raises(UsageError, match="--junit -: only --json"):
        Pipeline.of(Path("-"), None, {})
    inside = Pipeline.of(tmp_path / "new" / "a.xml", None, {}, within=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    inside.tell("chat", BAD, "")
    assert (tmp_path / "new" / "a.xml").exists()
    Pipeline.of(None, tmp_path / "other" / "a.md", {}).tell("chat", BAD, "")
    assert (tmp_path / "other" / "a.md").exists(), "as -o makes its folder"


@pytest.mark.parametrize("error", [TargetError("nobody answers"), KeyboardInterrupt()])
def test_why_there_is_no_result_is_told_and_goes_on(error: BaseException, tmp_path: Path) -> None:
    told = Pipeline.of(tmp_path / "a.xml", tmp_path / "a.md", {"GITLAB_CI": "true"})
    lines: list[str] = []
    with pytest.raises(type(error)), told.of_failure("chat", lines.append):
        raise error
    why = str(error) or "it was interrupted before it began"
    assert lines == [f"\x1b[31;1mERROR\x1b[0m the run: {why}"]
    assert parsed((tmp_path / "a.xml").read_text())[0].get("errors") == "1"
    assert (tmp_path / "a.md").read_text("utf-8") == f"### ❌ ERROR · chat\n\n**the run:** {why}\n"


def test_a_summary_that_cannot_be_added_is_a_warning(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.write_bytes(b"x" * MOST_SUMMARY_BYTES)
    for path, says in ((full, "is full"), (tmp_path, "cannot add to GITHUB_STEP_SUMMARY")):
        (line,) = Pipeline.of(None, None, {"GITHUB_STEP_SUMMARY": str(path)}).tell("chat", BAD, "comment")
        assert says in line
    assert full.stat().st_size == MOST_SUMMARY_BYTES
