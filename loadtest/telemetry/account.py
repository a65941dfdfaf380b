"""A level with what was seen while it was played: the same account of the looks of a run and of those it left. Pure."""

import math
from collections.abc import Sequence

import msgspec

from loadtest.records import Record
from loadtest.result import LevelResult
from loadtest.telemetry import figures, here, tokens
from loadtest.telemetry.figures import Looks, Span
from loadtest.telemetry.throttle import REASONS
from loadtest.telemetry.trail import Eye, Sighted


def with_sight(level: LevelResult, records: Sequence[Record], sighted: Sighted) -> LevelResult:
    """``level`` with the figures of what was seen, and its tokens held against the server's once all have ended.

    Where the server has counted fewer than it has told, the figures rest on nothing, and are not valid.
    """
    own = sighted.setting
    start, measured_s = level.window.warmup_s * 1000, level.window.measured_s
    end = math.inf if measured_s is None else start + measured_s * 1000
    # Of a level that goes on, or was cut short, counters are those of its looks.
    span = Span(start, end, -math.inf if own.over_ms is None else own.over_ms)
    by = tokens.UNKNOWN if own.over_ms is None else tokens.told(records)

    def names(eye: Eye) -> list[str]:
        return list(dict.fromkeys(name for _, seen in sighted.looks.get(eye, ()) for name in seen))

    def looks(eye: Eye, name: str) -> Looks:
        return [((at - own.t0_ns) / 1e6, seen[name]) for at, seen in sighted.looks[eye] if name in seen]

    server = host = None
    for kind in names("server"):
        server = tokens.counted(figures.server(kind, own.url or "", looks("server", kind), span), by)
    if here.NAME in names("host"):
        host = figures.host(looks("host", here.NAME), span)
    gpus = [figures.gpu(name, own.models.get(name), looks("gpus", name), REASONS, span) for name in names("gpus")]
    client = level.client
    if (unsound := tokens.unsound(server, by)) is not None:
        client = msgspec.structs.replace(client, valid=False, reasons=[*client.reasons, unsound])
    return msgspec.structs.replace(
        level,
        server=server,
        gpus=gpus,
        energy_per_output_token_j=tokens.energy(gpus, by),
        host=host,
        client=client,
    )
