"""The folder of a result: it is new, and nothing is left of one in which nothing began."""

from pathlib import Path

import pytest

from loadtest.errors import ResultError, UsageError
from loadtest.folder import RESOLVED, output_folder


def test_a_folder_in_which_something_lies_is_only_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    with (
        pytest.raises(UsageError, match="is not empty; name a new one with -o"),
        output_folder(tmp_path, "chat", resume=False),
    ):
        pass
    with output_folder(tmp_path, "chat", resume=True) as folder:
        assert folder == tmp_path


def test_two_runs_of_one_second_have_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = []
    for _ in range(3):
        with output_folder(None, "chat", resume=False) as folder:
            made.append(folder)
    assert len({*made}) == 3
    assert all(folder.is_dir() and folder.parent == Path("results") for folder in made)


@pytest.mark.parametrize(("left", "stays"), [("server.log", False), (RESOLVED, True), ("notes.txt", True)])
def test_only_what_began_stays(tmp_path: Path, left: str, stays: bool) -> None:
    to = tmp_path / "out"

    def interrupted() -> None:
        with output_folder(to, "chat", resume=False) as folder:
            (folder / left).write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert to.exists() is stays


def test_a_place_that_takes_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ResultError, match="cannot make the output folder"),
        output_folder(tmp_path / "file" / "out", "chat", resume=False),
    ):
        pass
