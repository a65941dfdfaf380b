"""The OpenAI dialect on its way out: the events of a stream, and whole answers. No sockets here.

Format: OpenAI API reference, "Completions" and "Chat".
"""

import json
import time
import uuid
from typing import Any

from servers.engine import FinishReason, Output
from servers.errors import RequestError
from servers.protocol import Request
from servers.sampling import Scores
from servers.tokenizer import Tokenizer

_OBJECTS = {
    ("chat", True): "chat.completion.chunk",
    ("chat", False): "chat.completion",
    ("completions", True): "text_completion",
    ("completions", False): "text_completion",
}


class Answer:
    """Writes the answers to one request. Per token only its text is encoded; the rest is made once.

    ``show_cached``: whether the counts say how much of the prompts was already in the cache.
    """

    def __init__(self, request: Request, *, show_cached: bool = False) -> None:
        self._request = request
        self._show_cached = show_cached
        self._chat = request.kind == "chat"
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": _OBJECTS[request.kind, request.stream],
            "created": int(time.time()),
            "model": request.model,
        }
        common = json.dumps(self._head, separators=(",", ":"))[:-1]
        field = '"delta":{"content":' if self._chat else '"text":'
        null_usage = ',"usage":null' if request.include_usage else ""
        self._before = [
            f'data: {common},"choices":[{{"index":{i},{field}'.encode() for i in range(len(request.generations))
        ]
        end = "}" if self._chat else ""
        self._after = f'{end},"logprobs":null,"finish_reason":null}}]{null_usage}}}\n\n'.encode()
        self._offsets = [0] * len(request.generations)

    def opening(self) -> bytes:
        """What precedes the first token of a stream: for chat the event that names the role, one for each answer."""
        if not self._chat:
            return b""
        opening = {"delta": {"role": "assistant", "content": ""}}
        return b"".join([self._event(i, opening, None) for i in range(len(self._request.generations))])

    def piece(self, output: Output) -> bytes:
        """The events of one output: its text, if it has any, and the reason, if it is the last."""
        data, index = b"", output.generation.index
        if output.scores:
            content = {"delta": {"content": output.text}} if self._chat else {"text": output.text}
            data = self._event(index, content, None, self._logprobs(index, [output.scores]))
        elif output.text:
            data = self._before[index] + json.dumps(output.text).encode() + self._after
        if output.finish:
            data += self._event(index, {"delta": {}} if self._chat else {"text": ""}, output.finish)
        return data

    def closing(self) -> bytes:
        """What ends a stream: the counts if they were asked for, the end sign."""
        counts = b""
        if self._request.include_usage:
            document = {**self._head, "choices": [], "usage": self.usage()}
            counts = b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
        return counts + b"data: [DONE]\n\n"

    def whole(self, outputs: list[Output]) -> dict[str, Any]:
        """The body of an answer that is not streamed, from all its outputs."""
        pieces: list[list[Output]] = [[] for _ in self._request.generations]
        for output in outputs:
            pieces[output.generation.index].append(output)
        choices = []
        for generation, own in zip(self._request.generations, pieces, strict=True):
            text = "".join([output.text for output in own])
            if self._chat:
                content: dict[str, Any] = {"message": {"role": "assistant", "content": text, "refusal": None}}
            else:
                content = {"text": text}
            thought = [output.scores for output in own if output.scores]
            logprobs = None if generation.logprobs is None else self._logprobs(generation.index, thought)
            choices.append(
                {"index": generation.index, **content, "logprobs": logprobs, "finish_reason": own[-1].finish}
            )
        return {**self._head, "choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Token counts of finished answers. A prompt counts once, however many answers it has."""
        generations = self._request.generations
        prompts = generations[:: self._request.n]
        prompt = sum(len(generation.prompt) for generation in prompts)
        answer = sum(generation.produced for generation in generations)
        counts: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        }
        if self._show_cached:
            counts["prompt_tokens_details"] = {"cached_tokens": sum(generation.cached for generation in prompts)}
        return counts

    def failure(self, error: RequestError) -> bytes:
        """The event that ends a stream which broke after it had begun; no end sign follows it."""
        return b"data: " + json.dumps(error.body(), separators=(",", ":")).encode() + b"\n\n"

    def _event(self, index: int, content: dict[str, Any], finish: FinishReason | None, logprobs: Any = None) -> bytes:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}
        document = {**self._head, "choices": [choice]}
        if self._request.include_usage:
            document["usage"] = None
        return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"

    def _logprobs(self, index: int, thought: list[Scores]) -> dict[str, Any]:
        """Log-probabilities in the form of the endpoint: one entry for each token that ``usage`` counts."""
        tokenizer = self._request.generations[0].tokenizer
        if self._chat:
            content = [
                {
                    **_entry(tokenizer, each.token, each.logprob),
                    "top_logprobs": [_entry(tokenizer, token, logprob) for token, logprob in each.top],
                }
                for each in thought
            ]
            return {"content": content, "refusal": None}
        tokens = [_shown(tokenizer, each.token) for each in thought]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [_finite(each.logprob) for each in thought],
            "top_logprobs": [{_shown(tokenizer, i): _finite(logprob) for i, logprob in each.top} for each in thought],
            "text_offset": offsets,
        }


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    text = _shown(tokenizer, token)
    # A token that is no whole character has no text of its own, and so none whose bytes could be told.
    return {"token": text, "logprob": _finite(logprob), "bytes": None if "\ufffd" in text else [*text.encode()]}


def _shown(tokenizer: Tokenizer, token: int) -> str:
    """One token as text, by itself."""
    decoder = tokenizer.decoder()
    return decoder.push(token) + decoder.finish()


def _finite(logprob: float) -> float:
    """OpenAI's API gives -9999 for what has no probability."""
    return max(logprob, -9999.0)
