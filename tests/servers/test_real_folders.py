"""A folder that another tool exported, served end to end: chats, completions, batches, refusals."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import exported
import numpy as np
import pytest
from exported import SHAPE, TEXT, WEIGHTS
from reference import reference
from served import Server
from test_serving import refuse

from servers import pretrained

pytestmark = pytest.mark.e2e
LAYOUTS = {"builder": "shared", "optimum": "growing", "merged": "merged"}


@pytest.fixture(scope="module", params=LAYOUTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported.write(tmp_path_factory.mktemp("models") / request.param, request.param)


@pytest.fixture(scope="module")
def server(folder: Path, environment: dict[str, str]) -> Iterator[Server]:
    from served import running

    with running(environment, "--model", str(folder), "--max-batch-size", "4", "--provider", "cpu") as server:
        yield server


def ids_of(folder: Path, prompt: list[int], count: int) -> list[int]:
    """The greedy answer by the reference, up to an end token; none whose two best logits are a tie."""
    ids, ends = prompt.copy(), pretrained.tokenizer(folder).eos
    for _ in range(count):
        logits = reference(SHAPE, WEIGHTS, ids)
        assert np.diff(np.sort(logits)[-2:])[0] > 1e-3
        ids.append(int(logits.argmax()))
        if ids[-1] in ends:
            return ids[len(prompt) : -1]
    return ids[len(prompt) :]


def test_what_is_served_is_said(server: Server, folder: Path) -> None:
    assert server.line.startswith(f"serving {folder.name} on ")
    health = server.ask("GET", "/health")[1]
    assert (health["dtype"], health["layout"]) == ("fp32", LAYOUTS[folder.name])
    (model,) = server.ask("GET", "/v1/models")[1]["data"]
    assert (model["id"], model["max_model_len"]) == (folder.name, SHAPE.max_seq_len)
    assert "tokenizer" not in model, "only a byte tokenizer's lengths can be computed by a client"


def test_every_answer_of_a_ragged_batch_is_the_references(server: Server, folder: Path) -> None:
    tokenizer = pretrained.tokenizer(folder)
    prompts = [TEXT[i : i + length] for i, length in enumerate((3, 60, 150, 20, 1, 90, 33, 12))]

    def ask(prompt: str) -> Any:
        body = {"model": folder.name, "prompt": prompt, "max_tokens": 12}
        status, answer = server.ask("POST", "/v1/completions", body)
        assert status == 200, answer
        return answer

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = tokenizer.encode(prompt)
        wanted = ids_of(folder, ids, 12)
        stream = tokenizer.decoder()
        text = "".join([stream.push(token) for token in wanted]) + stream.finish()
        assert answer["choices"][0]["text"] == text
        assert answer["usage"]["prompt_tokens"] == len(ids)
        assert answer["usage"]["completion_tokens"] == len(wanted)


def test_a_chat_streams_in_the_models_own_format(server: Server, folder: Path) -> None:
    messages = [{"role": "user", "content": "Hi 東京"}]
    body = {"model": folder.name, "messages": messages, "max_tokens": 8, "stream_options": {"include_usage": True}}
    events = server.stream("/v1/chat/completions", body)
    assert events[-1] == "[DONE]"
    prompt = pretrained.tokenizer(folder).encode_chat([("user", "Hi 東京")])
    assert events[-2]["usage"]["prompt_tokens"] == len(prompt)


def test_sampling_and_ignored_ends_work_on_the_whole_vocabulary(server: Server, folder: Path) -> None:
    body = {"model": folder.name, "prompt": "the", "max_tokens": 30, "ignore_eos": True, "temperature": 1.5, "seed": 4}
    answers = [server.ask("POST", "/v1/completions", body)[1] for _ in range(2)]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["usage"]["completion_tokens"] == 30


def test_what_the_template_refuses_is_a_400(server: Server, folder: Path) -> None:
    body = {"model": folder.name, "messages": [{"role": "assistant", "content": "Hi"}]}
    status, answer = server.ask("POST", "/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "messages")
    assert "the user must speak first" in answer["error"]["message"]


def test_ids_outside_the_vocabulary_are_a_400(server: Server, folder: Path) -> None:
    status, answer = server.ask("POST", "/v1/completions", {"model": folder.name, "prompt": [320]})
    assert status == 400
    assert "0 to 319" in answer["error"]["message"]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return exported.write(tmp_path, "optimum")


def test_a_context_that_nothing_gives_is_asked_for(plain: Path) -> None:
    (plain / "config.json").unlink()
    code, error = refuse("--model", str(plain))
    assert (code, error.count("\n")) == (3, 1)
    assert "give --max-seq-len" in error


def test_a_graph_that_cannot_be_served_is_one_clear_error(plain: Path, start_server: Callable[..., Any]) -> None:
    (plain / "model.onnx").write_bytes(b"no model")
    code, error = refuse("--model", str(plain))
    assert (code, error.count("\n")) == (3, 1)
    assert "no ONNX model" in error


def test_a_text_of_megabytes_does_not_stop_the_others(server: Server, folder: Path) -> None:
    if folder.name != "optimum":
        pytest.skip("once is enough")
    body = {"model": folder.name, "prompt": "the " * 3_000_000, "max_tokens": 1}
    with ThreadPoolExecutor(1) as pool:
        refusal = pool.submit(server.ask, "POST", "/v1/completions", body)
        answered = 0
        while not refusal.done():
            assert server.ask("GET", "/health")[0] == 200
            answered += 1
    status, answer = refusal.result()
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert answered > 2, "one before it arrived, one that waited for it: nobody was answered meanwhile"
