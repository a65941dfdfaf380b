"""The data files and traces of a scenario, made ready to be played from, for as long as they are needed."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from loadtest.errors import ResultError, ScenarioError
from loadtest.scenario.model import Scenario
from loadtest.workload.model import Data, Rows, Trace
from loadtest.workload.rows import left_out, prepare, prepare_trace
from loadtest.workload.tokens import Tokens, by_tokenizer, measure

Material = dict[Data | Trace, Rows]


@contextlib.contextmanager
def material(scenario: Scenario, *, bundled: bool) -> Iterator[Material]:
    """What was made ready of each file that the scenario plays from; on leaving it is deleted.

    Where a file does not give lengths, texts are counted with the scenario's tokenizer; without one in words, or as the
    bundled server's own models count, in bytes.

    Raises:
        ScenarioError: a file is missing, unreadable, has nothing that can be played, or leaves a prefix without use.
        ResultError: there is no room for what is made ready.
        UsageError: the tokenizer cannot be used.
    """
    found: Material = {}
    wanted = sources(scenario)
    if not wanted:
        yield found
        return
    try:
        temporary = tempfile.TemporaryDirectory(prefix="loadtest-")
    except OSError as error:
        raise ResultError(
            f"cannot make a temporary folder: {error.strerror}; name one that can be written in TMPDIR"
        ) from None
    with temporary:
        folder = Path(temporary.name)
        whole = {workload.data for workload in scenario.workloads if workload.conversation}
        count = counter(scenario, bundled=bundled) if any(isinstance(source, Data) for source in wanted) else len
        for source in wanted:
            if isinstance(source, Trace):
                found[source] = prepare_trace(source, folder, scenario.seed or 0)
            else:
                found[source] = prepare(source, folder, count, source in whole)
        _see_prefix(scenario, found)
        yield found


def _see_prefix(scenario: Scenario, found: Material) -> None:
    """See that a shared prefix is not asked of traces alone which say themselves what is shared."""
    traces = [block.trace for block in scenario.levels if block.trace is not None and found[block.trace].shares]
    if len(traces) == len(scenario.levels) and scenario.workloads[0].prefix is not None:
        raise ScenarioError(
            f"workload.prefix: would do nothing, since {traces[0].path} says by hash_ids what its prompts share: "
            "remove one of the two"
        )


def sources(scenario: Scenario) -> list[Data | Trace]:
    """The files that a scenario plays from, each once."""
    named = [*(workload.data for workload in scenario.workloads), *(block.trace for block in scenario.levels)]
    return [source for source in dict.fromkeys(named) if source]


def skipped(material: Material) -> list[str]:
    """A sentence on each file of which rows were left out."""
    return [text for rows in material.values() if (text := left_out(rows))]


def counter(scenario: Scenario, *, bundled: bool) -> Callable[[str], int]:
    """How many tokens a text is, as well as that is known before the target is reached.

    Raises:
        UsageError: the tokenizer cannot be used.
    """
    tokens = Tokens("bytes" if bundled and not Path(scenario.server.model).exists() else "words")
    if scenario.tokenizer:
        tokens, _ = by_tokenizer(scenario.tokenizer, chat=False)
    counted = measure(tokens, None)
    return lambda text: counted.counts([text], alone=True)[0]
