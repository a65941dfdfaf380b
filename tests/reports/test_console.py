import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from loadtest.level import Level
from loadtest.reports.console import LEAST_WIDTH, table
from loadtest.reports.figures import figure, plain, tokens
from loadtest.result import Concurrency, LevelResult, Result, Spread, TokenLengths
from loadtest.schedule import Load, Stage
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = [140, 80]


def rows(text: str) -> list[list[str]]:
    """The cells of the table's rows."""
    lines = text.splitlines()
    rule = next(index for index, line in enumerate(lines) if set(line) == {"─"})
    found = []
    for line, following in zip(lines[rule + 1 :], [*lines[rule + 2 :], ""], strict=True):
        if line:
            found.append(line.split())
        elif not re.search(r"\d$|∞$|–$", following):
            break
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["matrix", "failing", "interrupted", "mix", "users"])
def test_report_looks_as_agreed(
    name: str, width: int, matrix: Result, interrupted: Result, sweep: Callable[..., Result], mix: Result, users: Result
) -> None:
    result = {
        "matrix": matrix, "interrupted": interrupted, "failing": sweep(failing=0.05), "mix": mix, "users": users,
    }[name]  # fmt: skip
    text = table(result, width, color=False, folder="results/quickstart-2025-01-31T12-00-00Z/")
    path = GOLDEN / f"{name}-{width}.txt"
    assert text == path.read_text(encoding="utf-8"), f"look at it, and if it is right write it to {path}"
    assert all(len(line) <= width for line in text.splitlines() if "http" not in line and "results/" not in line)


@pytest.mark.parametrize("width", [0, 1, 3, 39])
def test_a_terminal_that_does_not_know_its_size_gets_the_report_all_the_same(
    width: int, sweep: Callable[..., Result]
) -> None:
    assert table(sweep(failing=0.05), width, color=False) == table(sweep(failing=0.05), LEAST_WIDTH, color=False)


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_no_line_is_wider_than_the_terminal_or_ends_in_blanks(
    width: int, matrix: Result, sweep: Callable[..., Result]
) -> None:
    for result in (matrix, sweep(), sweep(failing=0.1), sweep(late_ms=2000.0)):
        for line in table(result, width, color=False).splitlines():
            assert len(line) <= width
            assert line == line.rstrip()


def test_rows_are_never_broken_however_narrow(matrix: Result) -> None:
    narrow = table(matrix, 20, color=False)
    assert len(rows(narrow)) == 12
    assert "E2E" not in narrow
    assert all("c=" in " ".join(row) for row in rows(narrow))


def test_without_colour_there_is_no_escape_code_whatever_the_environment(
    matrix: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in table(matrix, 80, color=False)
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = table(matrix, 80, color=True)
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).split() == table(matrix, 80, color=False).split()


def test_a_server_cannot_write_to_the_terminal(sweep: Callable[..., Result]) -> None:
    assert "\x1b" not in table(sweep(failing=0.05), 80, color=False)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("::add-mask::a", ": :add-mask::a"),
        ("busy\n ::error::no", "busy : :error::no"),
        ("a ##[error]b", "a ## [error]b"),
        ("http://[::1]:80 ::1", "http://[::1]:80 ::1"),
    ],
)
def test_a_server_cannot_command_the_runner_of_a_pipeline(said: str, shown: str) -> None:
    assert plain(said) == shown


def test_few_samples_are_marked_and_their_number_is_in_sight(sweep: Callable[..., Result]) -> None:
    text = table(sweep(), 140, color=False)
    first, second, *_ = rows(text)
    assert int(first[2]) < 100 < int(second[2])
    assert any(cell.startswith("~") for cell in first)
    assert not any(cell.startswith("~") for cell in second)
    assert "~ p99 of fewer than 100 requests" in text


def test_percentiles_have_the_failures_inside(sweep: Callable[..., Result]) -> None:
    text = table(sweep(failing=0.05), 140, color=False)
    assert rows(text)[-1][-1] == "∞"
    assert "∞ lies among them" in text
    assert "× http_status 503, such as: the server said: overloaded" in text


def test_invalid_levels_are_marked_and_say_why(sweep: Callable[..., Result]) -> None:
    text = table(sweep(late_ms=2000.0), 140, color=False)
    assert [row[0] for row in rows(text)] == ["c=1", "c=8", "c=64", "!"]
    assert "! c=256: invalid, the generator sent late: own lag p99" in text


