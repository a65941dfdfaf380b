"""The ids by which traces of both sides name a request (W3C Trace Context). Pure.

They follow from the run's id and the request's, so that spans made afterwards from the journal are the ones that the
server was told of in the header ``traceparent``.
"""

import hashlib

HEADER = "traceparent"


def of_probes(run: str) -> str:
    """What stands for the run's id in those of probes, which count from 0 like the load's own requests."""
    return f"{run}/probe"


def ids(run: str, level: int, request: int) -> tuple[str, str]:
    """The trace id (32 hex digits) and the span id (16) of a request, by its level's place and its own id in it."""
    digest = hashlib.blake2b(f"{run}/{level}/{request}".encode(), digest_size=24).hexdigest()
    return digest[:32], digest[32:]


def traceparent(run: str, level: int, request: int) -> str:
    """The value of the header: version 00, sampled."""
    trace, span = ids(run, level, request)
    return f"00-{trace}-{span}-01"
