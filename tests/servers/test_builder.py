"""The cache of built models: verified, mended, and safe when two processes build at once."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from servers import builder, catalog
from servers.errors import StartError

BUILD = "from servers import builder; print(builder.preset('tiny', 'fp32').sha256)"


def test_a_preset_is_built_once_and_then_read(cache: Path) -> None:
    first = builder.preset("tiny", "fp32")
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    built = (folder / "model.onnx").stat().st_mtime_ns
    second = builder.preset("tiny", "fp32")
    assert (folder / "model.onnx").stat().st_mtime_ns == built
    assert first == second
    assert first.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
    assert first.shape == builder.PRESETS["tiny"]


def damage_graph(folder: Path) -> None:
    graph = bytearray((folder / "model.onnx").read_bytes())
    graph[len(graph) // 2] ^= 1
    (folder / "model.onnx").write_bytes(graph)


def truncate_graph(folder: Path) -> None:
    (folder / "model.onnx").write_bytes((folder / "model.onnx").read_bytes()[:100])


def remove_graph(folder: Path) -> None:
    (folder / "model.onnx").unlink()


def garble_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


def strip_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text(json.dumps({"name": "tiny"}))


DAMAGES = [damage_graph, truncate_graph, remove_graph, garble_manifest, strip_manifest]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_rebuilt_and_said(damage, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = builder.preset("tiny", "fp32")
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    damage(folder)
    assert builder.preset("tiny", "fp32") == whole
    assert "building it anew" in capsys.readouterr().err
    assert builder.read(folder) == whole


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_of_the_users_own_is_refused(damage, tmp_path: Path) -> None:
    builder.write(tmp_path, "mine", builder.PRESETS["tiny"], "fp32")
    damage(tmp_path)
    with pytest.raises(StartError, match=str(tmp_path)):
        builder.read(tmp_path)


def test_a_model_that_is_not_there_is_told_what_was_looked_for_and_how_to_make_one(tmp_path: Path) -> None:
    for path, looked in ((tmp_path / "nothing", "no such folder"), (tmp_path, "it holds no model.onnx")):
        with pytest.raises(StartError, match=looked) as told:
            catalog.find(str(path), "auto", "cpu")
        text = str(told.value)
        assert text.startswith(f"no model in {path}: ")
        for mend in (*builder.PRESETS, "loadtest model build", "convert-gguf", "optimum-onnx", "transformers.js"):
            assert mend in text


def test_two_processes_may_build_at_once(cache: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", BUILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    results = [process.communicate(timeout=60) for process in processes]
    assert len({out for out, _ in results}) == 1, results
    assert all(not err for _, err in results), results
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1, "nothing half-built is left behind"


def test_a_cache_that_cannot_be_made_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(StartError, match="XDG_CACHE_HOME"):
        builder.preset("tiny", "fp32")


def test_a_failed_build_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(builder, "write", full)
    with pytest.raises(StartError, match="No space left"):
        builder.preset("tiny", "fp32")
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []
