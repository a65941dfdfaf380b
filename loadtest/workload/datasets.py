"""What is in a data file: its rows made into turns, whatever the file calls them.

    sharegpt      {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}, …]}
    chat          {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}, …]}
    openai-batch  {"custom_id": "…", "method": "POST", "url": "/v1/chat/completions", "body": {…}}
    jsonl, csv, parquet  a row with a prompt, and as far as they are there the other ``COLUMNS``
    text          a prompt in each line

The first four are JSON Lines or one JSON array.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec

from loadtest.errors import ScenarioError
from loadtest.workload import sources
from loadtest.workload.lengths import MOST
from loadtest.workload.model import Data, DataFormat, Message, Row, Turn
from loadtest.workload.sources import Skip

COLUMNS: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "instruction", "text"),
    "system": ("system", "system_prompt"),
    "answer": ("answer", "response", "completion", "output"),
    "input_tokens": ("input_tokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "max_tokens", "max_completion_tokens", "completion_tokens"),
    "messages": ("messages", "conversations", "conversation", "items"),
    "session": ("session", "session_id"),
}
"""What a row can have, and the columns that it is looked for in, the first that is there, unless the user names one."""

_FORMATS: dict[str, DataFormat] = {".csv": "csv", ".parquet": "parquet", ".txt": "text"}
_USER, _ASSISTANT, _SYSTEM = "user", "assistant", "system"
_ROLES = {
    "user": _USER, "human": _USER, "prompter": _USER,
    "assistant": _ASSISTANT, "gpt": _ASSISTANT, "chatgpt": _ASSISTANT, "bot": _ASSISTANT, "model": _ASSISTANT,
    "bing": _ASSISTANT, "bard": _ASSISTANT,
    "system": _SYSTEM, "developer": _SYSTEM,
}  # fmt: skip
# Of a batch file's body: what is made anew for each request, or belongs to the endpoint that it was written for.
_OWN_KEYS = {"model", "messages", "prompt", "max_tokens", "max_completion_tokens", "stream", "stream_options"}
_EMPTY = Skip("empty prompt")
_MOST_TURNS = 1000  # of one session in rows: a column that is the same everywhere must not hold the file in memory


class _Known(NamedTuple):
    """One item as it was understood."""

    turns: tuple[Turn, ...]
    session: str | None = None
    body: str | None = None
    cells: str | None = None


def rows(data: Data, count: Callable[[str], int], conversation: bool) -> Iterator[tuple[int, Row | Skip]]:
    """The rows of a data file in its order, each with the line where it begins (of Parquet its number).

    With ``conversation`` a row has all its user's turns, and rows that follow each other with the same session are one.
    Without, it has one: the user's first message and the system's, but of a batch file the whole of its messages.
    Answers that stand before the first question are left out: most chat templates refuse them.

    A filter looks at the prompt of a row's last turn, with all that went before it, and at its longest answer.

    Raises:
        ScenarioError: the file cannot be read, or is not of the format; or a column is none of ours or of the file's.
    """
    wrong = [name for name, _ in data.columns if name not in COLUMNS]
    if wrong:
        raise ScenarioError(f"columns: there is no {wrong[0]!r} of ours; there are {', '.join(COLUMNS)}")
    sources.head(data.path)
    found = _known(data, conversation)
    for line, known in _joined(found) if conversation else found:
        if isinstance(known, Skip):
            yield line, known
        else:
            turns = known.turns
            if data.min_input or data.max_input:
                turns = tuple(msgspec.structs.replace(turn, input_tokens=input_tokens(turn, count)) for turn in turns)
            if data.min_output or data.max_output:
                turns = tuple(msgspec.structs.replace(turn, output_tokens=output_tokens(turn, count)) for turn in turns)
            yield line, _outside(data, turns, count) or Row(turns, known.body, known.cells)


def input_tokens(turn: Turn, count: Callable[[str], int]) -> int:
    """The length of a turn's own messages: what the file says, else counted."""
    if turn.input_tokens is not None:
        return turn.input_tokens
    return sum(count(message.content) for message in turn.messages)


def output_tokens(turn: Turn, count: Callable[[str], int]) -> int | None:
    """The length of a turn's answer: what the file says, else that of the recorded one; None if there is none."""
    if turn.output_tokens is not None or turn.answer is None:
        return turn.output_tokens
    return max(1, count(turn.answer))


