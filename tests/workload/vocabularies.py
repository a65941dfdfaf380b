"""Small tokenizers of every make, trained on the tool's own texts in a moment; each as the file that users have."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from loadtest.workload.corpus import UNICODE, read

BYTES = pre_tokenizers.ByteLevel.alphabet()


def _trained(tokenizer: Tokenizer, trainer: trainers.Trainer) -> Tokenizer:
    tokenizer.train_from_iterator([read(None), read(UNICODE)], trainer)
    return tokenizer


def byte_level(size: int = 4000) -> Tokenizer:
    """As GPT-2's and its many followers'."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<|user|>", "<|end|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=BYTES, special_tokens=special, show_progress=False)
    return _trained(tokenizer, trainer)


def sentencepiece() -> Tokenizer:
    """As Llama 2's: no words, but one text with ▁ for spaces, bytes for what is unknown, and <s> at the start."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    _trained(trained, trainers.BpeTrainer(vocab_size=3000, special_tokens=special, show_progress=False))
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    document = json.loads(made.to_str())
    document["model"] |= {key: json.loads(trained.to_str())["model"][key] for key in ("vocab", "merges")}
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def unigram() -> Tokenizer:
    """As T5's."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    return _trained(
        tokenizer,
        trainers.UnigramTrainer(vocab_size=2000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False),
    )


def wordpiece() -> Tokenizer:
    """As BERT's, whose texts stand between [CLS] and [SEP]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    _trained(tokenizer, trainers.WordPieceTrainer(vocab_size=3000, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def characters() -> Tokenizer:
    """One token a byte: no word is one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        ["a"], trainers.BpeTrainer(vocab_size=256, initial_alphabet=BYTES, show_progress=False)
    )
    return tokenizer


ALL = {make.__name__: make for make in (byte_level, sentencepiece, unigram, wordpiece, characters)}

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] | trim }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def save(tokenizer: Tokenizer, folder: Path, *, template: str | None = None) -> Path:
    """A model's folder as far as its texts go."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if template is not None:
        config = {"bos_token": {"content": "<s>"}, "eos_token": "<|end|>", "chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
