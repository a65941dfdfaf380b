"""llama.cpp's own completions: text and ``stop`` in every event, the counts with the last.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md (completion, props).
"""

from pathlib import PurePath
from typing import Any

from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.dialect import Get
from loadtest.endpoints.lenient import count_of, text_of
from loadtest.endpoints.objects import Objects, paragraphs
from loadtest.errors import TargetError
from loadtest.target import Known
from loadtest.workload.model import Ask

_STOPPED = {"stopped_eos": "eos", "stopped_limit": "limit", "stopped_word": "word"}  # before there was stop_type


class LlamaCpp(Objects):
    """Completions of the length asked.

    ``cache_prompt`` is off unless the user's keys have it: a slot that has seen a like prompt answers sooner, and whose
    slot that is depends on the order in which requests came.
    """

    path = "/completion"
    endings = (path,)
    sign = "stop: true"

    def request(self, ask: Ask) -> tuple[dict[str, Any], dict[str, Any]]:
        """See ``Objects``."""
        ours: dict[str, Any] = {
            "n_predict": ask.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "cache_prompt": False,
        }
        asked = {"prompt": paragraphs(ask), "stream": self.streams}
        (ours if ask.model is None else asked)["model"] = ask.model or self.settings.model
        return ours, asked

    def take(self, answer: Answer, reply: dict[str, Any], stamp: int) -> bool:
        """See ``Objects``."""
        if not isinstance(reply.get("content"), str) and "stop" not in reply:
            return False
        answer.heard(stamp, text_of(reply.get("content")))
        if reply.get("stop") is True:
            answer.ended = True
            old = next((name for flag, name in _STOPPED.items() if reply.get(flag) is True), None)
            answer.finish_reason = text_of(reply.get("stop_type")) or old
            answer.usage = _usage(reply)
        return True

    @classmethod
    def discover(cls, get: Get, model: str | None) -> Known:
        """See ``Dialect``. Servers of before /v1/models tell in /props which file they have read."""
        try:
            return super().discover(get, model)
        except TargetError:
            reply = get("/props")
            props = reply.json if reply.status == 200 and isinstance(reply.json, dict) else {}
            named = props.get("model_alias") or PurePath(str(props.get("model_path") or "")).name
            if not named:
                raise
        return Known(str(named))


def _usage(reply: dict[str, Any]) -> Usage:
    """The counts. ``tokens_cached`` is not what it is called: it counts the answer too."""
    inputs, timings = count_of(reply.get("tokens_evaluated")), reply.get("timings")
    cached = None
    if isinstance(timings, dict):
        cached, worked_off = count_of(timings.get("cache_n")), count_of(timings.get("prompt_n"))
        if cached is None and inputs is not None and worked_off is not None:
            cached = max(0, inputs - worked_off)
    return Usage(inputs, count_of(reply.get("tokens_predicted")), cached)
