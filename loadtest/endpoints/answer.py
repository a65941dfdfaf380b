"""What a response said, as the dialect reads it: token events with their stamps, usage, and how it ended."""

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the server gave them; None where it gave none."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None


class Answer:
    """Filled by a dialect, event by event. Stamps are ``perf_counter_ns``; 0 is "not yet".

    ``stamps`` has one entry for each event that brought generated output of any channel (text, reasoning, refusal,
    tool call), and only for those. ``ended`` is the dialect's own sign that nothing follows (``[DONE]``).
    """

    __slots__ = ("bad_events", "ended", "error", "finish_reason", "first_answer", "stamps", "texts", "usage")

    def __init__(self) -> None:
        self.stamps: list[int] = []
        self.first_answer = 0
        self.texts: list[str] = []
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.ended = False
        self.error: str | None = None
        self.bad_events = 0
