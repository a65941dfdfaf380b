"""The Open Inference Protocol: what is sent, what is read of the answer, and what is refused before the clock."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from loadtest.endpoints.answer import Answer
from loadtest.endpoints.dialect import Settings
from loadtest.endpoints.kserve import KServe
from loadtest.errors import TargetError, UsageError
from loadtest.wire.control import Reply
from loadtest.workload.model import Ask, Input, Message, Tensors
from tests.endpoints.tensor_server import KINDS, MODELS, answered, port, received, sums


def spoken(model: str, *, binary: bool = False, seed: int = 0, **told: Any) -> KServe:
    inputs, outputs = MODELS.get(model, ([], []))
    described = {"inputs": inputs, "outputs": outputs, "binary": binary, **told}
    return KServe(Settings("kserve", model, told=json.dumps(described), seed=seed))


DRAWN = Tensors()


def ask(number: int = 0, samples: int = 1, tensors: Tensors = DRAWN, texts: tuple[str, ...] = ("hi",)) -> Ask:
    messages = tuple(Message("user", text) for text in texts)
    return Ask(messages, 1, seed=number * 7919, samples=samples, number=number, tensors=tensors)


def sent(dialect: KServe, what: Ask) -> dict[str, Any]:
    """The tensors of a request as a server understands them."""
    return received(dict(dialect.head(what).headers), dialect.body(what))


def read(dialect: KServe, body: bytes) -> Answer:
    answer = Answer()
    dialect.whole(answer, body)
    return answer


BOTH = pytest.mark.parametrize("binary", [False, True], ids=["json", "bytes"])


def test_the_body_in_json() -> None:
    dialect = spoken("adder")
    of = ask(tensors=Tensors((Input("x", values=2.5),)), samples=2)
    assert json.loads(dialect.body(of)) == {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [2.5] * 8}]
    }
    head = dialect.head(of)
    assert (head.path, head.headers) == ("/v2/models/adder/infer", (("Content-Type", "application/json"),))


def test_the_body_with_bytes_behind_its_json() -> None:
    dialect = spoken("adder", binary=True)
    of = ask(tensors=Tensors((Input("x", values=1.0),)))
    head, body = dialect.head(of), dialect.body(of)
    assert head.headers[0] == ("Content-Type", "application/octet-stream")
    name, length = head.headers[1]
    assert name == "Inference-Header-Content-Length"
    assert json.loads(body[: int(length)]) == {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}],
        "outputs": [{"name": "sum", "parameters": {"binary_data": True}}],
    }
    assert body[int(length) :] == b"\0\0\x80\x3f" * 4


def test_a_model_of_which_nothing_is_told_is_asked_for_all_outputs_as_bytes() -> None:
    given = Tensors((Input("x", "FP32", (-1, 2), 0.0),), binary=True)
    dialect = spoken("silent")
    of = ask(tensors=given)
    length = int(dict(dialect.head(of).headers)["Inference-Header-Content-Length"])
    assert json.loads(dialect.body(of)[:length])["parameters"] == {"binary_data_output": True}


@BOTH
def test_every_type_is_drawn_within_its_range(binary: bool) -> None:
    dialect = spoken("kinds", binary=binary)
    if not binary:  # which JSON cannot say
        inputs = [each for each in MODELS["kinds"][0] if each["datatype"] != "BF16"]
        dialect = spoken("kinds", inputs=inputs)
    found = sent(dialect, ask(3, samples=5))
    assert len(found) == len(KINDS) - (not binary)
    for name, values in found.items():
        assert values.shape == (5, 100)
        most = {"bool": 1, "uint8": 255}.get(name, 99 if "int" in name else 1)
        assert 0 <= float(values.min()) < float(values.max()) <= most, name
        assert len({row.tobytes() for row in values}) == 5, f"{name}: the samples are all different"


@BOTH
def test_every_request_is_another_and_a_seed_repeats_it(binary: bool) -> None:
    dialect, again = spoken("picture", binary=binary), spoken("picture", binary=binary)
    bodies = [dialect.body(ask(number)) for number in range(20)]
    assert len(set(bodies)) == 20
    assert [again.body(ask(number)) for number in range(20)] == bodies
    prints = {dialect.fingerprint(ask(number)) for number in range(20)}
    assert len(prints) == 20
    values = sent(dialect, ask(4, samples=3))["pixels"]
    assert values.shape == (3, 3, 224, 224)
    assert abs(float(values.mean()) - 0.5) < 0.01
    ordered = np.sort(values.reshape(3, -1)[:, 64:], axis=1)
    assert (ordered == ordered[0]).all(), "most of a sample are the same numbers in another order: none is lost"


@BOTH
def test_a_range_is_kept(binary: bool) -> None:
    given = Tensors((Input("ids", shape=(-1, 500), low=-3, high=7),))
    values = sent(spoken("open", binary=binary), ask(1, samples=2, tensors=given))["ids"]
    assert {*values.ravel().tolist()} == {*range(-3, 8)}


@BOTH
@pytest.mark.parametrize("kind", [".npy", ".npz"])
def test_rows_of_a_file_come_in_order_or_shuffled_each_once(tmp_path: Path, binary: bool, kind: str) -> None:
    rows = np.arange(40, dtype="f4").reshape(10, 4)
    path = tmp_path / f"rows{kind}"
    np.save(path, rows) if kind == ".npy" else np.savez(path, x=rows, y=rows)
    dialect = spoken("adder", binary=binary, seed=3)

    def firsts(order: Any) -> list[float]:
        given = Tensors((Input("x", values=str(path), order=order),))
        each = [sent(dialect, ask(number, samples=2, tensors=given))["x"] for number in range(5)]
        assert all((values == rows[values[:, :1].astype(int).ravel() // 4]).all() for values in each)
        return [float(row[0]) for values in each for row in values]

    assert firsts("file") == rows[:, 0].tolist()
    assert firsts("shuffle") != rows[:, 0].tolist()
    assert sorted(firsts("shuffle")) == rows[:, 0].tolist()
    given = Tensors((Input("x", values=str(path), order="file"),))
    prints = [dialect.fingerprint(ask(number, samples=2, tensors=given)) for number in range(6)]
    assert len(set(prints)) == 5, "the sixth request repeats the first"
    assert prints[5] == prints[0]


@BOTH
def test_texts_are_those_of_the_request_or_of_a_file(tmp_path: Path, binary: bool) -> None:
    dialect = spoken("text", binary=binary)
    found = sent(dialect, ask(samples=2, texts=("grün", "b" * 300)))["text"]
    assert found.tolist() == [["grün".encode()], [b"b" * 300]]
    np.save(tmp_path / "texts.npy", np.array([["one"], ["zwölf"]]))
    given = Tensors((Input("text", values=str(tmp_path / "texts.npy"), order="file"),))
    assert sent(dialect, ask(samples=2, tensors=given))["text"].tolist() == [[b"one"], ["zwölf".encode()]]


def test_a_version_and_another_model_are_in_the_path() -> None:
    dialect = spoken("adder/versions/3")
    assert dialect.path == "/v2/models/adder/versions/3/infer"
    other = msgspec.structs.replace(ask(tensors=Tensors((Input("x", "FP32", (4,), 0.0),))), model="a b")
    assert dialect.head(other).path == "/v2/models/a%20b/infer"


@BOTH
@pytest.mark.parametrize("model", ["adder", "text", "kinds"])
def test_an_answer_is_taken_with_the_number_of_its_samples(model: str, binary: bool) -> None:
    inputs = [each for each in MODELS[model][0] if binary or each["datatype"] != "BF16"]
    dialect = spoken(model, binary=binary, inputs=inputs)
    tensors = sent(dialect, ask(samples=3, texts=("a", "b", "c")))
    body, _ = answered(model, tensors, binary=binary)
    answer = read(dialect, body)
    assert (answer.ended, answer.samples, answer.error, answer.texts) == (True, 3, None, [])


@BOTH
def test_the_server_has_what_was_sent(binary: bool) -> None:
    given = Tensors((Input("x", values=3.0),))
    assert sums(sent(spoken("adder", binary=binary), ask(samples=2, tensors=given))).tolist() == [12.0, 12.0]


def replied(*outputs: dict[str, Any], tail: bytes = b"", **keys: Any) -> bytes:
    return json.dumps({"model_name": "adder", "outputs": outputs, **keys}).encode() + tail


GOOD = {"name": "sum", "datatype": "FP64", "shape": [2], "data": [1, 2]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "is no answer of this protocol: <html>"),
        (b"", r"is no answer of this protocol: \(empty\)"),
        (b'{"predictions": [1, 2]}', 'holds no outputs: {"predictions"'),
        (replied(), "holds no outputs"),
        (b"[1]", "is no answer of this protocol"),
        (replied({**GOOD, "shape": "2"}), "is no answer of this protocol"),
        (replied({**GOOD, "shape": [3]}), r"'sum' is of shape \[3\] and has 2 values"),
        (replied({**GOOD, "data": []}), r"'sum' is of shape \[2\] and has 0 values"),
        (replied({**GOOD, "data": [[1, 2], [3, 4]]}), "has 4 values"),
        (replied({"name": "sum", "datatype": "FP64", "shape": [2]}), "has 0 values"),
        (replied({**GOOD, "name": "total"}), "the output 'sum' is missing; there are total"),
        (replied(GOOD, tail=b"\1\2\3"), "3 bytes follow the JSON of the answer, and its outputs are 0"),
        (
            replied({**GOOD, "data": None, "parameters": {"binary_data_size": 16}}, tail=bytes(8)),
            r"'sum' is of shape \[2\] and has 1 values",
        ),
        (
            replied({**GOOD, "datatype": "BYTES", "parameters": {"binary_data_size": 9}}, tail=b"\1\0\0\0a\5\0\0\0"),
            r"'sum' is of shape \[2\] and has 1.5 values",
        ),
        (b'{"outputs": ' + b"[" * 100_000, "is no answer of this protocol"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_told_by_what_is_wrong_with_it(body: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(spoken("adder"), body)


def test_the_words_of_an_error_are_the_servers() -> None:
    answer = read(spoken("adder"), b'{"error": "no such tensor"}')
    assert (answer.error, answer.ended) == ("no such tensor", False)
    assert (
        spoken("adder").error_text(b'{"error":"[request id: 1] unexpected shape"}')
        == "[request id: 1] unexpected shape"
    )


def test_numbers_that_json_has_not_are_read_all_the_same() -> None:
    body = replied({**GOOD, "data": [float("nan"), float("-inf")]})
    assert b"NaN, -Infinity" in body
    answer = read(spoken("adder"), body)
    assert (answer.samples, answer.ended) == (2, True)


def test_nested_and_textual_data_are_counted_by_their_values() -> None:
    nested = replied({**GOOD, "shape": [2, 2], "data": [[1, 2], [3, 4]]})
    assert read(spoken("adder"), nested).samples == 2
    texts = {"name": "sum", "datatype": "BYTES", "shape": [2], "data": ["a, b", 'c "d", [e']}
    assert read(spoken("adder"), replied(texts)).samples == 2


def test_outputs_that_are_of_no_batch_say_nothing_of_samples() -> None:
    dialect = spoken("adder", outputs=[port("scores", "FP32", 3), port("boxes", "FP32", 2)])
    scores, boxes = {**GOOD, "name": "scores", "shape": [3], "data": [1, 2, 3]}, {**GOOD, "name": "boxes"}
    assert read(dialect, replied(scores, boxes)).samples is None


@pytest.mark.parametrize(
    ("model", "given", "samples", "words"),
    [
        ("open", Tensors(), 1, r"ids is of shape \[-1, -1\]: say how large, as in {name: ids, shape: \[-1, 16\]}"),
        ("any", Tensors((Input("x", "FP32", (-1, 3, -1)),)), 1, r"as in {name: x, shape: \[-1, 3, 16\]}"),
        ("silent", Tensors(), 1, "does not say what the model takes: give it under workload.inputs"),
        ("silent", Tensors((Input("x"),)), 1, "does not describe 'x': give its dtype and its shape"),
        ("adder", Tensors((Input("y"),)), 1, "the model has no input 'y'; there are x"),
        ("adder", Tensors((Input("x"), Input("x"))), 1, "two of them have one name"),
        ("adder", Tensors((Input("x", "FP64"),)), 1, "x is of dtype FP32 as the server says, not FP64"),
        ("adder", Tensors((Input("x", shape=(-1, 5)),)), 1, r"x is of shape \[-1, 4\] as the server says, not \[-1, 5"),
        ("single", Tensors(), 8, r"batch_size: x is of shape \[4\], without a first dimension that is open"),
        ("adder", Tensors((Input("x", low=1, high=1e39),)), 1, r"x is FP32, numbers from .*, not \[1, 1e\+39\]"),
        ("open", Tensors((Input("ids", shape=(-1, 4), low=0, high=0.5),)), 1, r"whole numbers from .*, not \[0, 0.5\]"),
        ("open", Tensors((Input("ids", shape=(-1, 4), values=1e30),)), 1, r"whole numbers from .*, not 1e\+30"),
        ("text", Tensors((Input("text", values=1.0),)), 1, "text is text, and 1 a number"),
        ("text", Tensors((Input("text", shape=(-1, 1)),)), 1, "the input text is text: say how long, with"),
        ("kinds", Tensors(), 1, "bf16 is BF16, which JSON cannot say: set binary: true"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_before_the_clock(model: str, given: Tensors, samples: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        spoken(model).check(given, samples, texts=False)


def test_a_length_of_text_is_asked_only_of_texts() -> None:
    spoken("text").check(Tensors(), 1, texts=True)
    spoken("adder").check(Tensors(), 1, texts=False)
    with pytest.raises(UsageError, match=r"workload\.input_tokens: none of the model's inputs is a text"):
        spoken("adder").check(Tensors(), 1, texts=True)


def saved(array: Any) -> Callable[[Path], None]:
    return lambda path: np.save(path, array, allow_pickle=True)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: path.write_bytes(b"no array"), "is no file of arrays that can be read"),
        (lambda path: path.write_bytes(b""), "is no file of arrays that can be read"),
        (saved(np.array([{}], dtype=object)), "is no file of arrays that can be read"),
        (saved(np.zeros((3, 4))), "holds float64, and x is FP32: save it as numpy.float32"),
        (saved(np.zeros((3, 5), "f4")), r"is of shape \[3, 5\]; each row is to be a sample of x: \[rows, 4\]"),
        (saved(np.zeros((0, 4), "f4")), r"is of shape \[0, 4\]"),
        (saved(np.full((3, 4), np.nan, "f4")), "holds NaN or infinity, which JSON has not"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, write: Callable[[Path], object], words: str) -> None:
    path = tmp_path / "x.npy"
    write(path)
    with pytest.raises(UsageError, match=words) as caught:
        spoken("adder").check(Tensors((Input("x", values=str(path)),)), 1, texts=False)
    assert str(path) in str(caught.value)


def test_an_archive_without_the_input_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros(3))
    with pytest.raises(UsageError, match="holds no array 'x', as the input is called; it has a, b"):
        spoken("adder").check(Tensors((Input("x", values=str(tmp_path / "x.npz")),)), 1, texts=False)


def answers(replies: dict[str, Any]) -> Callable[[str], Reply]:
    def get(path: str) -> Reply:
        reply = replies.get(path)
        return Reply(404, '{"error": "not found"}', {"error": "not found"}) if reply is None else Reply(200, "", reply)

    return get


@pytest.mark.parametrize(
    ("extra", "model"),
    [
        ({"/v2/models": {"models": ["m", "n"]}}, None),
        ({"/v1/models": {"data": [{"id": "m"}]}}, None),
        ({}, "m"),
    ],
)
def test_the_model_is_found_and_what_it_takes(extra: dict[str, Any], model: str | None) -> None:
    described = {"name": "m", "inputs": MODELS["adder"][0], "outputs": None, "platform": "onnx"}
    server = {"/v2": {"extensions": ["binary_tensor_data"]}, "/v2/models/m": described}
    known = KServe.discover(answers({**server, **extra}), model)
    assert known.model == "m"
    dialect = KServe(Settings("kserve", known.model, told=known.told))
    assert sent(dialect, ask())["x"].shape == (1, 4)
    assert len(dialect.head(ask()).headers) == 2, "as bytes, since the server can"


def test_a_server_that_names_no_model_or_has_not_that_one_is_told() -> None:
    with pytest.raises(TargetError, match="lists no models: name one with --model, or in the URL: /v2/models/NAME"):
        KServe.discover(answers({}), None)
    with pytest.raises(TargetError, match="/v2/models/m does not describe a model: 404"):
        KServe.discover(answers({}), "m")


def test_metadata_of_another_form_are_told() -> None:
    with pytest.raises(UsageError, match="words that are not the protocol's: Object missing required field `datatype`"):
        spoken("silent", inputs=[{"name": "x"}]).check(Tensors(), 1, texts=False)
