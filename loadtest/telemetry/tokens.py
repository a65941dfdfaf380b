"""The tokens of a level as the server counts them, held against those of its records. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from loadtest.records import Record
from loadtest.telemetry.figures import Counted, Gpu, Server

APART = 0.02
# Below so many tokens apart it is one or two answers, such as those of somebody's health check.
APART_TOKENS = 64


class Told(NamedTuple):
    """Tokens of a level by its records; None where it is not known of each, or one failed.

    The server may have written what a failed request did not get. ``by_usage``: the server itself told all of them.
    """

    input: int | None
    output: int | None
    by_usage: bool


UNKNOWN = Told(None, None, by_usage=False)


def told(records: Sequence[Record]) -> Told:
    """What the records of a level, warm-up and probes included, say of its tokens."""
    from loadtest.rows import values  # noqa: PLC0415  # numpy comes with it, and no request waits for that

    names = ("sent_ms", "outcome", "input_tokens", "output_tokens", "token_source")
    asked: int | None = 0
    answered: int | None = 0
    by_usage = True
    for sent_ms, outcome, in_, out, source in zip(*(values(records, name) for name in names), strict=True):
        if sent_ms is None:
            continue
        if outcome != "ok":
            return UNKNOWN
        asked = None if asked is None or in_ is None else asked + in_
        answered = None if answered is None or out is None else answered + out
        by_usage &= source == "usage"
    return Told(asked, answered, by_usage)


def counted(server: Server, by: Told) -> Server:
    """``server`` with what the records say beside its own counts."""
    return msgspec.structs.replace(
        server,
        prompt_tokens=_beside(server.prompt_tokens, by.input),
        generation_tokens=_beside(server.generation_tokens, by.output),
    )


def apart(tokens: Counted | None) -> float | None:
    """By which share of the client's count the server's is more, or (negative) less; None: alike, or not known."""
    if tokens is None or not tokens.client:
        return None
    more = tokens.server - tokens.client
    return more / tokens.client if abs(more) > max(APART * tokens.client, APART_TOKENS) else None


def short(server: Server) -> bool:
    """Whether the server has counted fewer output tokens than its answers had."""
    return (apart(server.generation_tokens) or 0.0) < 0


def unsound(server: Server | None, by: Told) -> str | None:
    """Why the token counts of the level cannot be right, if that is so.

    More on the server's side are other users', and no fault of the figures. Fewer than its own ``usage`` told are one.
    Where the counts are a tokenizer's, that may be another than the server's.
    """
    if server is None or server.generation_tokens is None or not by.by_usage or not short(server):
        return None
    tokens = server.generation_tokens
    return (
        f"the server's counts disagree: its answers said that they had {tokens.client:,} output tokens, and its "
        f"metrics grew by {tokens.server:,}, limit {APART:.0%} apart; see that --metrics is of all that serves the "
        "address, or give off"
    )


def energy(gpus: Sequence[Gpu], by: Told) -> float | None:
    """Joules that all GPUs took for an output token, over the whole level; None where one of both is unknown."""
    known = [gpu.energy_j for gpu in gpus if gpu.energy_j is not None]
    return round(sum(known) / by.output, 4) if by.output and known and len(known) == len(gpus) else None


def _beside(server: Counted | None, client: int | None) -> Counted | None:
    return None if server is None else Counted(server=server.server, client=client)
