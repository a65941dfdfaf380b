"""How prompts get the lengths asked: by a tokenizer, by the target's own word, or by what it counts when asked."""

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from loadtest.endpoints.openai import Kind, OpenAI, error_text
from loadtest.errors import TargetError
from loadtest.schedule import stream
from loadtest.target import Facts, Target
from loadtest.workload.model import Ask, Message
from loadtest.workload.prompts import Prompts
from loadtest.workload.tokens import Fit, Tokens, by_tokenizer

_SIZES = (8, 32, 96, 192)  # words or tokens of the requests that are counted
_FEWEST = 3  # counts that tell a straight line from none


def sized(
    target: Target, facts: Facts, endpoint: Kind, folder: str | None, corpora: Sequence[str | None], seed: int
) -> Tokens:
    """What is known of the target's tokens, once what can be known has been found out.

    ``folder`` is the user's tokenizer. Of None the target's own word is taken; where it gave none, a few small requests
    show what it counts in texts of each of ``corpora``. No run fails for that: ``how`` says what came of it.

    Raises:
        UsageError: the tokenizer or a corpus cannot be used.
    """
    if folder is None and (facts.tokens.kind != "words" or not corpora):
        return facts.tokens
    counter = _Counter(target, OpenAI(endpoint, facts.model, stream=False, owner=facts.owner), seed)
    if folder is None:
        return _fitted(counter, corpora)
    tokens, whole = by_tokenizer(folder, chat=endpoint == "chat")
    return tokens if whole or not corpora else _completed(tokens, counter, corpora[0])


class _Uncounted(Exception):
    """The endpoint did not say how long a prompt was; ``str(error)`` says what it did."""


class _Counter:
    """Asks the target how many tokens it counts."""

    def __init__(self, target: Target, dialect: OpenAI, seed: int) -> None:
        self._target = target
        self._dialect = dialect
        self._seed = seed

    def counts(self, prompts: Prompts, corpus: str | None) -> dict[str, int]:
        """Texts, the shorter first, and the tokens of a request with each; a model may have no room for the longest.

        Raises:
            _Uncounted: the endpoint refused, or did not say.
        """
        found: dict[str, int] = {}
        for size in _SIZES:
            text = prompts.text(size, stream(self._seed, "sizing", corpus, size))
            try:
                found[text] = self._count(text)
            except _Uncounted:
                if len(found) < _FEWEST:
                    raise
        return found

    def _count(self, text: str) -> int:
        body = msgspec.json.decode(self._dialect.body(Ask((Message("user", text),), 1)))
        try:
            reply = self._target.ask(self._dialect.path, body)
        except TargetError as error:
            raise _Uncounted(str(error)) from None
        if reply.status != 200:
            words = error_text(reply.text.encode()) or reply.text
            raise _Uncounted(f"the endpoint answered {reply.status} {' '.join(words.split())[:200]}")
        usage: Any = reply.json.get("usage") if isinstance(reply.json, dict) else None
        counted: Any = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if type(counted) is not int or counted <= 0:
            raise _Uncounted("the endpoint does not say how many it counts")
        return int(counted)


def _fitted(counter: _Counter, corpora: Sequence[str | None]) -> Tokens:
    """By straight lines through what the endpoint counts."""
    try:
        fits = tuple(_fit(counter, corpus) for corpus in corpora)
    except _Uncounted as why:
        return Tokens("words", how=f"one word a token, since {why}; name its --tokenizer for exact lengths")
    most = max(fit.error for fit in fits)
    how = f"by what the endpoint counted in a few small requests, ± {most:.1%}"
    return Tokens("words", fits=fits, how=how)


def _fit(counter: _Counter, corpus: str | None) -> Fit:
    counted = [*counter.counts(Prompts(Tokens("words"), corpus, 0), corpus).values()]
    sizes = _SIZES[: len(counted)]
    per_word, added = statistics.linear_regression(sizes, counted)
    if per_word <= 0:
        raise _Uncounted("the endpoint counts the same for short and long texts")
    # Of the shortest text a token more or less is a large share, and says nothing of the others.
    off = [abs(added + per_word * size - count) / count for size, count in zip(sizes, counted, strict=True)][1:]
    return Fit(corpus, added, per_word, max(off))


def _completed(tokens: Tokens, counter: _Counter, corpus: str | None) -> Tokens:
    """With the tokens that the server adds around a message, where no template tells."""
    prompts = Prompts(tokens, corpus, 0)
    try:
        added = [count - (prompts.count(text) or 0) for text, count in counter.counts(prompts, corpus).items()]
    except _Uncounted as why:
        how = f"by {tokens.path}, without what the server adds around a message, since {why}"
        return msgspec.structs.replace(tokens, how=how)
    overhead, spread = round(statistics.median(added)), max(added) - min(added)
    exactly = "exactly" if not spread else f"± {spread} tokens, since the two do not count alike"
    how = f"by {tokens.path} and {overhead} tokens that the endpoint adds around a message, {exactly}"
    return msgspec.structs.replace(tokens, overhead=max(0, overhead), how=how)
