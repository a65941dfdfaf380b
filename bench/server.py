"""How fast the bundled server is, as ratios to other engines on the same weights, and what its policies are worth.

    python bench/server.py [--quick] [--json FILE] [--threads N] [--provider cpu|cuda] [--dtype TYPE]

The engine, in turns with a peer that has the same shape, weights, precision and number of threads, by the 20th
percentile of the times: output tokens/s while 1, 4, 8, 16 or 32 requests decode (32 prompt tokens each) against
CTranslate2 and llama.cpp (llama-cpp-python), and prompt tokens/s of one 128-token prompt against CTranslate2; in int8
at three batch sizes against CTranslate2. What a step of 16 requests costs in Python (tiny model), against 60 µs. The
longest gap in the answers of 8 requests while a 448-token prompt joins them, against a plain step and one chunk of it.

The server, by ``loadtest run``: how much of the engine's own throughput reaches 24 streams over HTTP (64 prompt tokens,
16 to 48 answer tokens, 16 at a time); with 16 streams what continuous batching gains over none, and its 99th
percentile of TTFT against the best of the other policies. Then Poisson arrivals for 30 s, of answers whose lengths have
a tail: that percentile again, each policy at 60 % of what it carries in a closed loop of 16; and whether the other
policies, and they alone, are called overloaded at 85 % of what continuous batching carries.

``--quick`` (under 50 s) has fewer repetitions, and neither the rows against llama.cpp nor the Poisson ones.

``--provider cuda`` plays all of it in fp16 on the GPU, in under 5 minutes, as the served rows are played once and the
Poisson ones for 10 s: a GPU answers as many requests in that time. Without one it ends with exit code 3. llama.cpp is
absent there.

Exit code 0 only if every ratio reaches its goal less 15 %, the noise of a shared machine. A row whose peer is not
installed does not.
"""

import argparse
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

import peers

from servers import builder, device, tokenizer
from servers.batching import Batching
from servers.decoder import Dtype
from servers.engine import Engine, Generation, Output
from servers.errors import StartError
from servers.metrics import Metrics
from servers.model import PREFILL_CHUNK, load

ROOT = Path(__file__).parent.parent
PROMPT, PREFILL_PROMPT, SERVED_PROMPT, JOINING_PROMPT = 32, 128, 64, 448  # tokens
ANSWER = (16, 48)  # tokens of a served answer: with equal ones all would end together, and every policy look alike
TAIL = ("--input-tokens", "uniform(8, 56)", "--output-tokens", "lognormal(64, 100, min=4, max=512)")
STALLED = 8  # requests that decode while a long prompt joins them
STEPS = 20  # decode steps of one measurement
BATCHES = (1, 4, 8, 16, 32)
MAX_BATCH = 16
SEED = 5

Goals = dict[type[peers.Peer], dict[int, float]]  # by peer and batch size
CTRANSLATE2: Goals = {peers.CTranslate2: {1: 1.0, 4: 1.5, 8: 1.5, 16: 1.4, 32: 1.4}}
LLAMA_CPP: Goals = {peers.LlamaCpp: dict.fromkeys(BATCHES, 1.3)}
INT8: Goals = {peers.CTranslate2: dict.fromkeys((1, 8, 32), 1.0)}
PREFILL_GOAL, INT8_PREFILL_GOAL = 1.0, 0.7
PYTHON_LIMIT_US = 60.0
STALL_GOAL = 1 / 1.6
SERVED_GOAL, BATCHING_GOAL = 0.9, 2.0
POISSON_GOAL = 4.0
POISSON_S: dict[device.Provider, float] = {"cpu": 30.0, "cuda": 10.0}
NOISE = 0.85


class Place(NamedTuple):
    """Where and how the rows are played."""

    provider: device.Provider
    dtype: Dtype
    threads: int


class Step(NamedTuple):
    """A run of the model, once its outputs are there."""

    at: float  # time.perf_counter
    rows: int
    run_s: float  # of it, in ONNX Runtime


