"""How fast prompts of an exact length are made, and whether a long stream of them stays small.

    python bench/prompts.py [--quick] [--tokenizer PATH] [--json FILE]

Rows, of prompts of 1,000 tokens each under a tokenizer:

- tokens/s made, many at once, ÷ tokens/s of the tokenizer's own ``encode_batch`` over the same texts, in turns within
  one run: at least 0.5;
- the same one prompt at a time, which is what a generator does that makes one ahead of each that is sent: shown, with
  ``encode_batch`` given one text at a time beside it;
- prompts whose length, counted once more, is not the one asked for: 0;
- memory in MB that the process grew by from its start over the whole stream: at most 300.

The tokenizer is a byte-level BPE trained on the spot from the tool's own texts, or the one at PATH. ``--quick`` makes
5,000 prompts instead of 100,000. Exit code 0 only if every row is ok; the ratio is given 15 % for the noise of a shared
machine.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from loadtest.schedule import stream
from loadtest.workload.corpus import UNICODE, read
from loadtest.workload.prompts import Prompts, Wanted
from loadtest.workload.tokenizer import count, load
from loadtest.workload.tokens import by_tokenizer

TOKENS = 1000
BATCH = 64
RATIO_GOAL, NOISE = 0.5, 0.85
MEMORY_GOAL_MB = 300


def main() -> int:
    """Run all rows; 0 if each is ok."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5,000 prompts instead of 100,000")
    parser.add_argument("--tokenizer", metavar="PATH", help="a local tokenizer.json or its folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    options = parser.parse_args()
    began_mb = _resident_mb()
    with tempfile.TemporaryDirectory() as folder:
        rows = _rows(options.tokenizer or _trained(folder), 5_000 if options.quick else 100_000, began_mb)
    for row in rows:
        print(f"{row['name']:64} {row['value']:>10.2f} {row['goal']:>10} {'ok' if row['ok'] else 'NOT OK'}")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


def _rows(path: str, prompts: int, began_mb: float) -> list[dict[str, Any]]:
    tokens, _ = by_tokenizer(path, chat=False)
    assert tokens.path is not None
    tokenizer = load(tokens.path)
    made = Prompts(tokens, None, 1)
    wanted = (Wanted(TOKENS, stream(1, "bench", number)) for number in range(10**9))
    ours_s = theirs_s = 0.0
    compared = wrong = 0
    for number in range(prompts // BATCH):
        batch = [*islice(wanted, BATCH)]
        began = time.perf_counter()
        texts = made.prompts(batch)
        ours_s += time.perf_counter() - began
        if number % 10 == 0:  # often enough for a fair share of whatever else the machine does
            began = time.perf_counter()
            encoded = tokenizer.encode_batch(texts)
            theirs_s += time.perf_counter() - began
            compared += 1
            wrong += sum(len(each) != TOKENS for each in encoded)
    grown_mb = _resident_mb(peak=True) - began_mb
    ours, theirs = (BATCH * TOKENS / each / 1e6 for each in (ours_s / (number + 1), theirs_s / compared))
    ratio = ours / theirs
    print(f"{Path(path).name}, {tokenizer.get_vocab_size():,} tokens, {os.cpu_count()} cores, {prompts:,} prompts")
    print(f"ours {ours:.2f}M tokens/s, encode_batch {theirs:.2f}M")
    return [
        _row("tokens/s, many at once ÷ encode_batch", ratio, RATIO_GOAL, ratio >= RATIO_GOAL * NOISE),
        _row("tokens/s, one at a time ÷ encode_batch of one", *_one_at_a_time(made, tokenizer, wanted)),
        _row("prompts of another length", wrong, 0, wrong == 0),
        _row("memory grown by, MB", grown_mb, MEMORY_GOAL_MB, grown_mb <= MEMORY_GOAL_MB),
    ]


def _one_at_a_time(made: Prompts, tokenizer: Any, wanted: Iterator[Wanted]) -> tuple[float, float, bool]:
    ours_s = theirs_s = 0.0
    for one in islice(wanted, 1000):
        began = time.perf_counter()
        text = made.prompt(one.tokens, one.rng)
        then = time.perf_counter()
        tokenizer.encode_batch([text])
        ours_s += then - began
        theirs_s += time.perf_counter() - then
    return theirs_s / ours_s, RATIO_GOAL, theirs_s / ours_s >= RATIO_GOAL * NOISE


def _row(name: str, value: float, goal: float, ok: bool) -> dict[str, Any]:
    return {"name": name, "value": value, "goal": goal, "ok": ok}


def _trained(folder: str) -> str:
    """The path of a byte-level BPE made from the tool's texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([read(None), read(UNICODE)], trainer)
    path = f"{folder}/tokenizer.json"
    tokenizer.save(path)
    assert count(load(path), ["a"], special=False) == [1]
    return path


def _resident_mb(*, peak: bool = False) -> float:
    key = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


if __name__ == "__main__":
    sys.exit(main())
