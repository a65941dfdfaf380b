"""Whether the bundled server stands a long mixed load: nothing leaks, nothing mixes, every refusal is the right one.

    python bench/soak.py [--minutes 10] [--quick] [--json FILE] [--seed N] [--model NAME] [-- SERVER OPTIONS]

Clients (half as many again as the server has places) ask without a pause: chats and completions, streamed and not,
greedy and sampled, with stop strings and several answers. 5 % go away in the middle, 5 % send what no server should
take, 1 % ask for more than the context holds. Rows:

- good requests answered right: each greedy answer is compared with the same request asked alone beforehand. A
  difference is excused only where the two best logits of the reference lie within 1e-3 of each other at the first
  difference, because the shape of a batch changes the rounding; those are counted and shown.
- refusals as they should be: bad and over-long requests got their 4xx, and nothing else did.
- slots given back: afterwards nothing runs, nothing waits, and as many answers as there are places run together again.
- memory: the median of the last fifth ÷ that of the second one, at most 1.05. The first fifth warms up.

``--quick`` lasts 40 s. Exit code 0 only if every row is ok; there is no allowance for noise, because nothing here is a
speed.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

MAX_BATCH = 16
CLIENTS = MAX_BATCH * 3 // 2
POOL = 120  # different good requests
TIE = 1e-3  # a gap between the two best log-probabilities within which rounding decides
MEMORY_GOAL = 1.05
DISCONNECTS, BAD, OVER_LONG = 0.05, 0.05, 0.01
BAD_REQUESTS: list[tuple[bytes, int]] = [
    (b"{", 400),
    (b"[]", 400),
    (b"\xff\xfe", 400),
    (b'{"model": "MODEL"}', 400),
    (b'{"model": "another", "prompt": "x"}', 404),
    (b'{"model": "MODEL", "prompt": "x", "max_tokens": 0}', 400),
    (b'{"model": "MODEL", "prompt": "x", "max_tokens": "many"}', 400),
    (b'{"model": "MODEL", "prompt": [-1]}', 400),
    (b'{"model": "MODEL", "prompt": "x", "temperature": 9}', 400),
    (b'{"model": "MODEL", "prompt": "x", "unheard_of": 1}', 400),
    (b'{"model": "MODEL", "prompt": "\\ud800"}', 400),
]
NO_HTTP = [
    b"\x16\x03\x01\x02\x00\r\n\r\n",
    b"GARBAGE\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
]


@dataclass(frozen=True)
class Good:
    """A request whose answer is known from asking it alone. ``texts``: of each answer; None where it was sampled."""

    path: str
    body: dict[str, Any]
    texts: tuple[str, ...] | None = None


@dataclass
class Account:
    """What happened."""

    asked: int = 0
    right: int = 0
    ties: int = 0
    refusals: int = 0
    refused_rightly: int = 0
    disconnects: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    doubtful: list[tuple[Good, int, int]] = field(
        default_factory=list
    )  # with the answer and the place of the difference
    memory: list[tuple[float, int]] = field(default_factory=list)  # seconds since the start, KiB


class Soak:
    """One run against a server at ``url`` whose process is ``pid``."""

    def __init__(self, session: aiohttp.ClientSession, model: str, context: int, pid: int, seed: int) -> None:
        self._session = session
        self._model = model
        self._context = context
        self._pid = pid
        self._rng = random.Random(seed)
        self.account = Account()

    async def run(self, seconds: float) -> list[dict[str, Any]]:
        """Play the load and return the rows."""
        pool = [await self._alone(self._made_up()) for _ in range(POOL)]
        began = time.monotonic()
        until = began + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._client(pool, until))
            group.create_task(self._watch_memory(began, until))
        for good, answer, at in self.account.doubtful:
            if await self._is_tie(good, answer, at):
                self.account.ties += 1
                self.account.right += 1
            else:
                self.account.wrong["another text than alone"] += 1
        return await self._rows(seconds)

    def _made_up(self) -> Good:
        rng = self._rng
        words = [
            rng.choice("alpha beta gamma delta epsilon zeta eta theta".split()) for _ in range(rng.randrange(1, 40))
        ]
        prompt = " ".join(words)[: self._context // 2]
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": rng.choice((1, 4, 16, 48)),
            "ignore_eos": rng.random() < 0.5,
            "stream": rng.random() < 0.7,
        }
        if rng.random() < 0.2:
            body |= {"temperature": 1.0, "top_p": 0.9, "top_k": 40, "seed": rng.randrange(100)}
        if rng.random() < 0.2:
            body["stop"] = [rng.choice("abcdefgh")]
        if rng.random() < 0.1:
            body["n"] = 2
        if rng.random() < 0.5:
            return Good("/v1/completions", {**body, "prompt": prompt})
        return Good("/v1/chat/completions", {**body, "messages": [{"role": "user", "content": prompt}]})

    async def _alone(self, good: Good) -> Good:
        texts = await self._texts(good)
        return Good(good.path, good.body, None if "temperature" in good.body else tuple(texts))

    async def _client(self, pool: list[Good], until: float) -> None:
        rng = random.Random(self._rng.random())
        while time.monotonic() < until:
            lot = rng.random()
            try:
                if lot < DISCONNECTS:
                    await self._go_away(rng.choice(pool), rng)
                elif lot < DISCONNECTS + BAD:
                    await self._ask_badly(rng)
                elif lot < DISCONNECTS + BAD + OVER_LONG:
                    await self._expect(await self._post("x" * (2 * self._context)), 400)
                else:
                    await self._ask(rng.choice(pool))
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self.account.wrong[f"{type(error).__name__}: {error}"] += 1

    async def _ask(self, good: Good) -> None:
        self.account.asked += 1
        texts = await self._texts(good)
        for answer, (text, expected) in enumerate(zip(texts, good.texts or texts, strict=True)):
            if text != expected:
                same = next(i for i in range(len(text) + 1) if text[: i + 1] != expected[: i + 1])
                self.account.doubtful.append((good, answer, same))
                return
        self.account.right += 1

    async def _texts(self, good: Good) -> list[str]:
        """The text of each answer to a request that must be served."""
        texts = [""] * good.body.get("n", 1)
        async with self._session.post(good.path, json=good.body) as response:
            if response.status != 200:
                raise aiohttp.ClientError(f"{response.status} {(await response.text())[:200]}")
            if not good.body["stream"]:
                for choice in (await response.json())["choices"]:
                    texts[choice["index"]] = choice["text"] if "text" in choice else choice["message"]["content"]
                return texts
            ended = False
            async for line in response.content:
                if line == b"data: [DONE]\n":
                    ended = True
                elif line.startswith(b"data: "):
                    for choice in json.loads(line[6:])["choices"]:
                        texts[choice["index"]] += (
                            choice["text"] if "text" in choice else choice["delta"].get("content", "")
                        )
            if not ended:
                raise aiohttp.ClientError("a stream without its end sign")
        return texts

    async def _go_away(self, good: Good, rng: random.Random) -> None:
        self.account.disconnects += 1
        body = {**good.body, "max_tokens": self._context // 3, "ignore_eos": True, "stream": True}
        timeout = aiohttp.ClientTimeout(total=rng.choice((0.001, 0.01, 0.1)))
        try:
            async with self._session.post(good.path, json=body, timeout=timeout) as response:
                for _ in range(rng.randrange(1, 20)):
                    await response.content.readline()
                response.close()
        except (TimeoutError, aiohttp.ClientError):
            pass  # it is we who went

    async def _ask_badly(self, rng: random.Random) -> None:
        if rng.random() < 0.2:
            await self._send_no_http(rng.choice(NO_HTTP))
            return
        body, status = rng.choice(BAD_REQUESTS)
        await self._expect(await self._post(None, body.replace(b"MODEL", self._model.encode())), status)

    async def _post(self, prompt: str | None, body: bytes = b"") -> int:
        data = body if prompt is None else json.dumps({"model": self._model, "prompt": prompt}).encode()
        async with self._session.post("/v1/completions", data=data) as response:
            await response.read()
            return response.status

    async def _send_no_http(self, sent: bytes) -> None:
        base = self._session._base_url
        assert base is not None
        reader, writer = await asyncio.open_connection(base.host, base.port)
        writer.write(sent)
        answer = await reader.read()
        writer.close()
        await self._expect(400 if answer.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400")) else 0, 400)

    async def _expect(self, status: int, wanted: int) -> None:
        self.account.refusals += 1
        if status == wanted:
            self.account.refused_rightly += 1
        else:
            self.account.wrong[f"status {status} instead of {wanted}"] += 1

    async def _is_tie(self, good: Good, answer: int, at: int) -> bool:
        """Whether the two best tokens after the first ``at`` characters of the answer are as good as equal."""
        assert good.texts is not None
        wanted = {"logprobs": True, "top_logprobs": 2} if "messages" in good.body else {"logprobs": 2}
        body = {**good.body, **wanted, "stream": False, "n": answer + 1}
        async with self._session.post(good.path, json=body) as response:
            thought = (await response.json())["choices"][answer]["logprobs"]
        if "content" in thought:
            tokens = [entry["token"] for entry in thought["content"]]
            tops = [[top["logprob"] for top in entry["top_logprobs"]] for entry in thought["content"]]
        else:
            tokens, tops = thought["tokens"], [list(top.values()) for top in thought["top_logprobs"]]
        position = 0
        for token, top in zip(tokens, tops, strict=True):
            if position + len(token) > at:
                return bool(abs(top[0] - top[1]) <= TIE)
            position += len(token)
        return False

    async def _watch_memory(self, began: float, until: float) -> None:
        while time.monotonic() < until:
            self.account.memory.append((time.monotonic() - began, resident_kib(self._pid)))
            await asyncio.sleep(0.25)

    async def _rows(self, seconds: float) -> list[dict[str, Any]]:
        account = self.account
        for _ in range(200):  # those who went away last are still being noticed
            health = await (await self._session.get("/health")).json()
            if not health["running"] and not health["waiting"]:
                break
            await asyncio.sleep(0.05)
        left = health["running"] + health["waiting"]
        together = await asyncio.gather(*(self._texts(self._burst(i)) for i in range(MAX_BATCH)))
        whole = sum(len(texts[0]) == 40 for texts in together)
        early = [kib for at, kib in account.memory if seconds / 5 <= at < 2 * seconds / 5]
        late = [kib for at, kib in account.memory if at >= 4 * seconds / 5]
        growth = statistics.median(late) / statistics.median(early)
        print(
            f"{account.disconnects} went away, {account.ties} differed at a tie of the two best logits", file=sys.stderr
        )
        for what, times in account.wrong.most_common(10):
            print(f"{times} × {what}", file=sys.stderr)
        return [
            row("good requests answered right", account.right, account.asked, account.right == account.asked > 0),
            row(
                "refusals as they should be",
                account.refused_rightly,
                account.refusals,
                account.refused_rightly == account.refusals > 0 and not account.wrong,
            ),
            row(
                "slots given back",
                MAX_BATCH - left if whole == MAX_BATCH else whole,
                MAX_BATCH,
                not left and whole == MAX_BATCH,
            ),
            row(
                "memory, MiB, end / start",
                statistics.median(late) / 1024,
                statistics.median(early) / 1024,
                growth <= MEMORY_GOAL,
            ),
        ]

    def _burst(self, i: int) -> Good:
        body = {"model": self._model, "prompt": f"burst {i}", "max_tokens": 40, "ignore_eos": True, "stream": True}
        return Good("/v1/completions", body)


def row(name: str, ours: float, other: float, ok: bool) -> dict[str, Any]:
    """One line of the result, printed. The goal is 1 for counts, the most that memory may grow for memory."""
    goal = MEMORY_GOAL if name.startswith("memory") else 1.0
    ratio = ours / other if other else None
    print(f"{name:32} {ours:>12,.1f} {other:>12,.1f} {ratio or 0:>7.3f}  goal {goal:.2f}  {'ok' if ok else 'MISSED'}")
    return {"name": name, "ours": ours, "other": other, "ratio": ratio, "goal": goal, "ok": ok}


def resident_kib(pid: int) -> int:
    """Memory of a process, in KiB (Linux)."""
    text = Path(f"/proc/{pid}/status").read_text("ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS"))


async def play(url: str, pid: int, seconds: float, seed: int) -> list[dict[str, Any]]:
    """The rows of one run against a server at ``url``."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        async with session.get("/v1/models") as response:
            (card,) = (await response.json())["data"]
        return await Soak(session, card["id"], card["max_model_len"], pid, seed).run(seconds)


def main() -> int:
    """Run all rows; 0 if each is ok."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--quick", action="store_true", help="40 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--seed", type=int, default=1, help="of the load (default 1)")
    parser.add_argument("--model", default="tiny", help="what the server serves (default tiny)")
    parser.add_argument(
        "server", nargs="*", metavar="SERVER OPTIONS", help="after --: for the server, as --prefix-cache"
    )
    options = parser.parse_args()
    command = [sys.executable, "-m", "servers", "--model", options.model, "--port", "0", "--provider", "cpu"]
    with subprocess.Popen(
        [*command, "--max-batch-size", str(MAX_BATCH), "--exit-on-stdin-close", *options.server],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        line = server.stdout.readline()
        if " on http" not in line:
            print("the server did not start", file=sys.stderr)
            return 1
        url = line.split(" on ")[1].split()[0]
        rows = asyncio.run(play(url, server.pid, 40.0 if options.quick else options.minutes * 60, options.seed))
        assert server.stdin is not None
        server.stdin.close()
        server.wait(30)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return 0 if all(each["ok"] for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