class Session:
    """ONNX Runtime's session, with how long its latest run took."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.run_s = 0.0

    def run_with_iobinding(self, *arguments: Any) -> None:
        """Run the model."""
        begun = time.perf_counter()
        self._session.run_with_iobinding(*arguments)
        self.run_s = time.perf_counter() - begun

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class Ours:
    """The engine, as the server runs it, without HTTP."""

    def __init__(self, model: str, place: Place) -> None:
        slots = max(BATCHES)
        self.bundle = bundle = builder.preset(model, place.dtype)
        self._model = load(
            bundle, place.provider, slots=slots, max_seq_len=bundle.shape.max_seq_len, threads=place.threads
        )
        self._session = self._model._session = Session(self._model._session)
        self._steps: list[Step] = []
        self._left = 0
        self._done = threading.Event()
        metrics = Metrics(bundle.name, lambda: self._engine.running, lambda: self._engine.waiting, slots)
        batching = Batching(max_batch_size=slots)
        self._engine = Engine(self._model, batching, self._published, self._failed, ran=metrics.ran)
        self._engine.start()

    def decode(self, prompts: peers.Prompts, count: int) -> list[float]:
        """Seconds of each step in which all ``prompts`` get one more token."""
        return _gaps(self._decode(prompts, count))

    def python(self, prompts: peers.Prompts, count: int) -> list[float]:
        """Seconds that each such step spends outside ONNX Runtime."""
        steps = self._decode(prompts, count)
        return [gap - step.run_s for gap, step in zip(_gaps(steps), steps[1:], strict=True)]

    def prefill(self, prompt: list[int]) -> float:
        """Seconds of one prompt and its first token."""
        self._model.clear(0)
        begun = time.perf_counter()
        self._model.prefill(0, prompt)
        return time.perf_counter() - begun

    def answer(self, prompt: list[int], count: int) -> list[int]:
        """The greedy answer, ``count`` tokens."""
        self._model.clear(0)
        first = self._model.prefill(0, prompt)
        return [first, *(self._model.decode(1)[0] for _ in range(count - 1))]

    def stall(self) -> tuple[float, float]:
        """Seconds of the longest gap between two tokens while a long prompt joins those who decode, and of a plain step
        of theirs and the last chunk of such a prompt."""
        prompts = [prompt_ids(i, PROMPT) for i in range(STALLED)]
        self._submit([Generation(prompt, max_tokens=4 * STEPS, ignore_eos=True) for prompt in prompts], later=1)
        while sum(step.rows == STALLED for step in self._steps) < STEPS:
            time.sleep(1e-3)
        joined = time.perf_counter()
        self._engine.submit(Generation(prompt_ids(STALLED, JOINING_PROMPT), max_tokens=1))
        self._wait()
        steps = [step for step in self._steps if step.rows == STALLED]
        before = _gaps([step for step in steps if step.at < joined])
        longest = max(later.at - earlier.at for earlier, later in itertools.pairwise(steps) if later.at >= joined)
        self._model.clear(0)
        self._model.prefill(0, prompt_ids(0, JOINING_PROMPT - PREFILL_CHUNK))
        begun = time.perf_counter()
        self._model.prefill(0, prompt_ids(0, PREFILL_CHUNK))
        return longest, _undisturbed(before) + time.perf_counter() - begun

    def closed_loop(self, seconds: float, warmup_s: float, clients: int) -> float:
        """Output tokens/s with ``clients`` requests always in flight, each replaced when it ends."""
        counts: list[tuple[float, int]] = []
        lengths = random.Random(SEED)
        begun = time.perf_counter() + warmup_s
        until = begun + seconds

        def another() -> Generation:
            prompt = prompt_ids(len(counts), SERVED_PROMPT)
            return Generation(prompt, max_tokens=lengths.randint(*ANSWER), ignore_eos=True)

        def published(outputs: list[Output]) -> None:
            now = time.perf_counter()
            counts.append((now, len(outputs)))
            for output in outputs:
                if output.finish and now < until:
                    engine.submit(another())
                elif output.finish and not engine.running:
                    self._done.set()

        self._done.clear()
        engine = Engine(self._model, Batching(max_batch_size=MAX_BATCH), published, self._failed)
        engine.start()
        for _ in range(clients):
            engine.submit(another())
        self._wait()
        engine.stop()
        return sum(count for at, count in counts if begun <= at < until) / seconds

    def close(self) -> None:
        """Stop the engine."""
        self._engine.stop()

    def _decode(self, prompts: peers.Prompts, count: int) -> list[Step]:
        # Those who start first decode while the last prompts run; they get that many tokens more.
        tokens = count + sum(map(len, prompts)) // PREFILL_CHUNK + 1
        self._submit([Generation(prompt, max_tokens=tokens, ignore_eos=True) for prompt in prompts])
        self._wait()
        return [step for step in self._steps if step.rows == len(prompts)][1:]  # the first may be a prompt's token

    def _submit(self, generations: Sequence[Generation], later: int = 0) -> None:
        """Start them; ``_wait`` waits for these and for ``later`` ones."""
        self._steps, self._left = [], len(generations) + later
        self._done.clear()
        for generation in generations:
            self._engine.submit(generation)

    def _wait(self) -> None:
        if not self._done.wait(120):
            raise TimeoutError("the engine did not finish within 120 s")

    def _published(self, outputs: list[Output]) -> None:
        self._steps.append(Step(time.perf_counter(), len(outputs), self._session.run_s))
        self._left -= sum(output.finish is not None for output in outputs)
        if not self._left:
            self._done.set()

    def _failed(self, error: Exception) -> None:
        raise error


def prompt_ids(index: int, length: int) -> list[int]:
    """A prompt of ``length`` tokens, different for each index."""
    return [tokenizer.BOS, *(0x20 + (7 * i + 13 * index) % 95 for i in range(length - 1))]


def _undisturbed(seconds: Sequence[float]) -> float:
    """The 20th percentile: what it takes when no other tenant of the machine is in the way."""
    return sorted(seconds)[len(seconds) // 5]


def _gaps(steps: Sequence[Step]) -> list[float]:
    return [later.at - earlier.at for earlier, later in itertools.pairwise(steps)]


def _row(name: str, ours: float, other: float | None, goal: float, *, lower_is_better: bool = False) -> dict[str, Any]:
    """One line of the result; ``other`` is None where the peer is absent, infinite where it never answered."""
    ratio = None
    if other is not None and ours < math.inf:
        ratio = other / ours if lower_is_better else ours / other
    ok = ratio is not None and ratio >= goal * NOISE
    shown = ["absent" if value is None else f"{value:,.2f}" for value in (ours, other, ratio)]
    print(
        f"{name:54} {shown[0]:>9} {shown[1]:>9} {shown[2]:>7}  goal {goal:.2f}  {'ok' if ok else 'MISSED'}", flush=True
    )
    row = {"name": name, "ours": ours, "other": other, "ratio": ratio, "goal": goal, "ok": ok}
    return {key: None if value == math.inf else value for key, value in row.items()}


def _engines(ours: Ours, place: Place, goals: Goals, quick: bool) -> list[dict[str, Any]]:
    """Decoding against every peer of ``goals``, and a prompt against CTranslate2."""
    rows = []
    kind = "" if place.dtype == "fp32" else f"{place.dtype} "
    with tempfile.TemporaryDirectory() as folder:
        found = {peer: _found(peer, ours, place, Path(folder) / peer.name) for peer in goals}
        present: list[Ours | peers.Peer] = [ours, *filter(None, found.values())]
        for batch in goals[peers.CTranslate2]:
            prompts = [prompt_ids(i, PROMPT) for i in range(batch)]
            steps: dict[Any, list[float]] = {engine: [] for engine in present}
            for _ in range(max(2, 4 - batch // 8) if quick else 12):
                for engine in present:
                    steps[engine] += engine.decode(prompts, STEPS)
            rates = {engine: batch / _undisturbed(each) for engine, each in steps.items()}
            for peer, other in found.items():
                name = f"{kind}decode tokens/s, batch {batch} / {peer.name}"
                rows.append(_row(name, rates[ours], rates.get(other), goals[peer][batch]))
        prompt = prompt_ids(0, PREFILL_PROMPT)
        other = found[peers.CTranslate2]
        pairs = [(ours.prefill(prompt), other.prefill(prompt) if other else 0.0) for _ in range(9 if quick else 35)]
        own_s, other_s = (_undisturbed(each) for each in zip(*pairs, strict=True))
    goal = INT8_PREFILL_GOAL if place.dtype == "int8" else PREFILL_GOAL
    name = f"{kind}prefill tokens/s, {PREFILL_PROMPT} tokens / {peers.CTranslate2.name}"
    return [*rows, _row(name, PREFILL_PROMPT / own_s, PREFILL_PROMPT / other_s if other else None, goal)]


def _found(kind: type[peers.Peer], ours: Ours, place: Place, folder: Path) -> peers.Peer | None:
    """The peer, seen to give the same answer (in fp32: less is rounded by each its own way), or None where it is not
    installed, or not for this device."""
    folder.mkdir()
    try:
        peer = kind(ours.bundle, place.provider, place.threads, folder)
    except ImportError as error:
        print(f"{kind.name} is absent: {error}", file=sys.stderr)
        return None
    prompt = prompt_ids(0, PROMPT)
    if place.dtype == "fp32" and ours.answer(prompt, 8) != peer.answer(prompt, 8):
        raise RuntimeError(f"{kind.name} answers otherwise from the same weights: the comparison is not like for like")
    return peer


def _python(place: Place, rounds: int) -> dict[str, Any]:
    """By the tiny model, whose weights leave the processor's caches to Python."""
    ours = Ours("tiny", place._replace(threads=1))
    prompts = [prompt_ids(i, PROMPT) for i in range(MAX_BATCH)]
    try:
        seconds = [each for _ in range(rounds) for each in ours.python(prompts, STEPS)]
    finally:
        ours.close()
    name = f"Python of a step, tiny, batch {MAX_BATCH} / limit, µs"
    return _row(name, 1e6 * _undisturbed(seconds), PYTHON_LIMIT_US, 1.0, lower_is_better=True)


