"""What the replay servers of the cases counted."""

import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def stats() -> Callable[[str, str], Any]:
    """What a replay server counted for one case, or for all by name."""

    def ask(url: str, case: str = "") -> Any:
        with urllib.request.urlopen(f"{url}/stats/{case}") as reply:
            return json.load(reply)

    return ask
