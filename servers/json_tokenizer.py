"""The tokenizer of a real model: Hugging Face's ``tokenizer.json`` and the chat template that comes with it."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from servers.errors import StartError
from servers.tokenizer import Decoder, Tokenizer, Unencodable

_EXTRA = "pip install '.[models]'"
_CHARACTER_TOKENS = 4  # a UTF-8 character has at most four bytes, so four tokens


class JsonTokenizer(Tokenizer):
    """Reads and writes text as ``path``, a ``tokenizer.json``, says.

    ``eos`` are the ids that end an answer, and so does ``eos_token``, the text of one; ``template`` is the Jinja text
    of its chats, in which ``bos_token`` and ``eos_token`` may occur.

    Raises:
        StartError: the file is missing or broken, or a package that reads it is not installed.
    """

    def __init__(
        self, path: Path, *, eos: Iterable[int], bos_token: str | None, eos_token: str | None, template: str | None
    ) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise StartError(f"{path.parent} needs the package tokenizers: {_EXTRA}") from error
        if not path.exists():
            raise StartError(
                f"no tokenizer.json in {path.parent}; save it there, with transformers: "
                "AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)"
            )
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises nothing more special
            raise StartError(
                f"{path} is not a tokenizer that tokenizers {tokenizers.__version__} reads: {error}"
            ) from error
        # Whatever the file asks for: a prompt is neither cut nor filled up behind the client's back.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ends = {*eos}
        if eos_token is not None and (token := self._tokenizer.token_to_id(eos_token)) is not None:
            ends.add(token)
        size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        super().__init__(size, range(size), ends)
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._template = None if template is None else _compiled(template, path.parent)

    def encode(self, text: str) -> list[int]:
        _check(text)
        return self._ids_of(text, special=True)

    def encode_chat(self, messages: Iterable[tuple[str, str]]) -> list[int]:
        from jinja2 import TemplateError

        if self._template is None:
            raise Unencodable("this model has no chat template; use /v1/completions")
        turns = []
        for role, text in messages:
            _check(text)
            # "developer" is OpenAI's newer name for it, which no template knows.
            turns.append({"role": "system" if role == "developer" else role, "content": text})
        try:
            prompt = self._template.render(messages=turns, add_generation_prompt=True, tools=None, **self._tokens)
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise Unencodable(f"the model's chat template refuses these messages: {error}") from error
        return self._ids_of(prompt, special=False)

    def _ids_of(self, text: str, *, special: bool) -> list[int]:
        # Of its methods only those for batches let go of the GIL; without that a long text stops the event loop.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
        return ids

    def decoder(self) -> Decoder:
        return _JsonDecoder(self._tokenizer)


class _JsonDecoder:
    """Text as it becomes certain. A token's text may depend on the one before it (a leading space, a character whose
    bytes are several tokens), so each piece is the difference that new tokens make after some already shown ones."""

    __slots__ = ("_before", "_ids", "_shown", "_tokenizer")

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # the last shown ones, then those that wait
        self._shown = 0  # how many of them are shown
        self._before = ""  # their text

    def push(self, token: int) -> str:
        self._ids.append(token)
        text: str = self._tokenizer.decode(self._ids)
        if text.endswith("\ufffd") and len(self._ids) - self._shown < _CHARACTER_TOKENS:
            return ""
        piece = text[len(self._before) :]
        self._ids = self._ids[self._shown :]
        self._shown = len(self._ids)
        self._before = self._tokenizer.decode(self._ids)
        return piece

    def finish(self) -> str:
        text: str = self._tokenizer.decode(self._ids)
        return text[len(self._before) :]


def _check(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Unencodable("the text holds a lone surrogate, which is no character") from error


def _compiled(template: str, folder: Path) -> Any:
    """A chat template as transformers compiles it (``utils/chat_template_utils.py``): sandboxed, blocks trimmed."""
    try:
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise StartError(f"the chat template in {folder} needs the package jinja2: {_EXTRA}") from error

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise StartError(f"the chat template in {folder} is broken: {error}") from error


def _tojson(value: Any, indent: int | None = None) -> str:
    """Not Jinja's own, which escapes for HTML."""
    import json

    return json.dumps(value, ensure_ascii=False, indent=indent)