def _stall(ours: Ours, rounds: int) -> dict[str, Any]:
    """What a long prompt costs those who decode. Of several rounds the best: another tenant can only lengthen a gap."""
    gaps, parts = zip(*(ours.stall() for _ in range(rounds)), strict=True)
    name = "longest gap beside a prompt / step + chunk, ms"
    return _row(name, 1e3 * min(gaps), 1e3 * min(parts), STALL_GOAL, lower_is_better=True)


def _loadtest(place: Place, measured_s: float, warmup_s: float, *arguments: str) -> list[dict[str, Any]]:
    """The levels in the result of a ``loadtest run`` of the bundled server."""
    command = [sys.executable, *"-m loadtest run -q --json -".split()]
    command += ["--provider", place.provider, "--dtype", place.dtype, "--threads", str(place.threads)]
    command += ["--max-batch-size", str(MAX_BATCH), "--seed", str(SEED), *arguments]
    command += ["-d", f"{warmup_s + measured_s}s", "--warmup", f"{warmup_s}s"]
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [*command, "-o", f"{folder}/result"], cwd=ROOT, check=False, capture_output=True, text=True
        )
    if ended.returncode:
        raise RuntimeError(f"loadtest run ended with {ended.returncode}: {ended.stderr.strip()}")
    levels: list[dict[str, Any]] = json.loads(ended.stdout)["levels"]
    for level in levels:
        for reason in level["client"]["reasons"]:
            print(f"{level['name']}: {reason}", file=sys.stderr)
    return levels


