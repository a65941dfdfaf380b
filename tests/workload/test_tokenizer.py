import json
import sys
from pathlib import Path

import pytest

from loadtest.errors import UsageError
from loadtest.workload.tokenizer import file, frame, load
from loadtest.workload.tokens import by_tokenizer
from tests.workload.vocabularies import TEMPLATE, byte_level, save


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(byte_level(600), tmp_path_factory.mktemp("model"), template=TEMPLATE)


def copy(folder: Path, to: Path, **config: object) -> Path:
    (to / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    if config:
        (to / "tokenizer_config.json").write_text(json.dumps(config))
    return to / "tokenizer.json"


def test_a_folder_or_its_file_may_be_named(folder: Path) -> None:
    assert file(str(folder)) == file(str(folder / "tokenizer.json")) == folder / "tokenizer.json"
    tokens, whole = by_tokenizer(str(folder), chat=False)
    assert (tokens.special, tokens.before, tokens.overhead, whole) == (True, "", 0, True)
    assert tokens.how == f"by {folder / 'tokenizer.json'}, exactly"


def test_a_template_frames_the_message(folder: Path) -> None:
    assert frame(folder / "tokenizer.json") == ("<s><|user|>\n", "<|end|>\n<|assistant|>\n")


def test_the_template_stands_in_its_own_file_or_by_name(folder: Path, tmp_path: Path) -> None:
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": "[{{ messages[0].content }}]"}]
    path = copy(folder, tmp_path, chat_template=named)
    assert frame(path) == ("[", "]")
    (tmp_path / "chat_template.jinja").write_text("({{ messages[0]['content'] }})")
    assert frame(path) == ("(", ")")


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{% broken",
        "nothing of the message",
        "{{ messages[0].content }}{{ messages[0].content }}",
        "{{ messages[0].content | upper }}",
        "{{ ''.__class__.__mro__ }}{{ messages[0].content }}",
    ],
)
def test_a_template_that_does_more_than_frame_is_not_trusted(folder: Path, tmp_path: Path, template: str) -> None:
    path = copy(folder, tmp_path, chat_template=template)
    assert frame(path) is None
    tokens, whole = by_tokenizer(str(path), chat=True)
    assert (whole, tokens.overhead, tokens.how) == (False, 0, "")


def test_without_a_template_nothing_is_known_of_the_frame(folder: Path, tmp_path: Path) -> None:
    assert frame(copy(folder, tmp_path)) is None


def test_a_file_that_cuts_or_fills_texts_up_is_kept_from_it(folder: Path, tmp_path: Path) -> None:
    tokenizer = byte_level(600)
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load(str(tmp_path / "tokenizer.json"))
    assert len(loaded.encode("word " * 100).ids) >= 100
    assert len(loaded.encode("a").ids) == 1


def test_no_tokenizer_is_named_with_the_mend(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no .*tokenizer\.json; name a folder"):
        file(str(tmp_path))
    with pytest.raises(UsageError, match="there is no"):
        file(str(tmp_path / "missing"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="is not one that tokenizers"):
        load(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(UsageError, match="is not JSON"):
        frame(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(UsageError, match="is not a JSON object"):
        frame(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot read"):
        frame(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("package", ["tokenizers", "jinja2"])
def test_a_package_that_is_not_installed_is_named_with_the_mend(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    load.cache_clear()
    with pytest.raises(UsageError, match=rf"needs the package {package}: pip install '\.\[models\]'"):
        by_tokenizer(str(folder), chat=True)