def _outside(data: Data, turns: Sequence[Turn], count: Callable[[str], int]) -> Skip | None:
    if data.min_input or data.max_input:
        asked = sum(turn.input_tokens or 0 for turn in turns)
        asked += sum(output_tokens(turn, count) or 0 for turn in turns[:-1])
        if asked < (data.min_input or 0):
            return Skip(f"shorter than {data.min_input} input tokens")
        if data.max_input and asked > data.max_input:
            return Skip(f"longer than {data.max_input} input tokens")
    if data.min_output or data.max_output:
        lengths = [turn.output_tokens for turn in turns if turn.output_tokens is not None]
        if not lengths:
            return Skip("no answer to take a length from")
        if max(lengths) < (data.min_output or 0):
            return Skip(f"shorter than {data.min_output} output tokens")
        if data.max_output and max(lengths) > data.max_output:
            return Skip(f"longer than {data.max_output} output tokens")
    return None


def _known(data: Data, conversation: bool) -> Iterator[tuple[int, _Known | Skip]]:
    named = dict(data.columns)
    kind = data.format or _format(data.path)
    if kind == "text":
        if named or data.kept:
            raise ScenarioError(f"{data.path}: text has no columns to name")
        for line, text in sources.lines(data.path):
            yield line, _Known((Turn((Message(_USER, text),)),)) if text.strip() else Skip("blank line")
        return
    if kind in ("csv", "parquet"):
        prompts = {*COLUMNS["prompt"], *COLUMNS["messages"]}
        wanted = {*data.kept, *named.values(), *itertools.chain.from_iterable(COLUMNS.values())}
        names, items = sources.table(data.path) if kind == "csv" else sources.parquet(data.path, wanted)
        _check_columns(data.path, [*named.values(), *data.kept], names)
        if data.texts and not named.keys() & {"prompt", "messages"} and not prompts & {*names}:
            there = ", ".join(map(repr, names))
            raise ScenarioError(f"{data.path}: say columns: {{prompt: …}}, which of {there} has the prompt")
    else:
        items = sources.objects(data.path)
    missing = {*named.values(), *data.kept}
    seen: dict[str, None] = {}
    for line, item in items:
        if isinstance(item, Skip):
            yield line, item
        elif not isinstance(item, Mapping):
            yield line, Skip("not an object")
        else:
            if missing:
                missing -= item.keys()
                seen.update(dict.fromkeys(itertools.islice(item, 20)))
            batch = kind == "openai-batch" or (kind is None and {"custom_id", "body"} <= item.keys())
            known = _batch(item) if batch else _item(item, kind, named, conversation, data.texts)
            yield line, _with_cells(known, item, data.kept)
    if missing:
        _check_columns(data.path, [*named.values(), *data.kept], list(seen))


def _check_columns(path: str, named: Sequence[str], there: Sequence[str]) -> None:
    wrong = [name for name in named if name not in there]
    if wrong:
        raise ScenarioError(
            f"{path}: there is no column {wrong[0]!r}; there are {', '.join(map(repr, there)) or 'none'}"
        )


def _format(path: str) -> DataFormat | None:
    """By the first bytes and the name; None for JSON, of which each item shows what it is."""
    start, suffix = sources.head(path), Path(path).suffix.lower()
    if start.startswith(b"PAR1"):
        return "parquet"
    if suffix in _FORMATS:
        return _FORMATS[suffix]
    if start[:1] in (b"{", b"[") or suffix in (".json", ".jsonl", ".ndjson"):
        return None
    raise ScenarioError(f"{path}: of which format is it? Say format: {' | '.join(get_args(DataFormat))}")


def _with_cells(known: _Known | Skip, item: Mapping[str, Any], kept: Sequence[str]) -> _Known | Skip:
    """With what the kept columns hold."""
    if isinstance(known, Skip) or not kept:
        return known
    absent = [name for name in kept if name not in item]
    if absent:
        return Skip(f"no {absent[0]!r}")
    try:
        return known._replace(cells=msgspec.json.encode({name: item[name] for name in kept}).decode())
    except (TypeError, ValueError, OverflowError):
        return Skip("a value that JSON has not")


def _item(
    item: Mapping[str, Any], kind: str | None, named: Mapping[str, str], conversation: bool, texts: bool
) -> _Known | Skip:
    def value(name: str) -> Any:
        if name in named:
            return item.get(named[name])
        return next((item[column] for column in COLUMNS[name] if item.get(column) not in (None, "")), None)

    lengths = []
    for name in ("input_tokens", "output_tokens"):
        length = _whole(value(name))
        if isinstance(length, Skip):
            return Skip(f"{name} that is no whole number of 1 or more")
        lengths.append(length)
    system, session = value("system"), value("session")
    session = None if session is None else str(session)
    # A prompt comes before messages, unless those were asked for.
    only_messages = kind in ("sharegpt", "chat") or ("messages" in named and "prompt" not in named)
    prompt, messages = None if only_messages else value("prompt"), value("messages")
    if not texts:  # a request is its columns, and none of them is what is asked
        return _Known((Turn((), None, lengths[0], lengths[1]),), session)
    if prompt is None and (messages is not None or only_messages or not item.keys() & {*COLUMNS["prompt"]}):
        turns = _conversation(messages, system, conversation)
        if isinstance(turns, Skip):
            return turns
        if len(turns) == 1:  # of several turns nobody could say whose lengths they are
            turns = (msgspec.structs.replace(turns[0], input_tokens=lengths[0], output_tokens=lengths[1]),)
        return _Known(turns, session)
    if prompt is not None and not isinstance(prompt, str):
        return Skip("a prompt that is not text")
    if not prompt or not prompt.strip():
        return _EMPTY
    asked = [Message(_SYSTEM, system)] if isinstance(system, str) and system.strip() else []
    asked.append(Message(_USER, prompt))
    answer = value("answer")
    answer = answer if isinstance(answer, str) and answer else None
    return _Known((Turn(tuple(asked), answer, lengths[0], lengths[1]),), session)