def _ttft_p99_s(level: dict[str, Any]) -> float:
    """Of every request that was due; infinite where too many of them never got a token."""
    p99_ms = level["latency"]["ttft_ms"]["due"]["p99"]
    return math.inf if p99_ms is None else float(p99_ms) / 1e3


def _over_http(ours: Ours, place: Place, quick: bool) -> list[dict[str, Any]]:
    """Closed loops, by the medians of several rounds."""
    seconds, warmup_s = (2.0, 0.5) if quick else (8.0, 1.0)
    crowd = MAX_BATCH * 3 // 2  # so that a place does not stand empty while its client asks for the next answer
    asked = ("--input-tokens", str(SERVED_PROMPT), "--output-tokens", f"uniform{ANSWER}", "--endpoint", "completions")
    shares: list[tuple[float, float]] = []
    policies: list[list[dict[str, Any]]] = []
    for _ in range(1 if quick or place.provider == "cuda" else 3):
        # Two readings of one number want the longer window: of 2 s they differ by a fifth by themselves.
        long_s = 2 * seconds if quick else seconds
        (crowded,) = _loadtest(place, long_s, warmup_s, "--scheduler", "continuous", "-c", str(crowd), *asked)
        shares.append((crowded["throughput"]["output_tokens_per_s"], ours.closed_loop(long_s, warmup_s, crowd)))
        every = "continuous,none,dynamic,static"
        policies.append(_loadtest(place, seconds, warmup_s, "--scheduler", every, "-c", str(MAX_BATCH), *asked))
    served, alone = (statistics.median(each) for each in zip(*shares, strict=True))
    rates = [[level["throughput"]["output_tokens_per_s"] for level in levels] for levels in policies]
    together, single, *_ = (statistics.median(each) for each in zip(*rates, strict=True))
    waits = [[_ttft_p99_s(level) for level in levels] for levels in policies]
    own_wait, *other_waits = (statistics.median(each) for each in zip(*waits, strict=True))
    return [
        _row(f"served to {crowd} streams / engine alone, tokens/s", served, alone, SERVED_GOAL),
        _row("continuous / no batching, tokens/s", together, single, BATCHING_GOAL),
        _row("p99 TTFT, continuous / best other policy, s", own_wait, min(other_waits), 1.0, lower_is_better=True),
    ]


