"""This machine, as far as it is not the same everywhere."""

import os
import tempfile
from pathlib import Path

import pytest

from loadtest.host import cache_folder
from servers.builder import cache_root


def test_what_is_kept_has_a_place_also_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/loadtest")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it does where there is none
    assert cache_folder() == Path(tempfile.gettempdir()) / "loadtest"
    assert cache_root() == cache_folder() / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "/kept")
    assert cache_folder() == Path("/kept/loadtest")
