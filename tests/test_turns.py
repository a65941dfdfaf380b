"""Two targets in turn: in which order, with which seeds, and what ends it."""

from io import StringIO
from pathlib import Path

import pytest

from loadtest import errors, turns
from loadtest.errors import TargetError, UsageError
from loadtest.options import Options
from loadtest.progress import Progress
from loadtest.run import Outcome
from loadtest.scenario.model import Override
from tests.comparing import a_run, changed

LOCKED = "locked: true\nseed: {seed}\nload: {{concurrency: 2, requests: 10}}\n"


class Played:
    """Stands for ``run``: remembers what it was asked, and ends with the exit code that is next."""

    def __init__(self, *codes: int) -> None:
        self.options: list[Options] = []
        self.codes = list(codes)
        self.error: TargetError | None = None

    def __call__(self, options: Options, _progress: Progress) -> Outcome:
        self.options.append(options)
        assert options.output is not None
        code = self.codes.pop(0) if self.codes else 0
        return Outcome(
            changed(a_run(), exit_code=code, warnings=["the target: gone"]).result, options.output, self.error
        )


@pytest.fixture
def progress() -> Progress:
    return Progress(StringIO(), quiet=True)


def base(folder: Path, source: str | None = None, **overrides: str) -> Options:
    given = overrides if source else {"concurrency": "2", "requests": "10", **overrides}
    return Options(
        url="http://old", source=source, output=folder / "out",
        overrides={name: Override(value, f"--{name}") for name, value in given.items()},
    )  # fmt: skip


def test_the_order_is_ab_ba_and_each_round_has_a_seed_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    played = Played(99, 98, 97)  # a verdict on a run does not end the comparison
    monkeypatch.setattr(turns, "run", played)
    ours, theirs = turns.in_turn(base(tmp_path, seed="7"), "http://new", 3, progress)
    assert [options.url for options in played.options] == ["http://" + w for w in "old new new old old new".split()]
    assert [options.overrides["seed"].value for options in played.options] == ["7", "7", "8", "8", "9", "9"]
    assert ours == [tmp_path / "out" / "base" / number for number in "123"]
    assert theirs == [tmp_path / "out" / "candidate" / number for number in "123"]
    assert [options.output for options in played.options][:4] == [ours[0], theirs[0], theirs[1], ours[1]]


def test_without_a_seed_both_sides_of_a_round_have_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    played = Played()
    monkeypatch.setattr(turns, "run", played)
    turns.in_turn(base(tmp_path), "http://new", 1, progress)
    first, second = (options.overrides["seed"].value for options in played.options)
    assert first == second


@pytest.mark.parametrize(("seed", "kept"), [("5", True), ("null", False)])
def test_a_seed_that_is_locked_is_kept(
    seed: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    played = Played()
    monkeypatch.setattr(turns, "run", played)
    (tmp_path / "locked.yaml").write_text(LOCKED.format(seed=seed))
    turns.in_turn(base(tmp_path, str(tmp_path / "locked.yaml")), "http://new", 1, progress)
    assert all(("seed" not in options.overrides) == kept for options in played.options)


@pytest.mark.parametrize(
    ("code", "why"), [(130, "it was interrupted"), (1, "every request of a level failed"), (3, "every request")]
)
def test_a_run_that_ended_badly_ends_the_comparison_with_its_exit_code(
    code: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    monkeypatch.setattr(turns, "run", played := Played(0, code))
    with pytest.raises(errors.Stopped, match=f"round 1 of the candidate ended the comparison: {why}") as stopped:
        turns.in_turn(base(tmp_path), "http://new", 3, progress)
    assert stopped.value.exit_code == code
    assert len(played.options) == 2


def test_an_error_is_told_as_the_result_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    """Where secrets are taken out of it."""
    monkeypatch.setattr(turns, "run", played := Played(1))
    played.error = TargetError("the target: gone, said key=secret")
    with pytest.raises(errors.Stopped, match="the target: gone") as stopped:
        turns.in_turn(base(tmp_path), "http://new", 3, progress)
    assert "secret" not in str(stopped.value)


def test_a_folder_in_use_is_refused(tmp_path: Path, progress: Progress) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(UsageError, match="is not empty; name a new one with -o"):
        turns.in_turn(base(tmp_path), "http://new", 1, progress)
