"""How prompts get the lengths asked: by a tokenizer, by the target's own word, or by what it counts when asked."""

import math
import statistics
import time
from collections.abc import Sequence

import msgspec

from loadtest.endpoints.answer import Answer
from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Dialect, Settings
from loadtest.errors import TargetError
from loadtest.records import RequestError, lasting
from loadtest.schedule import stream
from loadtest.target import Facts, Target
from loadtest.workload.model import Ask, Message
from loadtest.workload.prompts import Prompts
from loadtest.workload.tokens import Fit, Tokens, by_tokenizer, measure

_SAMPLES, _PLACES = 6, 8  # requests that are counted for each corpus, and from how many places of it each is
_T = 2.57  # 97.5 % of Student's t with 5 degrees of freedom
_WORDS_SHOWN = 80  # characters
_PAUSES_S = (0.5, 1.0, 2.0)  # after a refusal that the next request may not meet
_WORDS = 8  # of the texts that tell what stands around them


def sized(
    target: Target, facts: Facts, speech: Settings, folder: str | None, corpora: Sequence[str | None], seed: int
) -> Tokens:
    """What is known of the target's tokens, once what can be known has been found out.

    ``folder`` is the user's tokenizer. Of None the target's own word is taken; where it gave none, a few small requests
    show what it counts in texts of each of ``corpora``. No run fails for that: ``how`` says what came of it.

    Raises:
        UsageError: the tokenizer or a corpus cannot be used.
    """
    if folder is None and (facts.tokens.kind != "words" or not corpora):
        return facts.tokens
    spoken = speak(msgspec.structs.replace(speech, stream=False, counting=True))
    counter = _Counter(target, spoken, seed)
    if folder is None:
        return _fitted(counter, corpora)
    tokens, whole = by_tokenizer(folder, chat=spoken.converses)
    return tokens if whole or not corpora else _completed(tokens, counter, corpora[0])


class _Uncounted(Exception):
    """The endpoint did not say how long a prompt was; ``str(error)`` says what it did."""


class _Counter:
    """Asks the target how many tokens it counts."""

    def __init__(self, target: Target, dialect: Dialect, seed: int) -> None:
        self._target = target
        self._dialect = dialect
        self._rng = stream(seed, "sizing")

    def overhead(self) -> int:
        """The tokens around a text: those of a text, less what another has more that is the same text twice."""
        text = Prompts(Tokens("words"), None, 0).text(_WORDS, self._rng)
        return max(0, 2 * self.count(text) - self.count(f"{text} {text}"))

    def samples(self, prompts: Prompts) -> dict[str, int]:
        """Texts from all over a corpus, and the tokens of a request with each."""
        shift = self._rng.random()
        texts = [prompts.sample(_PLACES, (number + shift) / _SAMPLES) for number in range(_SAMPLES)]
        return {text: self.count(text) for text in texts}

    def count(self, text: str) -> int:
        """The tokens of a request with that text.

        Raises:
            _Uncounted: the endpoint refused, or did not say.
        """
        body = msgspec.json.decode(self._dialect.body(Ask((Message("user", text),), self._dialect.fewest)))
        try:
            reply = self._target.ask(self._dialect.path, body)
            for pause_s in _PAUSES_S:
                if reply.status < 400 or lasting(RequestError("http_status", "", reply.status)):
                    break
                time.sleep(pause_s)
                reply = self._target.ask(self._dialect.path, body)
        except TargetError as error:
            raise _Uncounted(str(error)) from None
        if reply.status != 200:
            words = self._dialect.error_text(reply.text.encode()) or reply.text
            raise _Uncounted(f"the endpoint answered {reply.status} {_short(words)}")
        answer = Answer()
        try:
            self._dialect.whole(answer, reply.text.encode())
        except ValueError as error:
            raise _Uncounted(f"the endpoint's answer cannot be read: {_short(str(error))}") from None
        counted = answer.usage.input_tokens if answer.usage else None
        if not counted:
            raise _Uncounted("the endpoint does not say how many it counts")
        return counted


def _short(words: str) -> str:
    """Of a server's words what fits into a warning."""
    line = " ".join(words.split())
    return f"{line[:_WORDS_SHOWN]}…" if len(line) > _WORDS_SHOWN else line


def _fitted(counter: _Counter, corpora: Sequence[str | None]) -> Tokens:
    """By what the endpoint counts."""
    try:
        overhead = counter.overhead()
        fits = tuple(_fit(counter, overhead, corpus) for corpus in corpora)
    except _Uncounted as why:
        return Tokens("words", how=f"one word a token, since {why}; name its --tokenizer for exact lengths")
    most = max(fit.error for fit in fits)
    return Tokens("words", fits=fits, how=f"by what the endpoint counted in a few small requests, ± {most:.1%}")


def _fit(counter: _Counter, overhead: int, corpus: str | None) -> Fit:
    counted = counter.samples(Prompts(Tokens("words"), corpus, 0))
    words = measure(Tokens("words"), corpus).counts([*counted], alone=True)
    own = [count - overhead for count in counted.values()]
    if min(own) <= 0 or (max(own) == min(own) and max(words) > min(words)):
        raise _Uncounted("the endpoint counts the same for whatever text")
    per_word = sum(own) / sum(words)
    each = [count / size for count, size in zip(own, words, strict=True)]
    error = _T * statistics.stdev(each) / math.sqrt(len(each)) / per_word if len(each) > 1 else 1.0
    return Fit(corpus, overhead, per_word, error)


def _completed(tokens: Tokens, counter: _Counter, corpus: str | None) -> Tokens:
    """With the tokens that the server adds around a message, where no template tells."""
    prompts = Prompts(tokens, corpus, 0)
    try:
        added = [count - (prompts.count(text) or 0) for text, count in counter.samples(prompts).items()]
    except _Uncounted as why:
        how = f"by {tokens.path}, without what the server adds around a message, since {why}"
        return msgspec.structs.replace(tokens, how=how)
    overhead, spread = max(0, round(statistics.median(added))), max(added) - min(added)
    exactly = "exactly" if not spread else f"± {spread} tokens, since the two do not count alike"
    how = f"by {tokens.path} and {overhead} tokens that the endpoint adds around a message, {exactly}"
    return msgspec.structs.replace(tokens, overhead=overhead, how=how)
