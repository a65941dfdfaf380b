"""Triton's generate extension: a text in, a text out, and no more said of it.

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md.
"""

from typing import Any
from urllib.parse import quote

from loadtest.endpoints.answer import Answer
from loadtest.endpoints.dialect import Get, Head, Settings
from loadtest.endpoints.lenient import clean, error_text, text_of
from loadtest.endpoints.objects import Objects, paragraphs
from loadtest.errors import TargetError
from loadtest.target import Known
from loadtest.workload.model import Ask

_NO_OUTPUT = {"model_name", "model_version", "id"}  # what an event without outputs still has


class Triton(Objects):
    """Completions of a model that is named in the path, as ``NAME`` or ``NAME/versions/N``."""

    path = "/v2/models"
    ends_cleanly = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.path = settings.path or self._path(settings.model)

    def request(self, ask: Ask) -> tuple[dict[str, Any], dict[str, Any]]:
        """See ``Objects``."""
        parameters = {"max_tokens": ask.max_tokens, "stream": self.streams}
        return {"parameters": parameters}, {"text_input": paragraphs(ask)}

    def head(self, ask: Ask) -> Head | None:
        """See ``Dialect``."""
        return None if ask.model is None else Head(self._path(ask.model))

    def take(self, answer: Answer, reply: dict[str, Any], stamp: int) -> bool:
        """See ``Objects``. A batch's texts are a list; an event without outputs only says that it is over."""
        text = reply.get("text_output")
        if isinstance(text, list):
            text = "".join(part for part in text if isinstance(part, str))
        if isinstance(text, str):
            answer.heard(stamp, text_of(text))
            return True
        answer.kept = answer.kept or ", ".join(sorted(reply.keys() - _NO_OUTPUT))
        return stamp > 0 and not answer.kept

    def found_nothing(self, answer: Answer) -> str | None:
        """See ``Dialect``."""
        if answer.texts or not answer.kept:
            return None
        return f"the answer has no text_output, but {clean(answer.kept)}: is this a model of text?"

    def _path(self, model: str) -> str:
        return f"/v2/models/{quote(model)}/{'generate_stream' if self.streams else 'generate'}"

    @classmethod
    def discover(cls, get: Get, model: str | None) -> Known:
        """See ``Dialect``. There is no list of models to be had by a GET."""
        if model is None:
            raise TargetError("/v2 lists no models; name one with --model, or in the URL: /v2/models/NAME")
        path = f"/v2/models/{quote(model)}"
        reply = get(path)
        if reply.status in (400, 404) and (words := error_text(reply.text.encode())):
            raise TargetError(f"{path} is not there: {reply.status} {words}; is --model right, and loaded?")
        return Known(model)
