"""Models of tensors as a user plays them, against a server that computes what it answers."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from loadtest.cli import main
from tests.conftest import Command
from tests.e2e.test_run import the_result

pytestmark = pytest.mark.e2e
SERVER = Path(__file__).parents[1] / "endpoints" / "tensor_server.py"


def started(*arguments: str) -> Iterator[str]:
    with subprocess.Popen([sys.executable, str(SERVER), *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture(scope="module")
def as_json() -> Iterator[str]:
    """The URL of a server that has tensors in JSON alone."""
    yield from started()


@pytest.fixture(scope="module")
def as_bytes() -> Iterator[str]:
    """The URL of one that takes bytes."""
    yield from started("--binary")


@pytest.fixture(scope="module")
def bundled(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the bundled server with a graph of two inputs: what it answers is ONNX Runtime's."""
    folder = tmp_path_factory.mktemp("models") / "adding"
    folder.mkdir()
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8]) for name in ("a", "b", "sum")]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["sum"])], "adding", ports[:2], ports[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    command = [sys.executable, "-m", "servers", "--model", str(folder), "--task", "infer", "--port", "0"]
    with subprocess.Popen(
        [*command, "--exit-on-stdin-close"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        match = re.search(r"http://\S+", process.stdout.readline())
        assert match
        yield match[0]
        process.terminate()


def seen(url: str, model: str) -> list[dict[str, Any]]:
    """What the server had of requests to a model, those before the clock left out."""
    with urllib.request.urlopen(f"{url}/seen") as reply:
        return [each for each in json.load(reply) if each["model"] == model]


def test_batches_of_pictures_are_samples_per_second(loadtest: Command, as_bytes: str, tmp_path: Path) -> None:
    done = loadtest("run", as_bytes, "--endpoint", "kserve", "--model", "picture", "--batch-size", "1,3", "-c", "2",
                    "-n", "6", "--seed", "1", "--no-html", "-o", "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, three = the_result(tmp_path / "out")["levels"]
    assert [one["name"], three["name"]] == ["c=2 batch=1", "c=2 batch=3"]
    assert (one["batch_size"], three["batch_size"]) == (1, 3)
    for level, samples in ((one, 1), (three, 3)):
        throughput = level["throughput"]
        assert throughput["samples_per_s"] == pytest.approx(samples * level["rates"]["completed_per_s"], rel=1e-4)
        assert level["whole_run"]["samples_per_s"] == pytest.approx(throughput["samples_per_s"], rel=1e-4)
        assert throughput["output_tokens_per_s"] is None
        assert level["workload"]["output_tokens"]["requested"] == "none"
        assert level["workload"]["repeated_prompts"] == 0
    assert "samples/s" in done.stdout
    assert "tok" not in done.stdout
    assert "From 1 to 3 samples a request at c=2" in done.stdout
    pixels = [each["inputs"]["pixels"] for each in seen(as_bytes, "picture") if each["binary"]]
    of_three = [each for each in pixels if each["shape"] == [3, 3, 224, 224]]
    assert len(of_three) == 6
    assert len({each["sum"] for each in pixels}) == len(pixels), "every request is another"
    assert all(each["sum"] == pytest.approx(3 * 150_528 / 2, rel=0.01) for each in of_three)


def test_the_bundled_server_of_tensors_is_found_and_played(loadtest: Command, bundled: str, tmp_path: Path) -> None:
    done = loadtest("run", f"{bundled}/v2/models/adding/infer", "--batch-size", "1,16", "-c", "2", "-n", "20",
                    "--seed", "1", "-q", "--no-html", "-o", "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = the_result(tmp_path / "out")
    assert (result["conditions"]["endpoint"]["kind"], result["conditions"]["endpoint"]["model"]) == ("kserve", "adding")
    assert [level["counts"]["ok"] for level in result["levels"]] == [20, 20]
    assert all(level["throughput"]["samples_per_s"] > 0 for level in result["levels"])


def test_rows_of_a_file_arrive_as_they_are(loadtest: Command, as_json: str, tmp_path: Path) -> None:
    rows = np.arange(24, dtype="f4").reshape(6, 4)
    np.save(tmp_path / "rows.npy", rows)
    (tmp_path / "mine.yaml").write_text(
        "endpoint: kserve\nmodel: adder/versions/7\nseed: 1\n"
        "workload: {batch_size: 2, inputs: [{name: x, values: ./rows.npy, order: file}]}\n"
        "load: {concurrency: 1, requests: 6}\n"
    )
    done = loadtest("run", as_json, "-s", "mine.yaml", "--no-rehearsal", "-q", "--no-html", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "2 samples a request" in done.stdout
    came = [(each["version"], each["inputs"]["x"]["sum"]) for each in seen(as_json, "adder")]
    assert came == [("7", float(rows[at : at + 2].sum())) for at in (0, 2, 4)] * 2
    assert the_result(tmp_path / "out")["levels"][0]["workload"]["repeated_prompts"] == 3


def test_texts_are_made_in_the_length_asked(loadtest: Command, as_bytes: str, tmp_path: Path) -> None:
    flags = ["--endpoint", "kserve", "--model", "text", "-c", "1", "-n", "3", "-q"]
    refused = CliRunner().invoke(main, ["run", as_bytes, *flags, "-o", str(tmp_path / "none")])
    assert refused.exit_code == 2
    assert "the input text is text: say how long, with --input-tokens 128" in refused.stderr
    done = loadtest("run", as_bytes, *flags, "--input-tokens", "40", "--batch-size", "5", "--no-html", "-o", "out")
    assert done.returncode == 0, done.stderr
    last = seen(as_bytes, "text")[-1]
    assert last["inputs"]["text"]["shape"] == [5, 1]
    assert len(last["inputs"]["text"]["first"].split()) > 20


@pytest.mark.parametrize(
    ("model", "flags", "kind", "words"),
    [
        ("one-row", ["--batch-size", "4"], "check_failed", "the answer is of 1 samples, not 4"),
        ("refusing", [], "json_error", "the model is out of order"),
        ("odd", [], "not_a_stream", "the body holds no outputs"),
    ],
)
def test_a_wrong_answer_is_a_failure(
    loadtest: Command, as_json: str, tmp_path: Path, model: str, flags: list[str], kind: str, words: str
) -> None:
    done = loadtest("run", as_json, "--endpoint", "kserve", "--model", model, *flags, "-c", "1", "-n", "4", "-q",
                    "--no-rehearsal", "--no-html", "-o", "out")  # fmt: skip
    assert done.returncode == 1
    (error,) = the_result(tmp_path / "out")["levels"][0]["errors"]
    assert (error["kind"], error["count"]) == (kind, 4)
    assert words in error["example"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "open"], "say how large, as in {name: ids, shape: [-1, 16]}"),
        (["--model", "single", "--batch-size", "1,8"], "it takes one sample a request"),
        (["--model", "nobody"], "/v2/models/nobody does not describe a model: 400"),
        ([], "the server lists no models: name one with --model"),
        (["--model", "adder", "--output-tokens", "5"], "the endpoint kserve writes no answer"),
        (["--model", "adder", "--slo", "p99(ttft) < 1s"], "kserve writes no tokens; take e2e"),
    ],
)
def test_what_the_model_does_not_take_is_said_before_the_clock(
    as_json: str, tmp_path: Path, flags: list[str], words: str
) -> None:
    asked = ["run", as_json, "--endpoint", "kserve", "-c", "1", "-n", "2", "-q", *flags, "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code in (1, 2), done.output
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_batch_is_asked_only_of_what_takes_one(tiny: str, tmp_path: Path) -> None:
    asked = "is asked for one thing a request, and the server makes the batches: raise concurrency"
    for flags in (["--endpoint", "chat"], []):
        batches = ["run", tiny, *flags, "--batch-size", "8", "-c", "1", "-n", "1", "-o", str(tmp_path / "out")]
        done = CliRunner().invoke(main, batches)
        assert done.exit_code == 2
        assert f"error: --batch-size: does not apply: chat {asked} [docs: " in done.stderr
