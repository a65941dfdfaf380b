"""tokenizer.json and chat templates: text survives, characters are never broken, and faults are told at the start."""

import json
import sys
from pathlib import Path

import exported
import pytest
from exported import TEXT
from hypothesis import given
from hypothesis import strategies as st

from servers import pretrained
from servers.errors import StartError
from servers.json_tokenizer import JsonTokenizer
from servers.tokenizer import TextStream, Unencodable


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    exported.describe(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> JsonTokenizer:
    return pretrained.tokenizer(folder)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_text_survives_ids_and_back_token_by_token(tokenizer: JsonTokenizer, text: str) -> None:
    stream = TextStream((), tokenizer)
    assert "".join(stream.push(token) for token in tokenizer.encode(text)) + stream.finish() == text


def test_a_character_of_several_tokens_appears_when_it_is_whole(tokenizer: JsonTokenizer) -> None:
    stream = TextStream((), tokenizer)
    pieces = [stream.push(token) for token in tokenizer.encode("京🦉")]
    assert [piece for piece in pieces if piece] == ["京", "🦉"]


def test_bytes_that_are_no_text_are_shown_after_a_while_and_do_not_pile_up(tokenizer: JsonTokenizer) -> None:
    stream = TextStream((), tokenizer)
    half = tokenizer.encode("🦉")[0]
    pieces = [stream.push(half) for _ in range(40)]
    assert "".join(pieces).count("\ufffd") > 30
    assert "a" in stream.push(tokenizer.encode("a")[0])


def test_special_tokens_are_not_text(tokenizer: JsonTokenizer) -> None:
    stream = TextStream((), tokenizer)
    assert stream.push(1) + "".join(stream.push(t) for t in tokenizer.encode("ab")) + stream.finish() == "ab"


def test_a_stop_string_is_found_across_tokens(tokenizer: JsonTokenizer) -> None:
    stream = TextStream(("cannot",), tokenizer)
    shown = "".join(stream.push(token) for token in tokenizer.encode(TEXT) if not stream.stopped)
    assert shown == TEXT[: TEXT.index("cannot")]


def test_end_tokens_come_from_every_file_that_names_one(tokenizer: JsonTokenizer) -> None:
    assert tokenizer.eos == {0, 2}  # generation_config.json and the tokenizer's <|im_end|>
    assert 2 in tokenizer.ids(eos=True)
    assert not {0, 2} & {*tokenizer.ids(eos=False).tolist()}


def test_a_chat_is_laid_out_by_the_models_template(tokenizer: JsonTokenizer) -> None:
    ids = tokenizer.encode_chat([("developer", "Be brief."), ("user", "Hi")])
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert ids == tokenizer.encode(text)
    assert ids.count(1) == 3


def test_messages_that_the_template_refuses_are_said_so(tokenizer: JsonTokenizer) -> None:
    with pytest.raises(Unencodable, match="the user must speak first"):
        tokenizer.encode_chat([("assistant", "Hi")])


def test_lone_surrogates_are_refused(tokenizer: JsonTokenizer) -> None:
    with pytest.raises(Unencodable):
        tokenizer.encode("\ud800")
    with pytest.raises(Unencodable):
        tokenizer.encode_chat([("user", "\ud800")])


def test_a_template_in_a_file_of_its_own_and_several_by_name(tmp_path: Path) -> None:
    exported.describe(tmp_path)
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "{{ messages[0].content }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    tokenizer = pretrained.tokenizer(tmp_path)
    assert tokenizer.encode_chat([("user", "hello")]) == tokenizer.encode("hello")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content | tojson }}!")
    tokenizer = pretrained.tokenizer(tmp_path)
    assert tokenizer.encode_chat([("user", "<é>")]) == tokenizer.encode('"<é>"!')


def test_a_model_without_a_template_answers_completions_only(tmp_path: Path) -> None:
    exported.describe(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(Unencodable, match="no chat template; use /v1/completions"):
        pretrained.tokenizer(tmp_path).encode_chat([("user", "hi")])


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("tokenizer.json", None, "no tokenizer.json.*save_pretrained"),
        ("tokenizer.json", "{}", "not a tokenizer"),
        ("tokenizer_config.json", "[", "not JSON"),
        ("tokenizer_config.json", '{"chat_template": "{% for %}"}', "chat template in .* is broken"),
        ("generation_config.json", "[]", "not a JSON object"),
    ],
)
def test_faults_are_told_at_the_start(file: str, content: str | None, text: str, tmp_path: Path) -> None:
    exported.describe(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(StartError, match=text):
        pretrained.tokenizer(tmp_path)


def test_without_any_end_token_it_is_asked_for(tmp_path: Path) -> None:
    exported.describe(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(StartError, match="eos_token_id in generation_config"):
        pretrained.tokenizer(tmp_path)


@pytest.mark.parametrize("package", ["tokenizers", "jinja2"])
def test_a_missing_package_is_named_with_its_pip_line(
    package: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(StartError, match=rf"package {package}: pip install '.\[models\]'"):
        pretrained.tokenizer(folder)
