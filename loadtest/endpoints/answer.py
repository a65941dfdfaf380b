"""What a response said, as the dialect reads it: token events with their stamps, usage, and how it ended."""

from typing import Any

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the server gave them; None where it gave none."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None


class Answer:
    """Filled by a dialect, event by event. Stamps are ``perf_counter_ns``; 0 is "not yet".

    ``stamps`` has one entry for each event that brought generated output of any channel (text, reasoning, refusal,
    tool call), and only for those. ``thoughts`` are the places in ``texts`` of those that are reasoning. ``ended`` is
    the dialect's own sign that nothing follows (``[DONE]``). ``samples`` is how many items the answer is of, where it
    makes no text and says that. ``kept`` is for the dialect, from one event to the next.
    """

    __slots__ = (
        "bad_events",
        "ended",
        "error",
        "finish_reason",
        "first_answer",
        "kept",
        "samples",
        "stamps",
        "texts",
        "thoughts",
        "usage",
    )

    def __init__(self) -> None:
        self.stamps: list[int] = []
        self.first_answer = 0
        self.texts: list[str] = []
        self.thoughts: list[int] = []
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.ended = False
        self.error: str | None = None
        self.bad_events = 0
        self.samples: int | None = None
        self.kept: Any = None

    def heard(self, stamp: int, said: str | None, thought: str | None = None) -> None:
        """Take in what one event brought: text, reasoning, both or nothing."""
        if thought:
            self.thoughts.append(len(self.texts))
            self.texts.append(thought)
        if said:
            self.texts.append(said)
            self.first_answer = self.first_answer or stamp
        if said or thought:
            self.stamps.append(stamp)

    @property
    def said(self) -> str:
        """The answer without its reasoning, as it stands in the history of a conversation."""
        if not self.thoughts:
            return "".join(self.texts)
        thoughts = set(self.thoughts)
        return "".join(text for place, text in enumerate(self.texts) if place not in thoughts)
