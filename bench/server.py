"""How fast the bundled server is, as ratios to CTranslate2 on the same weights.

    python bench/server.py [--quick] [--json FILE] [--threads N]

Rows: output tokens/s of the engine while 1, 4, 8, 16 or 32 requests decode (32 prompt tokens each), and prompt
tokens/s of one 128-token prompt, against CTranslate2 with the same shape, weights, precision and thread count, in
turns within one run, by the 20th percentile of the steps' times. The longest gap in the answers of 8 requests while a
448-token prompt joins them, against a plain step and one chunk of that prompt. Then the server by itself (64 prompt
tokens, 16 to 48 answer tokens, at most 16 at a time): how much of the engine's own throughput reaches 24 HTTP clients;
and with 16 clients what continuous batching gains over no batching, and its 99th percentile of TTFT against the best
of the other policies. Last the first rows again in int8, at three batch sizes. ``--quick`` (about a minute) has the
same rows from fewer repetitions.

Exit code 0 only if every ratio reaches its goal less 15 %, the noise of a shared machine.
"""

import argparse
import asyncio
import itertools
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from servers import builder, decoder, tokenizer
from servers.batching import Batching
from servers.engine import Engine, Generation, Output
from servers.model import PREFILL_CHUNK, load

PROMPT, PREFILL_PROMPT, SERVED_PROMPT, JOINING_PROMPT = 32, 128, 64, 448  # tokens
STALLED = 8  # requests that decode while a long prompt joins them
STEPS = 20  # decode steps of one measurement
BATCHES = (1, 4, 8, 16, 32)
DECODE_GOALS = {1: 1.0, 4: 1.0, 8: 1.0, 16: 1.3, 32: 1.3}
INT8_DECODE_GOAL = 1.0
INT8_BATCHES = (1, 8, 32)
PREFILL_GOAL, INT8_PREFILL_GOAL = 1.0, 0.7
SERVED_GOAL, BATCHING_GOAL = 0.9, 2.0
STALL_GOAL = 1 / 1.6
NOISE = 0.85
MAX_BATCH = 16


class Ours:
    """The engine, as the server runs it, without HTTP."""

    def __init__(self, bundle: builder.Built, threads: int) -> None:
        slots = max(BATCHES)
        self._model = load(bundle, "cpu", slots=slots, max_seq_len=bundle.shape.max_seq_len, threads=threads)
        self._steps: list[tuple[float, int]] = []
        self._left = 0
        self._done = threading.Event()
        self._engine = Engine(self._model, Batching(max_batch_size=slots), self._published, self._failed)
        self._engine.start()

    def decode(self, batch: int) -> list[float]:
        """Seconds of each step in which all of ``batch`` requests decoded."""
        self._steps, self._left = [], batch
        self._done.clear()
        for i in range(batch):
            # Those who start first decode while the last prompts run; they get that many tokens more.
            self._engine.submit(Generation(prompt_ids(i, PROMPT), max_tokens=STEPS + batch, ignore_eos=True))
        if not self._done.wait(120):
            raise TimeoutError("the engine did not finish within 120 s")
        return _gaps([at for at, count in self._steps if count == batch][1:])  # the first may be a prompt's token

    def closed_loop(self, seconds: float, clients: int) -> float:
        """Output tokens/s with ``clients`` requests always in flight, each replaced when it ends."""
        counts: list[tuple[float, int]] = []
        until = time.perf_counter() + seconds

        def published(outputs: list[Output]) -> None:
            now = time.perf_counter()
            counts.append((now, len(outputs)))
            for output in outputs:
                if output.finish and now < until:
                    engine.submit(_varied(len(counts)))
                elif output.finish and not engine.running:
                    done.set()

        done = threading.Event()
        engine = Engine(self._model, Batching(max_batch_size=MAX_BATCH), published, self._failed)
        engine.start()
        for i in range(clients):
            engine.submit(_varied(i))
        done.wait(120)
        engine.stop()
        return _rate(counts, until - seconds, until)

    def prefill(self) -> float:
        """Seconds of one prompt."""
        self._model.clear(0)
        begun = time.perf_counter()
        self._model.prefill(0, prompt_ids(0, PREFILL_PROMPT))
        return time.perf_counter() - begun

    def stall(self) -> tuple[float, float]:
        """Seconds of the longest gap between two tokens while a long prompt joins those who decode, and of a plain step
        of theirs and the last chunk of such a prompt."""
        self._steps, self._left = [], STALLED + 1
        self._done.clear()
        for i in range(STALLED):
            self._engine.submit(Generation(prompt_ids(i, PROMPT), max_tokens=4 * STEPS, ignore_eos=True))
        while sum(count == STALLED for _, count in self._steps) < STEPS:
            time.sleep(1e-3)
        joined = time.perf_counter()
        self._engine.submit(Generation(prompt_ids(STALLED, JOINING_PROMPT), max_tokens=1))
        if not self._done.wait(120):
            raise TimeoutError("the engine did not finish within 120 s")
        steps = [at for at, count in self._steps if count == STALLED]
        before = _gaps([at for at in steps if at < joined])
        longest = max(later - earlier for earlier, later in itertools.pairwise(steps) if later >= joined)
        self._model.clear(0)
        self._model.prefill(0, prompt_ids(0, JOINING_PROMPT - PREFILL_CHUNK))
        begun = time.perf_counter()
        self._model.prefill(0, prompt_ids(0, PREFILL_CHUNK))
        return longest, _undisturbed(before) + time.perf_counter() - begun

    def answer(self, length: int) -> list[int]:
        """The greedy answer to prompt 0."""
        self._model.clear(0)
        first = self._model.prefill(0, prompt_ids(0, PROMPT))
        return [first, *(self._model.decode(1)[0] for _ in range(length - 1))]

    def close(self) -> None:
        self._engine.stop()

    def _published(self, outputs: list[Output]) -> None:
        self._steps.append((time.perf_counter(), len(outputs)))
        self._left -= sum(output.finish is not None for output in outputs)
        if not self._left:
            self._done.set()

    def _failed(self, error: Exception) -> None:
        raise error