def test_contradiction_is_an_error_of_the_tool_and_marks_the_level(
    play: Callable[..., LevelResult], level: Callable[..., Level], result: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("loadtest.measures.concurrency", lambda *_: Concurrency(mean=1.0, peak=99))
    text = table(result([play(level(), 50, 5)]), 80, color=False)
    assert [row[0] for row in rows(text)] == ["!"]
    assert "! c=4: invalid, the result contradicts its own records: concurrency is 1 on" in text
    assert "this is a bug in loadtest" in " ".join(text.split())
    assert "Nothing can be concluded" in text


def test_client_says_what_it_saw_of_itself_and_of_each_figure_the_worst(
    play: Callable[..., LevelResult], level: Callable[..., Level], result: Callable[..., Result]
) -> None:
    good, bad = (play(level(load=Load("closed", concurrency=c)), 50, 5) for c in (1, 16))
    worse = msgspec.structs.replace(
        bad.client, workers=3, cpu_share=0.71, send_lag_ms=Spread(p99=1.5, max=31.2), held_concurrency=12.25,
        error_bar_p50_ms=0.041, error_bar_ms=2.5, coalesced_read_share=0.2,
    )  # fmt: skip
    text = table(result([good, msgspec.structs.replace(bad, client=worse)]), 200, color=False)
    for said in (
        "client at its worst: 3 workers · the busiest 71% of a core", "latency ± 0.04 ms (p99 ± 2.50)",
        "own lag p99 1.50, max 31.2 ms", "loop lag p99 0.30, max 1.20 ms", "20.0% of reads held several events",
        "12.2 of 16 slots held",
    ):  # fmt: skip
        assert said in text
    unsampled = msgspec.structs.replace(good.client, error_bar_p50_ms=None, error_bar_ms=None, held_concurrency=None)
    text = table(result([msgspec.structs.replace(good, client=unsampled)]), 200, color=False)
    assert "client: 1 worker · 20% of a core · own lag" in text
    assert "±" not in text
    assert "slots held" not in text


def test_open_loop_says_how_well_it_kept_its_schedule(
    play: Callable[..., LevelResult], level: Callable[..., Level], result: Callable[..., Result]
) -> None:
    levels = [play(level(load=Load("constant", rate_per_s=rate)), 50, 5) for rate in (10.0, 20.0)]
    late = msgspec.structs.replace(levels[1].client, sent_share=0.9)
    text = table(result([levels[0], msgspec.structs.replace(levels[1], client=late)]), 200, color=False)
    assert "20.0/s offered of 20.0/s asked, 10.0% missed by the client" in text


def test_alike_warnings_of_several_levels_are_one_line(matrix: Result) -> None:
    names = [level.name for level in matrix.levels[:2]]
    told = msgspec.structs.replace(matrix, warnings=[*(f"{name}: answers were short" for name in names), "disk slow"])
    text = table(told, 140, color=False)
    assert "warning: continuous 1 c=1, continuous 1 c=4: answers were short\n" in text
    assert "warning: disk slow\n" in text


def test_broken_conservation_is_not_passed_over(matrix: Result) -> None:
    counts = msgspec.structs.replace(matrix.levels[0].counts, scheduled=999)
    broken = msgspec.structs.replace(matrix.levels[0], counts=counts)
    text = table(msgspec.structs.replace(matrix, levels=[broken]), 80, color=False)
    assert "! requests are unaccounted for in continuous 1 c=1: do not use these figures" in text


def test_events_stand_in_for_unknown_tokens_under_their_own_name(matrix: Result) -> None:
    def unknown(level: LevelResult) -> LevelResult:
        throughput = msgspec.structs.replace(level.throughput, output_tokens_per_s=None, total_tokens_per_s=None)
        return msgspec.structs.replace(level, throughput=throughput)

    text = table(msgspec.structs.replace(matrix, levels=[*map(unknown, matrix.levels)]), 140, color=False)
    assert "events/s" in text
    assert "tok/s" not in text


def test_warnings_adaptations_and_labels_are_shown(matrix: Result) -> None:
    told = msgspec.structs.replace(
        matrix,
        warnings=["c=1: answers were short"],
        adaptations=["max_tokens left out"],
        labels={"site": "lab 3", "hardware": "a label that stands in the conditions already"},
    )
    text = table(told, 80, color=False)
    assert "warning: c=1: answers were short\n" in text
    assert "changed: max_tokens left out\n" in text
    assert "site: lab 3" in text
    assert "hardware: " not in text


def test_run_without_levels_still_reports(matrix: Result) -> None:
    text = table(msgspec.structs.replace(matrix, levels=[], complete=False), 80, color=False)
    assert "Nothing was measured: no level was reached." in text
    assert "The run did not finish" in text


def test_lengths_that_vary_get_a_column_and_their_range_above(
    play: Callable[..., LevelResult], level: Callable[..., Level], result: Callable[..., Result]
) -> None:
    load = Load("closed", concurrency=2)
    levels = [
        play(level(load=load, workloads=(Workload(Length(n, n), Length(32, 32)),), name=f"in={n}"), 50, 5)
        for n in (64, 4096)
    ]
    text = table(result(levels), 140, color=False)
    assert [row[1] for row in rows(text)] == ["64", "4,096"]
    assert "64, 4096 input and 32 output tokens" in text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"), (0, "0"), (0.01234, "0.0123"), (0.1, "0.100"), (1, "1.00"), (9.996, "10.0"), (12.34, "12.3"),
        (99.96, "100"), (999.6, "1,000"), (1234, "1,230"), (1066666.7, "1,070,000"),
    ],
)  # fmt: skip
def test_figures_have_three_significant_digits(value: float | None, said: str) -> None:
    assert figure(value) == said


