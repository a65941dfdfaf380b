"""The tokens of a level as the server counts them, held against those of its records. Pure."""

from collections.abc import Sequence

import msgspec

from loadtest.records import Record
from loadtest.telemetry.figures import Counted, Gpu, Server

APART = 0.02
# Below so many tokens apart it is one or two answers, such as of somebody's health check.
APART_TOKENS = 64


def counted(server: Server, records: Sequence[Record]) -> Server:
    """``server`` with what the records of the level say beside its own counts."""
    asked = _total([record.input_tokens for record in _sent(records)], records)
    return msgspec.structs.replace(
        server,
        prompt_tokens=_beside(server.prompt_tokens, asked),
        generation_tokens=_beside(server.generation_tokens, _output(records)),
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


def unsound(server: Server | None, records: Sequence[Record]) -> str | None:
    """Why the token counts of the level cannot be right, if that is so.

    More on the server's side are other users', and no fault of the figures. Fewer than its own ``usage`` told are one.
    Where the counts are a tokenizer's it may be that which is another than the server's, and nothing is said.
    """
    sources = {record.token_source for record in _sent(records)}
    if server is None or not short(server) or sources != {"usage"}:
        return None
    tokens = server.generation_tokens
    assert tokens is not None
    return (
        f"the server's counts disagree: its answers were said to have {tokens.client:,} output tokens and its metrics "
        f"grew by {tokens.server:,}, limit {APART:.0%} apart; see that --metrics is of all that serves this address"
    )


def energy(gpus: Sequence[Gpu], records: Sequence[Record]) -> float | None:
    """Joules that all GPUs took for an output token, over the whole level; None where one of both is unknown."""
    joules = [gpu.energy_j for gpu in gpus]
    tokens = _output(records)
    if not joules or not tokens or any(each is None for each in joules):
        return None
    return round(sum(each or 0.0 for each in joules) / tokens, 4)


def _sent(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.sent_ms is not None]


def _output(records: Sequence[Record]) -> int | None:
    return _total([record.output_tokens for record in _sent(records)], records)


def _total(counts: Sequence[int | None], records: Sequence[Record]) -> int | None:
    """None where it is not known of every request: the server may have written what a failed one did not get."""
    if any(record.outcome != "ok" for record in _sent(records)) or None in counts or not counts:
        return None
    return sum(count or 0 for count in counts)


def _beside(server: Counted | None, client: int | None) -> Counted | None:
    return None if server is None else Counted(server=server.server, client=client)
