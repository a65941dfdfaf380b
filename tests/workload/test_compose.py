"""What a request asks: the lengths, texts, models and pictures that were planned."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from loadtest.workload.compose import Composed, Composer, fingerprint
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length
from loadtest.workload.model import Conversation, Data, Images, Message, Prefix, Trace, Workload
from loadtest.workload.request import Request
from loadtest.workload.rows import prepare, prepare_trace
from loadtest.workload.tokens import Tokens

NOW = Distribution("fixed", (0.0,))
LENGTH = Length(50, 50)


def composed(
    workload: Workload, number: int = 0, *, tokens: Tokens | None = None, input_tokens: int | None = 50,
    output_tokens: int | None = 9, **given: Any,
) -> Composed:  # fmt: skip
    composer = Composer((workload,), tokens or Tokens("bytes"), 7)
    request = Request(number, input_tokens, output_tokens, random.Random(number), **given)
    try:
        return composer.compose(request)
    finally:
        composer.close()


def of_row(workload: Workload, row: int, **given: Any) -> Composed:
    return composed(workload, input_tokens=None, output_tokens=given.pop("output_tokens", None), row=row, **given)


def text(found: Composed) -> str:
    return found.ask.messages[-1].content


def with_data(folder: Path, name: str, content: str, **given: Any) -> Workload:
    (folder / name).write_text(content)
    data = Data(str(folder / name), order="file")
    rows = prepare(data, folder, len, conversation="conversation" in given)
    return Workload(None, None, data=data, rows=rows, **given)


def test_a_prompt_has_the_length_that_was_planned_with_what_the_server_adds() -> None:
    found = composed(Workload(LENGTH, LENGTH), tokens=Tokens("bytes", overhead=4))
    assert len(text(found)) == 46
    assert (found.input_tokens, found.ask.max_tokens, found.answer, found.at_s) == (50, 9, None, None)


def test_a_shared_prefix_comes_in_front_of_the_prompts_own_tokens_in_its_share_of_them() -> None:
    workload = Workload(LENGTH, LENGTH, prefix=Prefix(0.75, 100, 2))
    found = [composed(workload, number) for number in range(200)]
    prefixed = [one for one in found if one.input_tokens == 150]
    assert len(prefixed) == pytest.approx(150, abs=20)
    assert {one.input_tokens for one in found} == {50, 150}
    assert all(len(text(one)) == one.input_tokens for one in found)
    assert len({text(one)[:100] for one in prefixed}) == 2
    assert len({text(one)[:112] for one in prefixed}) == len(prefixed), "the salt comes right after the prefix"


def test_a_later_turn_has_its_own_tokens_alone_and_no_prefix() -> None:
    talk = Conversation(Length(3, 3), NOW)
    workload = Workload(LENGTH, LENGTH, prefix=Prefix(1.0, 100, 2), conversation=talk)
    later = composed(workload, tokens=Tokens("bytes", overhead=4), session=0, turn=2)
    assert len(text(later)) == 50
    assert later.input_tokens is None
    assert later.answer is None


def test_a_canned_answer_has_the_length_that_is_asked_for() -> None:
    workload = Workload(LENGTH, LENGTH, conversation=Conversation(Length(3, 3), NOW, "canned"))
    assert len(composed(workload, session=0, turn=1).answer or "") == 9


def test_pictures_differ_and_what_they_come_to_is_the_servers_to_say() -> None:
    workload = Workload(LENGTH, LENGTH, images=Images(2, 8, 8))
    found = [composed(workload, number) for number in range(3)]
    pictures = [picture for one in found for picture in one.ask.images]
    assert len(set(pictures)) == 6
    assert {one.input_tokens for one in found} == {None}


def test_tools_are_counted_by_the_server_too() -> None:
    assert composed(Workload(LENGTH, LENGTH, body='{"tools": []}')).input_tokens is None
    assert composed(Workload(LENGTH, LENGTH, body='{"temperature": 1}')).input_tokens == 50


def test_a_row_is_sent_as_it_stands_and_asks_for_an_answer_as_long_as_the_recorded_one(tmp_path: Path) -> None:
    rows = [
        {"system": "be brief", "prompt": "how?", "answer": "like this"},
        {"prompt": "why?", "output_tokens": 33},
        {"prompt": "when?"},
    ]
    workload = with_data(tmp_path, "d.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    brief, why, when = (of_row(workload, number) for number in range(3))
    assert brief.ask.messages == (Message("system", "be brief"), Message("user", "how?"))
    assert (brief.ask.max_tokens, brief.input_tokens) == (9, None)
    assert (why.ask.max_tokens, why.input_tokens) == (33, 4)
    assert when.ask.max_tokens == 256
    assert of_row(workload, 1, output_tokens=5).ask.max_tokens == 5
    assert of_row(workload, 0, tokens=Tokens("words")).ask.max_tokens == 2
    assert of_row(workload, 1, tokens=Tokens("words")).input_tokens is None


def test_a_prefix_stands_in_front_of_the_text_of_a_row(tmp_path: Path) -> None:
    workload = with_data(tmp_path, "p.txt", "hello\n", prefix=Prefix(1.0, 20, 1))
    found = of_row(workload, 0)
    assert text(found).endswith("\n\nhello")
    assert found.input_tokens == len(text(found)) == 27


def test_the_users_keys_stand_above_those_of_a_batch_file(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0.1, "top_p": 0.9}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    workload = with_data(tmp_path, "b.jsonl", json.dumps(line) + "\n", body='{"temperature": 1.0}')
    found = of_row(workload, 0)
    assert json.loads(found.ask.body or "") == {"temperature": 1.0, "top_p": 0.9}
    assert found.ask.max_tokens == 3


def test_a_canned_history_of_data_is_what_was_recorded(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]
    workload = with_data(
        tmp_path, "c.json", json.dumps([{"conversations": said}]), conversation=Conversation(None, NOW, "canned")
    )
    first = of_row(workload, 0, session=0, turn=1)
    later = of_row(workload, 0, session=0, turn=2, output_tokens=4)
    assert (text(first), first.answer) == ("a", "b")
    assert (text(later), later.input_tokens) == ("c", None)
    assert len(later.answer or "") == 4, "where nothing was recorded it is made"


def test_equal_hash_ids_of_a_trace_are_equal_text(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1400, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 100, "input_length": 1300, "output_length": 6, "hash_ids": [1, 2, 9]},
    ]
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    workload = Workload(None, None, rows=prepare_trace(Trace(str(path)), tmp_path, 1))
    one, other = (of_row(workload, number) for number in range(2))
    assert (len(text(one)), len(text(other))) == (1400, 1300)
    assert text(one)[:1023] == text(other)[:1023]
    assert text(one)[1024:1100] != text(other)[1024:1100]
    assert (one.at_s, other.at_s) == (0.0, 0.1)
    assert (one.ask.max_tokens, other.ask.max_tokens) == (5, 6)


def test_a_prefix_is_a_part_of_a_traces_prompt_where_it_is_longer_than_that(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [
        {"timestamp": at, "input_tokens": length, "output_tokens": 5} for at, length in ((0, 90), (1, 120), (2, 30))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = prepare_trace(Trace(str(path)), tmp_path, 1)
    one, other, short = (of_row(Workload(None, None, prefix=Prefix(1.0, 60, 1), rows=rows), row) for row in range(3))
    assert (len(text(one)), len(text(other)), len(text(short))) == (90, 120, 30)
    assert (one.input_tokens, other.input_tokens, short.input_tokens) == (90, 120, 30)
    assert text(one)[:60] == text(other)[:60]
    assert text(short)[:20] != text(one)[:20]


def test_a_fingerprint_tells_inputs_apart() -> None:
    user = Message("user", "a")
    found = {
        fingerprint([user]), fingerprint([user, user]), fingerprint([Message("user", "b")]), fingerprint([user], ["x"]),
    }  # fmt: skip
    assert len(found) == 4
    assert fingerprint([user]) == fingerprint([Message("user", "a")])
    assert all(0 <= printed < 2**48 for printed in found)