class CTranslate2:
    """The peer, given the same weights; in int8 it quantises them itself as it loads them."""

    def __init__(self, bundle: builder.Built, threads: int, folder: str) -> None:
        import ctranslate2

        _write_ctranslate2(bundle.shape, folder)
        compute_type = {"fp32": "float32", "int8": "int8"}[bundle.dtype]
        self._generator = ctranslate2.Generator(
            folder, device="cpu", compute_type=compute_type, intra_threads=threads, inter_threads=1
        )

    def decode(self, batch: int) -> list[float]:
        """Seconds of each step after the one that ran the prompts."""
        steps: list[float] = []

        def stepped(result: Any) -> bool:
            if result.batch_id == 0:
                steps.append(time.perf_counter())
            return False

        self._generate(batch, PROMPT, STEPS, stepped)
        return _gaps(steps)

    def prefill(self) -> float:
        """Seconds of one prompt."""
        begun = time.perf_counter()
        self._generate(1, PREFILL_PROMPT, 1)
        return time.perf_counter() - begun

    def answer(self, length: int) -> list[int]:
        """The greedy answer to prompt 0."""
        tokens: list[int] = self._generate(1, PROMPT, length)[0].sequences_ids[0]
        return tokens

    def _generate(self, batch: int, prompt: int, length: int, callback: Any = None) -> list[Any]:
        results: list[Any] = self._generator.generate_batch(
            [[f"<{token}>" for token in prompt_ids(i, prompt)] for i in range(batch)],
            max_batch_size=batch,
            min_length=length,
            max_length=length,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
            callback=callback,
            end_token=f"<{tokenizer.EOS}>",
        )
        return results


def prompt_ids(index: int, length: int) -> list[int]:
    """A prompt of ``length`` tokens, different for each index."""
    return [tokenizer.BOS, *(0x20 + (7 * i + 13 * index) % 95 for i in range(length - 1))]


def _answer_tokens(index: int) -> int:
    return 16 + 11 * index % 33  # 16 to 48: with equal lengths all would end together, and every policy look alike


def _varied(index: int) -> Generation:
    return Generation(prompt_ids(index, SERVED_PROMPT), max_tokens=_answer_tokens(index), ignore_eos=True)


def _write_ctranslate2(shape: decoder.Shape, folder: str) -> None:
    """The preset's weights as a CTranslate2 model folder (ctranslate2.specs, no converter)."""
    import numpy as np
    from ctranslate2.specs import common_spec, transformer_spec

    weights = decoder.random_weights(shape, builder.SEED)
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        shape.layers, shape.heads, pre_norm=True, activation=common_spec.Activation.SWISH, ffn_glu=True,
        rms_norm=True, rotary_dim=0, rotary_interleave=False, rotary_base=shape.rope_theta,
        num_heads_kv=shape.kv_heads, head_dim=shape.head_dim,
    )  # fmt: skip
    root = spec.decoder
    root.embeddings.weight = weights["embedding"]
    root.scale_embeddings = False
    root.layer_norm.gamma = weights["norm"]
    root.projection.weight = weights["embedding"]
    root.projection.bias = decoder.logits_mask(shape)
    for i, layer in enumerate(root.layer):
        gate, up = np.split(weights[f"{i}.gate_up"], 2, axis=1)
        layer.self_attention.layer_norm.gamma = weights[f"{i}.attention_norm"]
        for linear, weight in (
            (layer.self_attention.linear[0], weights[f"{i}.qkv"]),
            (layer.self_attention.linear[1], weights[f"{i}.output"]),
            (layer.ffn.linear_0, gate),
            (layer.ffn.linear_0_noact, up),
            (layer.ffn.linear_1, weights[f"{i}.down"]),
        ):
            linear.weight = np.ascontiguousarray(weight.T)
        layer.ffn.layer_norm.gamma = weights[f"{i}.mlp_norm"]
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = (
        f"<{tokenizer.BOS}>",
        f"<{tokenizer.EOS}>",
        "<0>",
    )
    spec.config.layer_norm_epsilon = shape.norm_epsilon
    spec.register_vocabulary([f"<{token}>" for token in range(shape.vocab)])
    spec.validate()
    spec.save(folder)


