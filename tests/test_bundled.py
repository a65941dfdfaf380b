"""The bundled server: how a scenario has it started, and what is said of flags that do nothing."""

import pytest

from loadtest import plan, scenario
from loadtest.bundled import server_options, unused
from loadtest.errors import UsageError
from loadtest.scenario.model import Override, Resolved


def flags(**given: str) -> dict[str, Override]:
    return {name: Override(text, f"--{name.replace('_', '-')}") for name, text in given.items()}


def asked(**given: str) -> Resolved:
    return scenario.seeded(None, flags(concurrency="1", requests="1", endpoint="chat", **given))


def test_its_cache_holds_the_largest_batch_of_the_levels() -> None:
    found = asked(max_batch_size="2,8").scenario
    assert server_options(found, plan.levels(found, bundled=True)).kv_slots == 8


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endpoint": "embeddings"}, "the bundled server speaks chat and completions"),
        ({"model": "m"}, "the bundled server's is --serve-model"),
    ],
)
def test_what_it_cannot_serve_is_refused(given: dict[str, str], words: str) -> None:
    found = scenario.seeded(None, flags(**{"concurrency": "1", "requests": "1", "endpoint": "chat", **given})).scenario
    with pytest.raises(UsageError, match=words):
        server_options(found, plan.levels(found, bundled=True))


def test_its_flags_do_nothing_at_a_url_but_a_variable_may_be_meant_for_other_runs() -> None:
    found = asked().scenario
    given = flags(threads="2", dtype="fp16")
    assert unused(found, given, bundled=False) == [
        "set for the bundled server, and so not used here: --dtype, --threads"
    ]
    assert unused(found, {"threads": Override("2", "LOADTEST_THREADS")}, bundled=False) == []
    assert unused(found, given, bundled=True) == []
