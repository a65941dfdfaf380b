"""What a shell offers where a word is not a flag: presets, endpoints, the names that a flag takes.

Called by click in a process of its own at each press of Tab, so what is imported here is imported there alone.
"""

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def presets(_: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The presets that begin so, each with its question; of -s also the files here."""
    from loadtest.scenario import presets as known  # noqa: PLC0415

    found = [CompletionItem(each.name, help=each.question) for each in known() if each.name.startswith(begun)]
    files = isinstance(parameter, click.Option) and (not found or not begun)
    return [*found, CompletionItem(begun, type="file")] if files else found


def endpoints(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """The kinds of endpoints that begin so, those of installed packages too."""
    from loadtest.endpoints.catalog import kinds  # noqa: PLC0415

    return _of(kinds(), begun)


def words(*names: str, files: bool = False) -> Completion:
    """Completes one of ``names``, also the last of several with commas between them; with ``files`` a path as well."""

    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
        before, comma, last = begun.rpartition(",")
        found = [CompletionItem(before + comma + each.value) for each in _of(names, last)]
        return [*found, CompletionItem(begun, type="dir")] if files and not found else found

    return complete


def _of(names: Iterable[str], begun: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(begun)]
