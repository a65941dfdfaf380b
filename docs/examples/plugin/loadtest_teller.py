"""What a teller speaks: POST /tell, and events such as {"piece": {"text": "…"}} until BYE."""

import json

from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.dialect import Dialect
from loadtest.workload.model import Ask


class Teller(Dialect):
    """Bodies out, events in."""

    path = "/tell"

    def body(self, ask: Ask) -> bytes:
        """One request's body."""
        prompt = "\n\n".join(message.content for message in ask.messages)
        return json.dumps({"q": prompt, "limit": ask.max_tokens}).encode()

    def event(self, answer: Answer, data: bytes, stamp: int) -> None:
        """Take in one event, which was read at the instant ``stamp``."""
        if data == b"BYE":
            answer.ended = True
            return
        try:
            event = json.loads(data)
            text, written = event.get("piece", {}).get("text"), event.get("usage", {}).get("written")
        except (ValueError, AttributeError):
            answer.bad_events += 1
            return
        if isinstance(written, int):
            answer.usage = Usage(output_tokens=written)
        if isinstance(text, str) and text:
            answer.texts.append(text)
            answer.stamps.append(stamp)
            answer.first_answer = answer.first_answer or stamp
