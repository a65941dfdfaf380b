"""Ollama's own API: one JSON object a line, the counts in the last.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md (generate, chat, tags).
"""

import json
from typing import Any

from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.dialect import Get
from loadtest.endpoints.lenient import clean, count_of, text_of, words
from loadtest.endpoints.objects import Objects, paragraphs
from loadtest.errors import TargetError
from loadtest.target import Known
from loadtest.workload.model import Ask


class Ollama(Objects):
    """Chat."""

    path = "/api/chat"
    converses = True
    framing = "ndjson"
    sign = "done: true"
    endings = (path,)
    greedy = '{"options": {"temperature": 0}}'

    def request(self, ask: Ask) -> tuple[dict[str, Any], dict[str, Any]]:
        """See ``Objects``."""
        ours: dict[str, Any] = {"options": {"num_predict": ask.max_tokens}}
        asked = {"stream": self.streams, **self._prompt(ask)}
        (ours if ask.model is None else asked)["model"] = ask.model or self.settings.model
        return ours, asked

    def take(self, answer: Answer, reply: dict[str, Any], stamp: int) -> bool:
        """See ``Objects``."""
        message, done = reply.get("message"), reply.get("done")
        if isinstance(message, dict):
            said = text_of(message.get("content")) or _call_text(message.get("tool_calls"))
            answer.heard(stamp, said, text_of(message.get("thinking")))
        elif "response" in reply:
            answer.heard(stamp, text_of(reply["response"]), text_of(reply.get("thinking")))
        elif done is not True:
            return False
        if done is True:
            answer.ended = True
            answer.finish_reason = text_of(reply.get("done_reason"))
            answer.usage = Usage(count_of(reply.get("prompt_eval_count")), count_of(reply.get("eval_count")))
        return True

    def _prompt(self, ask: Ask) -> dict[str, Any]:
        if not ask.images:
            return {"messages": ask.messages}
        last = ask.messages[-1]
        pictures = [url.partition(";base64,")[2] or url for url in ask.images]
        return {"messages": [*ask.messages[:-1], {"role": last.role, "content": last.content, "images": pictures}]}

    @classmethod
    def discover(cls, get: Get, model: str | None) -> Known:
        """See ``Dialect``. A model that is not there would only show in the first request, and is pulled by no run."""
        reply = get("/api/tags")
        listed = reply.json.get("models") if reply.status == 200 and isinstance(reply.json, dict) else None
        names = [str(card["name"]) for card in listed or () if isinstance(card, dict) and card.get("name")]
        if model is None and not names:
            said = words(reply.text.encode())
            raise TargetError(f"/api/tags names no model: {reply.status} {said}; pull one, or name it with --model")
        if model is not None and names and not {model, f"{model}:latest"} & {*names}:
            raise TargetError(f"/api/tags has no model {model!r}; there are {', '.join(names[:20])}")
        return Known(model or names[0])


class OllamaGenerate(Ollama):
    """Completions of a plain text, by the model's own template unless ``raw`` is in the body's keys."""

    path = "/api/generate"
    converses = False
    endings = (path,)

    def _prompt(self, ask: Ask) -> dict[str, Any]:
        return {"prompt": paragraphs(ask)}


def _call_text(calls: Any) -> str | None:
    """What calls of tools say: their names and arguments."""
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return clean(
        "".join(
            f"{function.get('name') or ''}{json.dumps(function.get('arguments'))}"
            for function in functions
            if isinstance(function, dict)
        )
    )
