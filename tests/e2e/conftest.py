from collections.abc import Callable, Iterator

import pytest

from tests.e2e.scripted import Answer, Scripted


@pytest.fixture
def scripted() -> Iterator[Callable[[Answer], Scripted]]:
    """Starts servers that answer as they are told, and stops them."""
    servers: list[Scripted] = []

    def start(answer: Answer) -> Scripted:
        servers.append(Scripted(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
