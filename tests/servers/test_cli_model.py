"""``loadtest model``: what it builds can be served, what it says is true, what it refuses is one clear message."""

import json
from pathlib import Path

import exported
import pytest
from click.testing import CliRunner, Result
from exported import SHAPE

from loadtest.cli import main
from servers import builder, inspection
from servers.model import load


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["model", *map(str, arguments)], catch_exceptions=False)


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_a_built_shape_is_the_one_that_was_asked_for(dtype: str, tmp_path: Path) -> None:
    shape = "layers=2,hidden=64,heads=4,kv=1,inter=96,vocab=300,max_seq=128"
    result = run("build", "--shape", shape, "-o", tmp_path / "new" / "mine", "--dtype", dtype)
    assert (result.exit_code, "weights" in result.output) == (0, True), result.output
    bundle = builder.read(tmp_path / "new" / "mine")
    assert (bundle.name, bundle.dtype) == ("mine", dtype)
    assert (bundle.shape.kv_heads, bundle.shape.vocab, bundle.max_seq_len) == (1, 300, 128)
    model = load(bundle, "cpu", slots=1, max_seq_len=128, threads=1)
    assert model.prefill(0, [1, 2, 3]) == model.logits(0).argmax()


def test_a_seed_decides_the_weights(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run("build", "--shape", "tiny", "-o", tmp_path / name, "--seed", str(seed)).exit_code == 0
    sha256 = [builder.read(tmp_path / name).sha256 for name in "abc"]
    assert sha256[0] == sha256[1] != sha256[2]


def test_weights_too_large_for_one_file_lie_beside_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_ONE_FILE", 0)
    assert run("build", "--shape", "tiny", "-o", tmp_path / "large").exit_code == 0
    assert (tmp_path / "large" / "model.onnx.data").stat().st_size > (tmp_path / "large" / "model.onnx").stat().st_size
    monkeypatch.undo()
    assert run("build", "--shape", "tiny", "-o", tmp_path / "small").exit_code == 0
    answers = []
    for name in ("large", "small"):
        model = load(builder.read(tmp_path / name), "cpu", slots=1, max_seq_len=64, threads=1)
        answers.append([model.prefill(0, [1, 2, 3]), *(model.decode(1)[0] for _ in range(9))])
    assert answers[0] == answers[1]
    damaged = bytearray((tmp_path / "large" / "model.onnx.data").read_bytes())
    damaged[1000] ^= 1
    (tmp_path / "large" / "model.onnx.data").write_bytes(damaged)
    assert "damaged model" in run("inspect", tmp_path / "large").output


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ("layers=2,depth=3", "'depth=3' is not of the form NAME=NUMBER with one of layers, hidden"),
        ("hidden=100", "multiple of 16"),
        ("layers=0", "'layers=0'"),
        ("big", "no preset (tiny, demo)"),
    ],
)
def test_a_wrong_shape_is_a_usage_error(shape: str, text: str, tmp_path: Path) -> None:
    result = run("build", "--shape", shape, "-o", tmp_path / "x")
    assert result.exit_code == 2
    assert text in result.output
    assert not (tmp_path / "x").exists()


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = run("build", "--shape", "tiny", "-o", tmp_path)
    assert (result.exit_code, result.output.count("\n")) == (3, 1)
    assert "not an empty folder" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("build", "--shape", "tiny", "-o", tmp_path / "file" / "x")
    assert (result.exit_code, result.output.count("\n")) == (3, 1)
    assert result.output.startswith(f"error: cannot write {tmp_path / 'file' / 'x'}: ")


def test_inspect_says_what_an_exported_model_is_and_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_memory", lambda: 200_000_000)
    exported.write(tmp_path, "builder")
    found = json.loads(run("inspect", tmp_path, "--json").output)
    assert (found["layout"], found["dtype"], found["max_seq_len"]) == ("shared", "fp32", 256)
    assert found["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    gains = (2 * SHAPE.layers + 1) * SHAPE.hidden
    assert found["parameters"] == SHAPE.parameters - gains
    room = 200_000_000 * 0.9 - found["file_bytes"]
    assert found["fits"] == [{"context": 256, "slots": int(room // (256 * 512))}]
    text = run("inspect", tmp_path).output
    assert "512 bytes a token (2 layers × 2 heads × 16, fp32)" in text
    assert "slots × context in this machine's 200.0 MB" in text


def test_a_cache_that_grows_takes_twice_the_memory(tmp_path: Path) -> None:
    exported.write(tmp_path / "a", "builder")
    exported.write(tmp_path / "b", "optimum")
    shared, growing = (json.loads(run("inspect", tmp_path / name, "--json").output)["fits"] for name in "ab")
    assert shared[0]["slots"] // 2 == pytest.approx(growing[0]["slots"], rel=0.01)


def test_inspect_knows_presets_and_their_weights() -> None:
    found = json.loads(run("inspect", "tiny", "--json").output)
    assert (found["name"], found["parameters"]) == ("tiny", builder.PRESETS["tiny"].parameters)


def test_inspect_refuses_what_cannot_be_served(tmp_path: Path) -> None:
    result = run("inspect", tmp_path / "nothing")
    assert (result.exit_code, result.output.count("\n")) == (3, 1)
    assert "loadtest model build" in result.output


def test_converting_reports_a_refusal_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    result = run("convert-gguf", tmp_path / "x.gguf", "-o", tmp_path / "out")
    assert (result.exit_code, result.output.count("\n")) == (3, 1)
    assert "not a whole GGUF file" in result.output
