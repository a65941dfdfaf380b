"""Data files as people have them: what is played of each, and what is said of the rest."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest.errors import ScenarioError, UsageError
from loadtest.workload import rows
from loadtest.workload.model import Data, Message, Row, Turn

RECORDED = Path(__file__).parent.parent / "cases" / "recorded"
Play = Callable[..., list[Row]]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Writes a data file, and gives its rows as they would be played; what was skipped is left in ``play.skipped``."""

    def played(name: str, content: Any, conversation: bool = False, **keys: Any) -> list[Row]:
        path = tmp_path / name
        if isinstance(content, list) and name.endswith(".json"):
            content = json.dumps(content, indent=1)
        elif isinstance(content, list):
            content = "\n".join(json.dumps(item) for item in content)
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        ready = rows.prepare(Data(str(path), **keys), tmp_path, lambda text: len(text.split()), conversation)
        played.skipped = ready.skipped  # type: ignore[attr-defined]
        reader = rows.Reader(ready)
        found = [reader.row(index) for index in range(len(reader))]
        reader.close()
        return found

    return played


def user(text: str) -> Message:
    return Message("user", text)


def case(name: str, tmp_path: Path, conversation: bool = False) -> tuple[rows.Rows, list[Turn], dict[str, Any]]:
    expected = json.loads((RECORDED / name / "expect.json").read_text("utf-8"))
    (path,) = {*(RECORDED / name).iterdir()} - {RECORDED / name / "case.json", RECORDED / name / "expect.json"}
    ready = rows.prepare(Data(str(path)), tmp_path, len, conversation)
    reader = rows.Reader(ready)
    turns = [reader.row(index).turns[0] for index in range(len(reader))]
    reader.close()
    return ready, turns, expected


def test_data_bad_line(tmp_path: Path) -> None:
    ready, turns, expected = case("data-bad-line", tmp_path)
    assert ready.skipped == (("not JSON", 1, expected["bad_line"]),)
    assert "line 3" in (rows.left_out(ready) or "")
    assert [turn.messages[0].content for turn in turns] == ["one", "two", "four"]


def test_data_csv_quoting(tmp_path: Path) -> None:
    ready, turns, expected = case("data-csv-quoting", tmp_path)
    assert [[turn.messages[0].content, turn.output_tokens] for turn in turns] == expected["prompts"]
    assert ready.skipped == (("empty prompt", expected["skipped"], 5),)


def test_data_jsonl_bom_crlf(tmp_path: Path) -> None:
    ready, turns, expected = case("data-jsonl-bom-crlf", tmp_path)
    assert [turn.messages[0].content for turn in turns] == expected["prompts"]
    assert len(ready.skipped) == expected["skipped"]


@pytest.mark.parametrize("conversation", [True, False])
def test_data_sharegpt_holes(tmp_path: Path, conversation: bool) -> None:
    ready, turns, expected = case("data-sharegpt-holes", tmp_path, conversation)
    assert [turn.messages[-1].content for turn in turns] == [prompt for _, prompt in expected["usable"]]
    assert turns[3].messages[0] == Message("system", "Be brief")
    assert turns[3].answer == "It scatters light."
    skipped = {reason: many for reason, many, _ in ready.skipped}
    assert skipped == {"no conversations": 1, "no turns": 1, "empty prompt": 2}
    text = Path(ready.source).read_text("utf-8").splitlines()
    assert [text[line] for _, _, line in ready.skipped] == ['  "id": "b"', '  "id": "c",', '  "id": "f",']


TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "1"},
    {"role": "assistant", "content": "Indeed."},
    {"role": "user", "content": [{"type": "text", "text": "Two"}, {"type": "text", "text": "?"}]},
    {"role": "assistant", "content": None},
    {"role": "user", "content": "Three?"},
]


def test_a_conversation_is_played_turn_by_turn_with_its_answers_kept(play: Play) -> None:
    (row,) = play("chat.jsonl", [{"messages": TALK}], conversation=True)
    assert [turn.messages for turn in row.turns] == [
        (Message("system", "Be kind."), user("One?")), (user("Two?"),), (user("Three?"),),
    ]  # fmt: skip
    assert [turn.answer for turn in row.turns] == ["1\n\nIndeed.", None, None]


