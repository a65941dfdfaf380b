"""The life of the server process: how it starts, why it does not, how it drains and ends."""

import ast
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from click.testing import CliRunner
from served import Server, eventually

from servers import builder, device
from servers.app import Options
from servers.batching import Batching
from servers.cli import serve
from servers.engine import Limits
from servers.errors import StartError
from servers.server import Settings, _load, _load_on

ROOT = Path(__file__).parent.parent.parent
LONG = {"model": "tiny", "prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}
END = b"data: [DONE]\n\n\r\n0\r\n\r\n"
Start = Callable[..., Any]


def everything(connection: socket.socket) -> bytes:
    data = b""
    with connection, suppress(ConnectionResetError):  # reset: not yet accepted when the server ended
        while piece := connection.recv(65536):
            data += piece
    return data


def refuse(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(serve, ["--model", "tiny", "--port", "0", *options])
    assert "Traceback" not in result.output
    assert result.stdout == ""
    return result.exit_code, result.stderr


def stop(server: Server, number: int = signal.SIGTERM) -> int:
    server.process.send_signal(number)
    return server.process.wait(15)


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(number: int, start_server: Start) -> None:
    with start_server("--scheduler", "none") as server:
        # Several behind one another, so that some still run and wait when the signal has come.
        connections = [server.begin("/v1/completions", LONG) for _ in range(16)]
        eventually(lambda: sum(server.load()) >= 8, "the requests ended too soon")
        server.process.send_signal(number)
        eventually(lambda: server.ask("GET", "/ready")[0] == 503, "still ready")
        assert server.ask("GET", "/health")[1]["status"] == "draining"
        status, refusal = server.ask("POST", "/v1/completions", LONG)
        assert status == 503
        assert "shutting down" in refusal["error"]["message"]
        answers = [everything(connection) for connection in connections]
        finished = [answer for answer in answers if b'"finish_reason":"length"' in answer]
        assert all(answer.endswith(END) for answer in finished)
        assert len(finished) >= 8
        # The others reached it after the signal had.
        assert all(answer.startswith(b"HTTP/1.1 503") for answer in answers if answer not in finished)
        assert server.process.wait(15) == 0
        assert server.process.stderr.read() == ""


@pytest.mark.e2e
def test_what_runs_past_the_drain_timeout_is_cut_off_and_says_so(start_server: Start) -> None:
    with start_server("--max-batch-size", "4", "--drain-timeout", "0") as server:
        connections = [server.begin("/v1/completions", LONG) for _ in range(40)]
        eventually(lambda: sum(server.load()) >= 20, "the requests ended too soon")
        assert stop(server) == 0
        answers = [everything(connection) for connection in connections]
        assert server.process.stderr.read() == ""
    cut_off = [answer for answer in answers if b'"finish_reason":"abort"' in answer]
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 503")]
    assert 1 <= len(cut_off) <= 4
    assert all(answer.endswith(END) for answer in cut_off)
    assert refused


@pytest.mark.e2e
def test_a_key_for_the_users_own_server_does_not_lock_out_the_one_of_a_run(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from loadtest.target import BundledServer, ServerOptions

    monkeypatch.setenv("XDG_CACHE_HOME", environment["XDG_CACHE_HOME"])
    monkeypatch.setenv("LOADTEST_SERVE_API_KEY", "mine")
    server = BundledServer(ServerOptions("tiny", "cpu", "auto", 1, 2, None), "chat", tmp_path / "log")
    try:
        assert server.open().model == "tiny"
    finally:
        server.close()


@pytest.mark.e2e
def test_it_ends_with_the_process_that_started_it(start_server: Start) -> None:
    with start_server() as server:
        server.process.stdin.close()
        assert server.process.wait(15) == 0


@pytest.mark.e2e
def test_a_taken_port_is_one_clear_error(own_server: Server) -> None:
    code, error = refuse("--port", str(own_server.port))
    assert code == 3
    assert error == (
        f"error: cannot listen on 127.0.0.1 port {own_server.port}: Address already in use; "
        "choose another --port (0 takes any free one)\n"
    )


def test_an_unknown_host_is_one_clear_error() -> None:
    code, error = refuse("--host", "no-such-host.invalid")
    assert code == 3
    assert error.startswith("error: cannot listen on no-such-host.invalid")
    assert error.count("\n") == 1


def test_cuda_that_is_not_there_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "why_no_cuda", lambda: "no NVIDIA driver on this machine")
    code, error = refuse("--provider", "cuda")
    assert (code, error.count("\n")) == (3, 1)
    assert error.startswith("error: --provider cuda: no NVIDIA driver on this machine; use --provider cpu")
    code, error = refuse("--cuda-graph")
    assert (code, error) == (3, "error: --cuda-graph needs CUDA, and the model runs on the CPU; leave it out\n")


def settings(**changes: Any) -> Settings:
    options = {
        "model": "tiny", "batching": Batching(), "kv_slots": 2, "max_seq_len": None, "threads": 1, "provider": "auto",
        "dtype": "auto", "host": "127.0.0.1", "port": 0, "drain_timeout_s": 1, "exit_on_stdin_close": False,
        "limits": Limits(), "http": Options(),
    }  # fmt: skip
    return Settings(**{**options, **changes})


def test_auto_takes_the_cpu_where_cuda_does_not_load_and_says_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A driver answers, but the session falls back: as where CUDA's libraries are missing."""
    monkeypatch.setattr(device, "why_no_cuda", lambda: None)
    monkeypatch.setattr(device, "load_cuda_libraries", lambda: None)
    session = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda *given, providers: session(*given, providers=["CPUExecutionProvider"])
    )
    model = _load(settings(), _load_on)
    assert (model.provider, model.bundle.dtype) == ("cpu", "fp32")
    assert "warning: the model fell back to CPUExecutionProvider" in capsys.readouterr().err
    with pytest.raises(StartError, match="fell back"):
        _load(settings(provider="cuda"), _load_on)


def test_more_slots_than_memory_is_one_clear_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("servers.model.load", no_memory)
    with pytest.raises(StartError, match="lower --kv-slots or --max-seq-len"):
        _load(settings(provider="cpu"), _load_on)


def test_an_unwritable_cache_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path / "file"))
    code, error = refuse()
    assert (code, error.count("\n")) == (3, 1)
    assert str(tmp_path / "file") in error


