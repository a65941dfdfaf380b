"""One request of the plan, before there is any text of it."""

import random
from typing import Literal

import msgspec


class Request(msgspec.Struct, frozen=True):
    """What one request asks, and the random stream that its text is written from.

    ``workload`` is its place in the level's mix. Lengths of None are those of ``row``, the row of the workload's data
    or trace that it plays. ``model`` is named only where the workload asks several. Of a session, ``session`` and
    ``turn`` (from 1) say where it stands, ``think_s`` how long after the previous answer it comes, and ``ends`` that it
    is the last turn, and why. ``samples`` are asked at once, each of these lengths; ``others`` are the rows of all but
    the first.
    """

    id: int
    input_tokens: int | None
    output_tokens: int | None
    rng: random.Random
    workload: int = 0
    session: int | None = None
    turn: int | None = None
    row: int | None = None
    model: str | None = None
    think_s: float = 0.0
    ends: Literal["completed", "abandoned"] | None = None
    samples: int = 1
    others: tuple[int, ...] = ()
