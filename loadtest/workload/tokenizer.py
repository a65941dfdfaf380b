"""A model's own tokenizer, out of local files: its tokenizer.json, and the chat template that stands beside it."""

import functools
import json
import statistics
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from loadtest.errors import UsageError

_EXTRA = "pip install '.[models]'"
_MARK = "loadtest"
_WORDS = ("the", "and", "in", "is", "it", "as", "was", "with", "by", "on", "not", "he", "at", "are", "this", "from")


def file(path: str) -> Path:
    """The tokenizer.json in a folder, or that file itself.

    Raises:
        UsageError: there is none.
    """
    found = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not found.is_file():
        raise UsageError(
            f"tokenizer: there is no {found}; name a folder that holds a tokenizer.json, or such a file (transformers: "
            "AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER))"
        )
    return found


@functools.lru_cache(4)
def load(path: str) -> Any:
    """The ``tokenizers.Tokenizer`` of a tokenizer.json.

    Raises:
        UsageError: it cannot be read, or the package that reads it is not installed.
    """
    try:
        import tokenizers  # noqa: PLC0415  # heavy, and of an extra
    except ImportError:
        raise UsageError(f"tokenizer: {path} needs the package tokenizers: {_EXTRA}") from None
    try:
        tokenizer = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # noqa: BLE001  # the package raises nothing more special
        raise UsageError(
            f"tokenizer: {path} is not one that tokenizers {tokenizers.__version__} reads: {error}"
        ) from None
    # Whatever the file asks for: texts are neither cut nor filled up.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def count(tokenizer: Any, texts: Sequence[str], *, special: bool) -> list[int]:
    """The number of tokens of each text, with or without the special ones that the tokenizer adds by itself."""
    # Of its methods only those for batches let go of the GIL.
    return [len(found) for found in tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)]


def size(tokenizer: Any, text: str) -> int:
    """The number of tokens of one text by itself."""
    # A batch of one would be counted by threads, which the fork of a worker leaves behind.
    return len(tokenizer.encode(text, add_special_tokens=False))


def overhead(tokenizer: Any, before: str, after: str, *, special: bool) -> int:
    """How many tokens stand around a text between ``before`` and ``after``: those that most words find there.

    A word may be cut otherwise at the start than within a text, or join what surrounds it, so it is no simple count.
    """
    framed = count(tokenizer, [f"{before}{word}{after}" for word in _WORDS], special=special)
    alone = count(tokenizer, _WORDS, special=False)
    bare, *within = count(tokenizer, ["the the", *(f"the {word} the" for word in _WORDS)], special=False)
    own = (min(one, other - bare) for one, other in zip(alone, within, strict=True))
    return max(0, statistics.mode(size - each for size, each in zip(framed, own, strict=True)))


def frame(path: Path) -> tuple[str, str] | None:
    """What the chat template beside a tokenizer.json puts before and after the text of one user message.

    None if there is no template, or it does something else with that message than to put it between two texts.

    Raises:
        UsageError: a file cannot be read, or the package that reads templates is not installed.
    """
    config = _object(path.with_name("tokenizer_config.json"))
    template = _template(path, config.get("chat_template"))
    if template is None:
        return None
    try:
        from jinja2 import TemplateError  # noqa: PLC0415  # of an extra
        from jinja2.ext import loopcontrols  # noqa: PLC0415
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415
    except ImportError:
        raise UsageError(f"tokenizer: the chat template beside {path} needs the package jinja2: {_EXTRA}") from None

    def refuse(message: str) -> None:
        raise TemplateError(message)

    # As transformers compiles it (utils/chat_template_utils.py), and so do the servers that use it.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    special = {key: _token(value) for key, value in config.items() if key.endswith("_token")}
    messages = [{"role": "user", "content": _MARK}]
    try:
        rendered = environment.from_string(template).render(
            messages=messages, add_generation_prompt=True, tools=None, **special
        )
    except (TemplateError, TypeError, ValueError, KeyError):
        return None
    before, mark, after = rendered.partition(_MARK)
    return (before, after) if mark and _MARK not in after else None


def _template(path: Path, configured: Any) -> str | None:
    beside = path.with_name("chat_template.jinja")
    if beside.is_file():
        return _text(beside)
    if isinstance(configured, list):  # several by name, such as one for tools
        configured = {each.get("name"): each.get("template") for each in configured}.get("default")
    return configured if isinstance(configured, str) else None


def _token(configured: Any) -> str:
    """A special token's text, which is written plainly or as an object."""
    text = configured.get("content") if isinstance(configured, dict) else configured
    return text if isinstance(text, str) else ""


def _object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        document = json.loads(_text(path))
    except ValueError as error:
        raise UsageError(f"tokenizer: {path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"tokenizer: {path} is not a JSON object")
    return document


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"tokenizer: cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