def test_a_bad_model_folder_is_one_clear_error(tmp_path: Path) -> None:
    code, error = refuse("--model", str(tmp_path))
    assert (code, error.count("\n")) == (3, 1)
    assert str(tmp_path) in error


def test_a_model_of_another_precision_is_refused(tmp_path: Path) -> None:
    builder.write(tmp_path, "half", builder.PRESETS["tiny"], "fp16")
    code, error = refuse("--model", str(tmp_path), "--provider", "cpu")
    assert code == 3
    assert "is fp16, and cpu runs fp32 or int8 only" in error
    code, error = refuse("--model", str(tmp_path), "--dtype", "int8")
    assert (code, error) == (3, f"error: --dtype int8: the model in {tmp_path} is fp16; leave --dtype out\n")
    code, error = refuse("--dtype", "fp16", "--provider", "cpu")
    assert (code, error) == (3, "error: --dtype fp16: on cpu the tiny model runs in fp32 or int8 only\n")


def test_a_context_beyond_the_models_is_refused(cache: Path) -> None:
    code, error = refuse("--max-seq-len", "513")
    assert (code, error) == (3, "error: --max-seq-len 513: the tiny model reaches 512 tokens\n")


@pytest.mark.parametrize(
    "options",
    [
        ("--kv-slots", "2", "--max-batch-size", "4"),
        ("--scheduler", "fifo"),
        ("--max-batch-size", "0"),
        ("--port", "99999"),
        ("--batch-timeout-ms", "-1"),
        ("--api-key", ""),
        ("--api-key", "one two"),
        ("--api-key", "schlüssel"),
        ("--nonsense",),
    ],
)
def test_impossible_options_are_usage_errors(options: tuple[str, ...]) -> None:
    code, error = refuse(*options)
    assert code == 2
    assert options[0] in error


@pytest.mark.e2e
def test_a_folder_with_a_shorter_context_on_ipv6(tmp_path: Path, start_server: Start) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 on this machine")
    builder.write(tmp_path, "mine", builder.PRESETS["tiny"], "fp32")
    options = ("--model", str(tmp_path), "--max-seq-len", "64", "--threads", "2", "--host", "::1")
    with start_server(*options) as server:
        assert server.line.startswith("serving mine on http://[::1]:")
        server.host = "::1"
        assert server.ask("GET", "/health")[1]["threads"] == 2
        assert server.ask("GET", "/v1/models")[1]["data"][0]["max_model_len"] == 64
        assert server.ask("POST", "/admin/batching", {"scheduler": "none", "max_batch_size": 1})[0] == 200


def test_admin_is_for_this_machine_only() -> None:
    from servers.app import _is_loopback

    assert all(map(_is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "::1%lo")))
    assert not any(map(_is_loopback, (None, "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "2001:db8::1")))


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from servers.cli import serve; serve(['--help'], standalone_mode=False);"
        "print([m for m in ('numpy', 'onnxruntime', 'onnx', 'aiohttp', 'asyncio') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown.rstrip().endswith("[]")
    assert "--exit-on-stdin-close" not in shown
    for option in ("--model", "--scheduler", "--max-batch-size", "--kv-slots", "--provider", "--drain-timeout"):
        assert option in shown


def test_the_server_knows_nothing_of_the_generator() -> None:
    for path in sorted((ROOT / "servers").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "loadtest"], path