def _whole(value: Any) -> int | Skip | None:
    """A length of 1 or more out of a number or its digits; None for none."""
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return Skip("no number")
    return int(number) if 1 <= number <= MOST and number.is_integer() else Skip("no whole number")


def _conversation(messages: Any, system: Any, whole: bool) -> tuple[Turn, ...] | Skip:
    """The turns of a list of messages: all of them, or the first."""
    if messages is None:
        return Skip("no conversations")
    if not isinstance(messages, list):
        return Skip("conversations that are no list")
    if not messages:
        return Skip("no turns")
    turns: list[Turn] = []
    waiting = [Message(_SYSTEM, system)] if isinstance(system, str) and system.strip() else []
    asked = False
    for message in map(_message, messages):
        if isinstance(message, Skip):
            return message
        if message.role != _ASSISTANT:
            if message.role == _USER:
                if not message.content.strip():
                    return _EMPTY
                asked = True
            if message.content:
                waiting.append(message)
        elif asked:
            turns.append(Turn(tuple(waiting), message.content or None))
            if not whole:
                break
            waiting, asked = [], False
        elif turns:  # an answer that goes on
            before = turns[-1]
            joined = "\n\n".join(filter(None, (before.answer, message.content)))
            turns[-1] = msgspec.structs.replace(before, answer=joined or None)
    else:
        if asked:
            turns.append(Turn(tuple(waiting)))
    return tuple(turns) or Skip("no question of a user")


def _message(item: Any) -> Message | Skip:
    if not isinstance(item, Mapping):
        return Skip("a turn that is no object")
    role = item.get("from") or item.get("role") or item.get("user")
    content = next((item[key] for key in ("value", "content", "text") if key in item), None)
    known = _ROLES.get(role.lower()) if isinstance(role, str) else None
    if item.get("tool_calls") or role in ("tool", "function", "function_call", "observation"):
        return Skip("calls of tools, which cannot be played")
    if known is None:
        return Skip("a role that is not known")
    if isinstance(content, list):  # parts of content, as in OpenAI's API
        if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
            return Skip("content that is not text")
        content = "".join(str(part.get("text", "")) for part in content)
    if content is None:
        content = ""
    return Message(known, content) if isinstance(content, str) else Skip("content that is not text")


def _batch(item: Mapping[str, Any]) -> _Known | Skip:
    """A line of a batch file: its messages as they are, in one turn, and the other keys of its body."""
    body = item.get("body")
    if not isinstance(body, Mapping):
        return Skip("no body")
    asked: list[Message] = []
    messages = body.get("messages", body.get("prompt"))
    if isinstance(messages, str):
        messages = [{"role": _USER, "content": messages}]
    if not isinstance(messages, list):
        return Skip("no messages")
    for message in map(_message, messages):
        if isinstance(message, Skip):
            return message
        if message.content:
            asked.append(message)
    if not any(message.role == _USER and message.content.strip() for message in asked):
        return _EMPTY
    length = _whole(body.get("max_completion_tokens", body.get("max_tokens")))
    if isinstance(length, Skip):
        return Skip("max_tokens that is no whole number of 1 or more")
    rest = {key: value for key, value in body.items() if key not in _OWN_KEYS}
    return _Known((Turn(tuple(asked), None, None, length),), body=msgspec.json.encode(rest).decode() if rest else None)


def _joined(found: Iterator[tuple[int, _Known | Skip]]) -> Iterator[tuple[int, _Known | Skip]]:
    """Rows one after the other with the same session are one of all their turns, up to the most there may be."""
    first_line, open_row = 0, None
    for line, known in found:
        if isinstance(known, Skip):
            yield line, known
        elif open_row and _goes_on(open_row, known):
            open_row = open_row._replace(turns=open_row.turns + known.turns)
        else:
            if open_row is not None:
                yield first_line, open_row
            first_line, open_row = line, known
    if open_row is not None:
        yield first_line, open_row


def _goes_on(row: _Known, known: _Known) -> bool:
    return known.session is not None and known.session == row.session and len(row.turns) < _MOST_TURNS