def _poisson(place: Place) -> list[dict[str, Any]]:
    """Open loops at a share of what was carried in a closed one."""
    policies = ("continuous", "dynamic", "static")
    every = ("--scheduler", ",".join(policies), *TAIL)
    seconds = POISSON_S[place.provider]
    levels = _loadtest(place, seconds, 3.0, "-c", str(MAX_BATCH), *every)
    carried = {each: level["rates"]["completed_per_s"] for each, level in zip(policies, levels, strict=True)}
    waits, right = {}, 0
    for policy, rate in carried.items():
        (level,) = _loadtest(place, seconds, 2.0, "-r", f"{0.6 * rate:.2f}", "--scheduler", policy, *TAIL)
        waits[policy] = _ttft_p99_s(level)
        right += _called(level, "ok")
    own_wait = waits.pop("continuous")
    name = "p99 TTFT at 60 % of its own capacity, continuous / {}, s"
    rows = [_row(name.format(each), own_wait, wait, POISSON_GOAL, lower_is_better=True) for each, wait in waits.items()]
    rate = 0.85 * carried["continuous"]
    levels = _loadtest(place, seconds, 2.0, "-r", f"{rate:.2f}", "--grace", "2s", *every)
    for policy, level in zip(policies, levels, strict=True):
        right += _called(level, "ok" if policy == "continuous" else "overloaded")
    name = "levels rightly called overloaded or not, at 60 and 85 %"
    return [*rows, _row(name, right, 2 * len(policies), 1.0)]


def _called(level: dict[str, Any], status: str) -> bool:
    if level["status"] != status:
        print(f"{level['name']} is called {level['status']}, not {status}", file=sys.stderr)
    return bool(level["status"] == status)


def _places(provider: str, dtype: Dtype | None, threads: int) -> list[Place]:
    """One for each precision; the first is that of the rows that are played in one only.

    Raises:
        StartError: there is no such device here, or it does not run that precision.
    """
    where = device.choose(provider, None if provider == "cpu" else device.why_no_cuda())
    known = device.DTYPES[where]
    if dtype is not None and dtype not in known:
        raise StartError(f"--dtype {dtype}: {where} runs {' or '.join(known)} only")
    if where == "cuda":
        device.load_cuda_libraries()
    return [Place(where, each, threads) for each in ([dtype] if dtype else known)]


def _rows(places: list[Place], quick: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for place in places:
        ours = Ours("demo", place)
        if place == places[0]:
            weights = f"{ours.bundle.shape.parameters / 1e6:.1f}M weights"
            print(f"demo, {weights}, {place.provider}, {place.dtype} unless said, {place.threads} thread(s)")
            print(f"{'':54} {'ours':>9} {'other':>9} {'ratio':>7}")
        try:
            goals = INT8 if place.dtype == "int8" else CTRANSLATE2 if quick else CTRANSLATE2 | LLAMA_CPP
            rows += _engines(ours, place, goals, quick)
            if place == places[0]:
                rows.append(_python(place, 10))
                rows.append(_stall(ours, 2 if quick else 12))
                rows += _over_http(ours, place, quick)
        finally:
            ours.close()
    return rows if quick else rows + _poisson(places[0])


def main() -> int:
    """Run all rows; 0 if each is ok."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and rows, under 50 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--threads", type=int, default=1, help="threads of each engine (default 1)")
    parser.add_argument("--provider", choices=("auto", *device.PROVIDERS), default="cpu", help="default cpu")
    parser.add_argument(
        "--dtype", choices=("fp32", "fp16", "int8"), help="precision of all rows (default: fp32 and int8, on CUDA fp16)"
    )
    options = parser.parse_args()
    try:
        rows = _rows(_places(options.provider, options.dtype, options.threads), options.quick)
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