def test_whole_token_counts_are_whole() -> None:
    assert (tokens(64.0), tokens(4096.0), tokens(31.44), tokens(None)) == ("64", "4,096", "31.4", "–")


@pytest.mark.parametrize(
    ("load", "conditions", "row"),
    [
        (Load("gamma", rate_per_s=20.0, burstiness=0.5), "gamma arrivals of burstiness 0.5", "20/s gamma 0.5"),
        (
            Load("stages", stages=(Stage(5.0, 50.0, 2.0), Stage(5.0, 5.0, 1.0)), arrival="poisson"),
            "Poisson arrivals in stages",
            "stages 5→50→5/s",
        ),
        (
            Load("stages", stages=(Stage(5.0, 50.0, 3.0),), arrival="gamma", burstiness=2.0),
            "gamma arrivals of burstiness 2 in stages",
            "stages 5→50/s gamma 2",
        ),
        (Load("trace", events=900, span_s=3.0), "arrivals of a trace", "trace of 900"),
    ],
)
def test_arrivals_are_named_with_their_burstiness(
    load: Load,
    conditions: str,
    row: str,
    play: Callable[..., LevelResult],
    level: Callable[..., Level],
    result: Callable[..., Result],
) -> None:
    text = table(result([play(level(load=load), 50.0, 10.0)]), 200, False)
    assert f" · {conditions} · " in text
    assert re.search(rf"(?m)^{re.escape(row)}  ", text)


def test_lengths_of_data_are_said_to_be_the_datas_and_which_those_are(mix: Result) -> None:
    def of_data(lengths: TokenLengths) -> TokenLengths:
        return msgspec.structs.replace(lengths, requested="data")

    first = mix.levels[0]
    workload = msgspec.structs.replace(first.workload, input_tokens=of_data(first.workload.input_tokens))
    text = table(
        msgspec.structs.replace(mix, levels=[msgspec.structs.replace(first, workload=workload)]), 200, color=False
    )
    assert "the data's (observed mean 185) input and" in text
    assert "data: sharegpt.json (1,234 rows, random)" in text


def test_models_that_are_an_axis_have_a_column_and_one_that_is_not_stands_above(
    play: Callable[..., LevelResult], level: Callable[..., Level], result: Callable[..., Result]
) -> None:
    levels = [play(level(model=model, name=f"c=4 {model}"), 50, 5) for model in ("base", "tuned")]
    text = table(result(levels), 140, color=False)
    assert [row[:2] for row in rows(text)] == [["base", "c=4"], ["tuned", "c=4"]]
    assert "quickstart · fp32" in text
    assert "quickstart · tuned · fp32" in table(result(levels[1:]), 140, color=False)


def test_long_conversations_show_their_first_turns_and_that_there_are_more(users: Result) -> None:
    first = users.levels[0]
    many = [msgspec.structs.replace(first.turns[0], turn=number) for number in range(1, 31)]
    text = table(msgspec.structs.replace(users, levels=[msgspec.structs.replace(first, turns=many)]), 80, color=False)
    assert [line.split()[0] for line in text.splitlines() if re.match(r"\d+ +64 +0% ", line)] == [*"12345678"]
    assert "turn …" in text


def test_repeats_that_were_lost_are_counted_out_loud(mix: Result) -> None:
    (one,) = mix.repeats
    text = table(msgspec.structs.replace(mix, repeats=[msgspec.structs.replace(one, n=2)]), 140, color=False)
    assert re.search(r"4/s constant +2 of 3 +6\.36 \(6\.26–6\.51\)", text)