def test_without_conversation_the_first_question_is_played(play: Play) -> None:
    (row,) = play("chat.jsonl", [{"messages": TALK}])
    assert row.turns == (Turn((Message("system", "Be kind."), user("One?")), "1"),)


@pytest.mark.parametrize("key", ["conversations", "conversation", "messages", "items"])
@pytest.mark.parametrize(("asks", "answers"), [("human", "gpt"), ("User", "ChatGPT"), ("prompter", "assistant")])
def test_conversations_go_by_many_names(play: Play, key: str, asks: str, answers: str) -> None:
    talk = [{"from": asks, "value": "Hello"}, {"from": answers, "value": "Hi"}]
    assert play("s.json", [{key: talk}, {"id": 2, key: talk}]) == [Row((Turn((user("Hello"),), "Hi"),))] * 2


@pytest.mark.parametrize(
    ("talk", "reason"),
    [
        (None, "no conversations"),
        ("Hello", "conversations that are no list"),
        ([], "no turns"),
        (["Hello"], "a turn that is no object"),
        ([{"from": "moderator", "value": "Hello"}], "a role that is not known"),
        ([{"from": "gpt", "value": "Hello"}], "no question of a user"),
        ([{"role": "user", "content": "  "}], "empty prompt"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "content that is not text"),
        ([{"role": "user", "content": 5}], "content that is not text"),
        (
            [{"role": "user", "content": "x"}, {"role": "tool", "content": "5"}],
            "calls of tools, which cannot be played",
        ),
        (
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}],
            "calls of tools, which cannot be played",
        ),
    ],
)
def test_a_conversation_that_cannot_be_played_is_counted_with_its_reason(play: Play, talk: Any, reason: str) -> None:
    good = {"conversations": [{"from": "human", "value": "Hello"}]}
    assert len(play("s.jsonl", [good, {"conversations": talk}, good], conversation=True)) == 2
    assert play.skipped == ((reason, 1, 2),)  # type: ignore[attr-defined]


def test_a_batch_file_is_played_whole_with_what_else_it_asks(play: Play) -> None:
    body = {
        "model": "gpt-4o", "messages": TALK, "max_completion_tokens": 30, "temperature": 0.2, "stream": True,
        "response_format": {"type": "json_object"},
    }  # fmt: skip
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    old = {"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Say", "max_tokens": 3}}
    row, other = play("batch.jsonl", [line, old, line | {"body": {"input": "x"}}, line | {"body": None}])
    (turn,) = row.turns
    assert [message.role for message in turn.messages] == "system user assistant assistant user user".split()
    assert (turn.output_tokens, turn.answer) == (30, None)
    assert json.loads(row.body or "") == {"temperature": 0.2, "response_format": {"type": "json_object"}}
    assert other == Row((Turn((user("Say"),), None, None, 3),))
    assert play.skipped == (("no messages", 1, 3), ("no body", 1, 4))  # type: ignore[attr-defined]


def test_columns_are_mapped_to_ours(play: Play) -> None:
    content = "q,s,a,n,m\nWhy?,Be brief,Because,12,3\n"
    columns = (("prompt", "q"), ("system", "s"), ("answer", "a"), ("output_tokens", "n"), ("input_tokens", "m"))
    expected = [Row((Turn((Message("system", "Be brief"), user("Why?")), "Because", 3, 12),))]
    assert play("x.csv", content, columns=columns) == expected
    line = {"q": "Why?", "s": "Be brief", "a": "Because", "n": 12, "m": 3}
    assert play("x.jsonl", [line], columns=columns) == expected


def test_columns_that_are_kept_go_with_their_row(play: Play) -> None:
    found = play("a.jsonl", [{"prompt": "hi", "n": 2, "l": ["x"]}, {"prompt": "b", "l": None}], kept=("n", "l"))
    assert found == [Row((Turn((user("hi"),)),), None, '{"n":2,"l":["x"]}')]
    assert play.skipped == (("no 'n'", 1, 2),)  # type: ignore[attr-defined]
    assert [row.cells for row in play("a.csv", "text,n\na,1\nb,\n", kept=("n",))] == ['{"n":"1"}', '{"n":""}']


