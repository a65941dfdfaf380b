"""What a probe has found, as it is printed: columns that stay, bars in order, nothing that a terminal obeys."""

import msgspec
import pytest

from loadtest.portrait import Check, Portrait, Raw, Step
from loadtest.reports.probe import text

FOUND = Portrait(
    url="http://staging:8000",
    address="10.0.0.7",
    endpoint="chat",
    how="/v1/models lists models",
    model="m",
    models=["m"],
    checks=[
        Check("stream", works=True, evidence="16 events, the first after 81.2 ms"),
        Check("usage", works=False, evidence="no token counts; give --tokenizer to have them counted, " * 4),
        Check("TLS", works=None, evidence="plain HTTP"),
    ],
    waterfall=[Step("connect", 0.0, 1.0), Step("first token", 1.0, 81.0), Step("tokens", 81.0, 200.0)],
    adaptations=["stream_options: one request before the clock was sent again, since the server said '400 no'"],
    curl="curl -sS -N -X POST \\\n  http://staging:8000/v1/chat/completions",
    section='endpoint: "chat"\nmodel: "m"\n',
    requests=6,
)


def test_each_check_has_its_answer_and_its_evidence_in_columns() -> None:
    lines = text(FOUND, 90, color=False).split("\n")
    assert lines[0] == "http://staging:8000 (10.0.0.7) · endpoint chat (/v1/models lists models) · model m"
    assert "stream  yes 16 events, the first after 81.2 ms" in lines
    assert "TLS     –   plain HTTP" in lines
    usage = next(number for number, line in enumerate(lines) if line.startswith("usage   no  no token counts"))
    assert lines[usage + 1].startswith(" " * 12)
    assert lines[usage + 1][12] != " "
    assert all(len(line) <= 90 for line in lines)
    assert lines[-2:] == ["It can be used. 6 small requests were sent.", ""]


def test_the_bars_follow_each_other_and_have_the_length_of_their_time() -> None:
    bars = [line for line in text(FOUND, 100, color=False).split("\n") if "█" in line]
    assert [line.count("█") for line in bars] == [1, 16, 24]
    assert [line.index("█") for line in bars] == [15, 15, 31]
    assert bars[1].endswith("80.0 ms")


def test_what_cannot_be_used_has_no_lines_for_a_scenario() -> None:
    shown = text(msgspec.structs.replace(FOUND, reason="401 no such key"), 100, color=False)
    assert shown.endswith("It cannot be used as it was called: 401 no such key\n")
    assert "For a scenario" not in shown


def test_one_request_is_not_several_and_no_model_is_not_named() -> None:
    shown = text(msgspec.structs.replace(FOUND, requests=1, model=""), 100, color=False)
    assert shown.startswith("http://staging:8000 (10.0.0.7) · endpoint chat (/v1/models lists models)\n")
    assert shown.endswith("It can be used. 1 small request was sent.\n")


@pytest.mark.parametrize("sign", ["\x1b[2J", "\x07", "\x9b31m"])
def test_nothing_that_a_server_says_reaches_the_terminal_as_a_command(sign: str) -> None:
    raw = Raw("POST / HTTP/1.1\r\n\r\n", f"HTTP/1.1 200 OK\r\n\r\n{sign}")
    odd = msgspec.structs.replace(
        FOUND, raw=raw, model=sign, checks=[Check("x", works=None, evidence=sign)], adaptations=[sign], reason=sign
    )
    shown = text(odd, 100, color=False)
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
    assert "  HTTP/1.1 200 OK\n" in shown
