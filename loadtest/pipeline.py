"""Where a pipeline is told how a run went: files that were asked for, and what its service offers by itself."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from loadtest.errors import LoadtestError, ResultError, UsageError
from loadtest.reports import annotations
from loadtest.reports.cases import Case, cases, no_result
from loadtest.reports.junit import junit
from loadtest.reports.markdown import document, head, markdown
from loadtest.result import Result

# GitHub takes no more for one step, and rather nothing than a part of it.
MOST_SUMMARY_BYTES = 1024 * 1024


class Pipeline(NamedTuple):
    """The files to write, the summary of the step to add to, and how its log makes lines stand out."""

    junit: Path | None
    markdown: Path | None
    summary: Path | None
    annotate: Callable[[Sequence[Case]], list[str]] | None

    @classmethod
    def of(
        cls, junit: Path | None, markdown: Path | None, environment: Mapping[str, str], within: Path | None = None
    ) -> "Pipeline":
        """The one that the flags and the environment say; its files are emptied, so that none is an earlier run's.

        ``within`` is the folder that the run will make: a file in it cannot be tried before.

        Raises:
            UsageError: a file cannot be written, which a run is too long to find out after it.
        """
        for flag, path in (("--junit", junit), ("--markdown", markdown)):
            if path is None or (within is not None and within.absolute() in path.absolute().parents):
                continue
            if str(path) == "-":
                raise UsageError(f"{flag} -: only --json writes to stdout; name a file")
            try:
                if not path.parent.exists():
                    path.parent.mkdir(parents=True)
                path.open("wb").close()
            except OSError as error:
                raise UsageError(f"{flag} {path}: {error.strerror}; name a file that can be written") from None
        summary = environment.get("GITHUB_STEP_SUMMARY")
        annotate = None
        if environment.get("GITHUB_ACTIONS") == "true":
            annotate = annotations.github
        elif environment.get("GITLAB_CI") == "true":
            annotate = annotations.gitlab
        return cls(junit, markdown, Path(summary) if summary else None, annotate)

    def tell(self, name: str, cases: Sequence[Case], comment: str, started_at: str | None = None) -> list[str]:
        """Write what was asked for of ``cases`` and the ``comment`` in Markdown; return the lines for the log's end.

        Raises:
            ResultError: a file cannot be written.
        """
        if self.junit is not None:
            _write(self.junit, junit(name, cases, started_at))
        if self.markdown is not None:
            _write(self.markdown, comment)
        noted = [] if self.summary is None else _append(self.summary, comment)
        return noted + (self.annotate(cases) if self.annotate else [])

    def tell_of(self, result: Result, folder: Path) -> list[str]:
        """The same of the ``result`` that lies in ``folder``."""
        comment = markdown(result, str(folder))
        return self.tell(result.conditions.scenario.name, cases(result), comment, result.started_at)

    @contextlib.contextmanager
    def of_failure(self, name: str, log: Callable[[str], None], redact: Callable[[str], str] = str) -> Iterator[None]:
        """Tell it as well why there is no result at all: the error within, which goes on."""
        try:
            yield
        except (LoadtestError, KeyboardInterrupt) as error:
            found = no_result(redact(str(error)) or "it was interrupted before it began")
            for line in self.tell(name, found, document(head(name, found))):
                log(line)
            raise


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}; name another file") from None


def _append(path: Path, text: str) -> list[str]:
    """Add to the summary of a step. Nobody asked for it by a flag, so a run does not fail by it."""
    try:
        if path.exists() and path.stat().st_size + len(text.encode()) > MOST_SUMMARY_BYTES:
            return [f"warning: {path} is full: the summary of this run was not added"]
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        return [f"warning: cannot add to GITHUB_STEP_SUMMARY, {path}: {error.strerror}"]
    return []