def test_rows_that_are_columns_alone_need_no_prompt(play: Play) -> None:
    found = play("a.csv", "id,k\n1,a\n2,b\n", kept=("id",), texts=False)
    assert found == [Row((Turn(()),), None, f'{{"id":"{number}"}}') for number in (1, 2)]
    with pytest.raises(ScenarioError, match=r"there is no column 'x'; there are 'id', 'k'"):
        play("a.csv", None, kept=("x",), texts=False)
    with pytest.raises(ScenarioError, match=r"there is no column 'x'"):
        play("a.jsonl", [{"id": 1}], kept=("x",), texts=False)
    with pytest.raises(ScenarioError, match=r"say columns: \{prompt: …\}"):
        play("a.csv", None, kept=("id",))


def test_parquet_keeps_the_types_of_columns(play: Play, tmp_path: Path) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"id": [1], "v": [[0.5, 1.0]], "other": [b"x"]}), tmp_path / "a.parquet")
    (row,) = play("a.parquet", None, kept=("id", "v"), texts=False)
    assert row.cells == '{"id":1,"v":[0.5,1.0]}'


def test_parquet_is_read_with_lists_of_messages(play: Play, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    parquet.write_table(pa.table({"messages": [talk, [], talk], "n": [4, 5, 6]}), tmp_path / "x.parquet")
    columns = (("messages", "messages"), ("output_tokens", "n"))
    found = play("x.parquet", None, columns=columns)
    assert found == [Row((Turn((user("Hello"),), "Hi", None, length),)) for length in (4, 6)]
    assert play.skipped == (("no turns", 1, 2),)  # type: ignore[attr-defined]
    with pytest.raises(ScenarioError, match=r"there is no column 'q'; there are 'messages', 'n'"):
        play("x.parquet", None, columns=(("prompt", "q"),))
    with pytest.raises(ScenarioError, match=r"y\.parquet is not a Parquet file"):
        play("y.parquet", b"PAR1 and nothing more")


def test_without_pyarrow_the_mend_is_told(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"reading Parquet needs pyarrow: pip install 'loadtest\[parquet\]'"):
        play("x.parquet", b"PAR1")


def test_a_prompt_a_line_and_blank_lines_are_counted(play: Play) -> None:
    assert play("x.txt", "\ufeffone\r\n\r\ntwo three") == [Row((Turn((user(text),)),)) for text in ("one", "two three")]
    assert play.skipped == (("blank line", 1, 2),)  # type: ignore[attr-defined]


def test_rows_of_one_session_are_its_turns(play: Play) -> None:
    lines = [{"session": name, "prompt": text} for name, text in (("a", "1"), ("a", "2"), ("b", "3"), (None, "4"))]
    found = play("x.jsonl", [*lines, lines[3]], conversation=True)
    assert [[turn.messages[0].content for turn in row.turns] for row in found] == [["1", "2"], ["3"], ["4"], ["4"]]
    assert len(play("x.jsonl", lines)) == 4
    same = [{"session": "a", "prompt": "1"}] * 2500
    assert [len(row.turns) for row in play("x.jsonl", same, conversation=True)] == [1000, 1000, 500]


def test_filters_keep_what_fits_and_count_the_rest(play: Play) -> None:
    lines = [
        {"prompt": "a b c"},
        {"prompt": "a b c", "answer": "x " * 9},
        {"prompt": "a " * 9, "answer": "x"},
        {"prompt": "a"},
    ]
    (row,) = play("x.jsonl", lines, min_input=2, max_input=8, min_output=5, max_output=9)
    assert row == Row((Turn((user("a b c"),), "x " * 9, 3, 9),))
    assert play.skipped == (  # type: ignore[attr-defined]
        ("no answer to take a length from", 1, 1),
        ("longer than 8 input tokens", 1, 3),
        ("shorter than 2 input tokens", 1, 4),
    )
    with pytest.raises(ScenarioError, match="longer than 9 output tokens"):
        play("x.jsonl", [{"prompt": "a", "output_tokens": 12}], max_output=9)


def test_a_filter_sees_the_history_of_a_conversation(play: Play) -> None:
    talk = [{"from": who, "value": "a b c"} for who in ("human", "gpt", "human", "gpt")]
    assert len(play("s.jsonl", [{"conversations": talk}], conversation=True, max_input=9)) == 1
    with pytest.raises(ScenarioError, match="longer than 8 input tokens"):
        play("s.jsonl", [{"conversations": talk}], conversation=True, max_input=8)
    assert len(play("s.jsonl", [{"conversations": talk}], max_input=3)) == 1


@pytest.mark.parametrize("value", ["many", -1, 0, 2.5, 1e300, "nan", [1]])
def test_a_length_that_is_none_leaves_its_row_out(play: Play, value: Any) -> None:
    assert len(play("x.jsonl", [{"prompt": "a"}, {"prompt": "b", "max_tokens": value}])) == 1
    assert play.skipped == (("output_tokens that is no whole number of 1 or more", 1, 2),)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "content", "keys", "message"),
    [
        ("x.jsonl", b"", {}, "x.jsonl is empty"),
        ("x.jsonl", b"\xef\xbb\xbf \n", {}, "x.jsonl is empty"),
        ("x.jsonl", b'{"prompt": "\xff"}', {}, "x.jsonl is not UTF-8 text: save it as UTF-8"),
        ("x.csv", "prompt\na".encode("utf-16"), {}, "x.csv is not UTF-8 text: save it as UTF-8"),
        ("x.bin", b"\x00\x01", {}, "x.bin: of which format is it? Say format: sharegpt | chat | openai-batch | "),
        ("x.json", b'[{"prompt": "a"},\n{"prompt": ]', {},
         "x.json:2: the item that begins here is not JSON: Expecting value"),
        ("x.json", b'[{"prompt": "a"},\n', {}, "x.json:2: the file ends within its array: it was cut off"),
        ("x.json", b'[{"prompt": "a"},\n{"prompt": "b', {},
         "x.json:2: the item that begins here is not JSON: Unterminated string starting at"),
        ("x.json", b"[" * 200_000, {}, "x.json:1: the item that begins here is not JSON: it is too deep"),
        ("x.csv", b'prompt\n"a\nb', {}, "x.csv:2: not CSV (unexpected end of data)"),
        ("x.csv", b"frage,n\na,1\n", {}, "x.csv: say columns: {prompt: …}, which of 'frage', 'n' has the prompt"),
        ("x.csv", b"prompt,n\na,1\n", {"columns": (("output_tokens", "m"),)},
         "x.csv: there is no column 'm'; there are 'prompt', 'n'"),
        ("x.jsonl", b'{"prompt": "a", "n": 1}', {"columns": (("system", "m"),)},
         "x.jsonl: there is no column 'm'; there are 'prompt', 'n'"),
        ("x.csv", b"prompt\na", {"columns": (("promt", "prompt"),)},
         "columns: there is no 'promt' of ours; there are prompt, "),
        ("x.txt", b"a", {"columns": (("prompt", "x"),)}, "x.txt: text has no columns to name"),
        ("x.csv", b"prompt,n\na\nb,1,2\n", {},
         "x.csv: no row can be played: another number of columns than the first line (2, first in line 2)"),
        ("x.json", b"[1, null]", {}, "x.json: no row can be played: not an object (2, first in line 1)"),
        ("x.json", b'[{"prompt": NaN}, {"prompt": "\\ud83d"}]', {},
         "x.json: no row can be played: not JSON (2, first in line 1)"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_played_is_one_clear_message(
    play: Play, tmp_path: Path, name: str, content: bytes, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        play(name, content, **keys)
    assert str(caught.value).replace(f"{tmp_path}{os.sep}", "").startswith(message)


def test_what_is_no_file_is_one_clear_message(play: Play, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"cannot read .*missing\.jsonl: No such file"):
        play("missing.jsonl", None)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    for name in ("folder", "pipe.txt"):
        with pytest.raises(ScenarioError, match=f"cannot read .*{name}: it is not a regular file"):
            play(name, None)


def test_an_item_across_the_parts_that_are_read_is_one_item(play: Play) -> None:
    texts = ["a" * 700_000, 'b"[]{},\\' * 300_000, "ü" * 3_000_000, "d"]
    found = play("x.json", [{"prompt": text} for text in texts])
    assert [row.turns[0].messages[0].content for row in found] == texts


def test_a_long_field_of_csv_is_no_error(play: Play) -> None:
    (row,) = play("x.csv", f"prompt\n{'x' * 200_000}\n")
    assert len(row.turns[0].messages[0].content) == 200_000
