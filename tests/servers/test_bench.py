"""bench/server.py on a device that is not there, and on one that is."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from servers.device import why_no_cuda

BENCH = Path(__file__).parent.parent.parent / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("server")


@pytest.mark.e2e
@pytest.mark.skipif(why_no_cuda() is None, reason="there is CUDA here")
def test_the_bench_refuses_cuda_where_there_is_none(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "server.py", "--provider", "cuda"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"error: --provider cuda: {why_no_cuda()}; use --provider cpu, or auto\n"


def test_a_precision_that_the_device_does_not_run_is_refused(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["server.py", "--dtype", "fp16"])
    assert bench.main() == 3
    assert capsys.readouterr().err == "error: --dtype fp16: cpu runs fp32 or int8 only\n"


def test_on_cuda_engine_and_server_run_there_in_fp16(
    cache: Path, bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.device, "why_no_cuda", lambda: None)
    monkeypatch.setattr(bench.device, "load_cuda_libraries", lambda: None)
    (place,) = bench._places("cuda", None, 2)
    commands = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(" ".join(command))
        return SimpleNamespace(returncode=0, stdout=json.dumps({"levels": []}))

    loaded = []
    monkeypatch.setattr(bench, "load", lambda bundle, provider, **_: loaded.append((bundle.dtype, provider)))
    with pytest.raises(AttributeError):  # as nothing was loaded
        bench.Ours("tiny", place)
    assert loaded == [("fp16", "cuda")]
    monkeypatch.setattr(bench.subprocess, "run", run)
    bench._loadtest(place, 1.0, 1.0)
    assert "--provider cuda --dtype fp16 --threads 2" in commands[0]


def test_a_peer_that_is_for_the_cpu_only_is_absent_on_cuda(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))
    place = bench.Place("cuda", "fp16", 1)
    assert bench._found(bench.peers.LlamaCpp, SimpleNamespace(bundle=None), place, tmp_path / "peer") is None
    assert capsys.readouterr().err == "llama.cpp is absent: it is compared on the CPU only\n"
    assert bench._row("decode", 10.0, None, 1.0)["ok"] is False
    assert "absent" in capsys.readouterr().out