class Served:
    """The server as its users have it: a process, over HTTP."""

    def __init__(self, threads: int) -> None:
        command = [sys.executable, "-m", "servers", "--model", "demo", "--port", "0", "--threads", str(threads)]
        self._process = subprocess.Popen(
            [*command, "--provider", "cpu", "--max-batch-size", str(MAX_BATCH), "--exit-on-stdin-close"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if " on http" not in line:
            raise RuntimeError("the server did not start")
        self._url = line.split(" on ")[1].split()[0]

    def closed_loop(self, scheduler: str, batch: int, seconds: float, clients: int = MAX_BATCH) -> tuple[float, float]:
        """Output tokens/s, and the 99th percentile of the time to the first token in seconds."""
        return asyncio.run(self._closed_loop(scheduler, batch, seconds, clients))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    async def _closed_loop(self, scheduler: str, batch: int, seconds: float, clients: int) -> tuple[float, float]:
        import aiohttp

        counts: list[tuple[float, int]] = []
        ttfts: list[float] = []
        async with aiohttp.ClientSession(self._url, connector=aiohttp.TCPConnector(limit=0)) as session:
            setting = {"scheduler": scheduler, "max_batch_size": batch}
            async with session.post("/admin/batching", json=setting) as response:
                response.raise_for_status()
            begun = time.perf_counter()

            async def client(index: int) -> None:
                for turn in itertools.count(index, clients):
                    body = {
                        "model": "demo",
                        "prompt": prompt_ids(turn, SERVED_PROMPT),
                        "ignore_eos": True,
                        "stream": True,
                    }
                    sent = time.perf_counter()
                    first = True
                    limit = {"max_tokens": _answer_tokens(turn)}
                    async with session.post("/v1/completions", json={**body, **limit}) as response:
                        response.raise_for_status()
                        async for line in response.content:
                            if b'"text":' in line and b'"finish_reason":null' in line:
                                now = time.perf_counter()
                                counts.append((now, 1))
                                if first and sent > begun + seconds / 5:  # the others all began at one instant
                                    ttfts.append(now - sent)
                                first = False

            tasks = [asyncio.create_task(client(i)) for i in range(clients)]
            finished, _ = await asyncio.wait(tasks, timeout=seconds)
            for task in tasks:
                task.cancel()
            for task in finished:
                task.result()  # a client ends by itself only by an error
        ttfts.sort()
        # None at all: whoever came after the first ones still waits at the end.
        ttft = ttfts[-(-99 * len(ttfts) // 100) - 1] if ttfts else math.inf
        return _rate(counts, begun, begun + seconds), ttft


def _undisturbed(seconds: list[float]) -> float:
    """The 20th percentile: what it takes when no other tenant of the machine is in the way."""
    return sorted(seconds)[len(seconds) // 5]


def _gaps(instants: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(instants)]


def _rate(counts: list[tuple[float, int]], begun: float, until: float) -> float:
    """Tokens a second between two instants, the first tenth left out."""
    begun += (until - begun) / 10
    return sum(count for at, count in counts if begun <= at < until) / (until - begun)


def _row(name: str, ours: float, other: float | None, goal: float, *, lower_is_better: bool = False) -> dict[str, Any]:
    """One line of the result; ``other`` is None where the peer is absent, infinite where it never answered."""
    ratio = None
    if other and ours < math.inf:
        ratio = other / ours if lower_is_better else ours / other
    ok = ratio is not None and ratio >= goal * NOISE
    shown = ["—" if value is None else f"{value:,.2f}" for value in (ours, other, ratio)]
    print(f"{name:44} {shown[0]:>10} {shown[1]:>10} {shown[2]:>7}  goal {goal:.2f}  {'ok' if ok else 'MISSED'}")
    row = {"name": name, "ours": ours, "other": other, "ratio": ratio, "goal": goal, "ok": ok}
    return {key: None if value == math.inf else value for key, value in row.items()}


def _against_ctranslate2(ours: Ours, bundle: builder.Built, threads: int, quick: bool) -> list[dict[str, Any]]:
    rows = []
    kind = "" if bundle.dtype == "fp32" else f"{bundle.dtype} "
    with tempfile.TemporaryDirectory() as folder:
        peer: CTranslate2 | None = None
        try:
            peer = CTranslate2(bundle, threads, folder)
        except ImportError as error:
            print(f"ctranslate2 is absent: {error}", file=sys.stderr)
        if peer and bundle.dtype == "fp32" and ours.answer(8) != peer.answer(8):
            raise RuntimeError(
                "CTranslate2 answers otherwise from the same weights: the comparison is not like for like"
            )
        goals = DECODE_GOALS if bundle.dtype == "fp32" else dict.fromkeys(INT8_BATCHES, INT8_DECODE_GOAL)
        for batch, goal in goals.items():
            steps: list[float] = []
            peer_steps: list[float] = []
            for _ in range((6 if batch <= 8 else 4) if quick else 12):
                steps += ours.decode(batch)
                peer_steps += peer.decode(batch) if peer else []
            rate = batch / _undisturbed(steps)
            peer_rate = batch / _undisturbed(peer_steps) if peer_steps else None
            rows.append(_row(f"{kind}decode tokens/s, batch {batch}", rate, peer_rate, goal))
        pairs = [(ours.prefill(), peer.prefill() if peer else None) for _ in range(15 if quick else 35)]
        rate = PREFILL_PROMPT / _undisturbed([own for own, _ in pairs])
        peer_rate = PREFILL_PROMPT / _undisturbed([other for _, other in pairs if other]) if peer else None
        goal = PREFILL_GOAL if bundle.dtype == "fp32" else INT8_PREFILL_GOAL
        rows.append(_row(f"{kind}prefill tokens/s, {PREFILL_PROMPT} tokens", rate, peer_rate, goal))
    return rows


def _stall(ours: Ours, rounds: int) -> dict[str, Any]:
    """What a long prompt costs those who decode. Of several rounds the best: another tenant can only lengthen a gap."""
    gaps, parts = zip(*(ours.stall() for _ in range(rounds)), strict=True)
    name = "longest gap beside a prompt / step + chunk, ms"
    return _row(name, 1e3 * min(gaps), 1e3 * min(parts), STALL_GOAL, lower_is_better=True)


def _over_http(ours: Ours, threads: int, seconds: float) -> list[dict[str, Any]]:
    served = Served(threads)
    try:
        # Rounds, and the best of each: another tenant of the machine can only slow a round down. More clients than
        # places in the first two, so that a place does not stand empty while its client asks for the next answer.
        crowd = MAX_BATCH * 3 // 2
        rounds = [
            (
                served.closed_loop("continuous", MAX_BATCH, seconds, crowd),
                (ours.closed_loop(seconds, crowd), math.inf),
                served.closed_loop("continuous", MAX_BATCH, seconds),
                served.closed_loop("continuous", 1, seconds),
                served.closed_loop("dynamic", MAX_BATCH, seconds),
                served.closed_loop("static", MAX_BATCH, seconds),
            )
            for _ in range(2)
        ]
    finally:
        served.close()
    crowded, alone, continuous, single, dynamic, static = (
        (max(rate for rate, _ in each), min(ttft for _, ttft in each)) for each in zip(*rounds, strict=True)
    )
    other_ttft = min(single[1], dynamic[1], static[1])
    return [
        _row("served / engine alone, tokens/s", crowded[0], alone[0], SERVED_GOAL),
        _row("max batch 16 / max batch 1, tokens/s", continuous[0], single[0], BATCHING_GOAL),
        _row("p99 TTFT, continuous / best other policy, s", continuous[1], other_ttft, 1.0, lower_is_better=True),
    ]


def main() -> int:
    """Run all rows; 0 if each is ok."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, about a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--threads", type=int, default=1, help="threads of both engines (default 1)")
    options = parser.parse_args()
    bundle = builder.preset("demo", "fp32")
    print(f"demo, {bundle.shape.parameters / 1e6:.1f}M weights, fp32 unless said, {options.threads} thread(s)")
    print(f"{'':44} {'ours':>10} {'other':>10} {'ratio':>7}")
    ours = Ours(bundle, options.threads)
    try:
        rows = _against_ctranslate2(ours, bundle, options.threads, options.quick)
        rows.append(_stall(ours, 4 if options.quick else 12))
        rows += _over_http(ours, options.threads, 1.7 if options.quick else 8.0)
    finally:
        ours.close()
    int8 = builder.preset("demo", "int8")
    ours = Ours(int8, options.threads)
    try:
        rows += _against_ctranslate2(ours, int8, options.threads, options.quick)
    finally:
        ours.close()
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
