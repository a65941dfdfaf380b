"""How often ``loadtest explain`` names what limited a level whose limit is known, because it was made so.

    python bench/explain.py [--times 3] [--quick] [--json FILE]

Plays the real commands against the bundled server on this host, put into one state after the other, and looks at what
is said of the last level. A row is a state, right if each time the limit came first, what belongs to it was said
besides, and what it is not was not said:

- small batch: eight users, one place, slots for eight. The server's queue, and not its cache.
- no batching: the same by the scheduler.
- full slots: sixteen users, four slots. The server's queue, and the cache besides.
- unfilled batch: eight users, and a static scheduler that waits for sixteen. The server's queue.
- overload: more arrivals than one place can serve. The server's queue.
- long prompts: answers of one token. Prefill.
- long answers: short prompts, sixteen users, sixteen places. Decode.
- one user: the same, alone. Decode.
- more to come: one user, where eight bring more. Nothing.
- light load: two requests a second. Nothing.
- own cap: --max-in-flight holds requests back. Before the server.
- gateway: a proxy lets two of eight through. Before the server.
- busy client: 290,000 tokens a second, of a server without a model, for one generator process. The client.
- no metrics: long answers, --metrics off. It cannot be told, and is not guessed.

Elsewhere the client is left out of what is said: on a host that is busy with other things it is late as well.
``--quick`` plays four of them once: small batch, long prompts, long answers, own cap. Exit code 0 only if every row is
ok.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

LOADTEST = (sys.executable, "-m", "loadtest")
FAKE = (sys.executable, "-m", "servers.fake", "--port", "0", "--ttft-ms", "1", "--itl-ms", "1")
SHORT = ("--input-tokens", "16", "--output-tokens", "96")


class State(NamedTuple):
    """A server and a load, of which the last level's limit is known."""

    name: str
    limit: str
    serve: tuple[str, ...]
    load: tuple[str, ...]
    besides: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    quick: bool = False
    gateway: bool = False
    canned: bool = False


def places(batch: int, slots: int | None = None, scheduler: str = "continuous") -> tuple[str, ...]:
    """A server of so many places."""
    return ("--scheduler", scheduler, "--max-batch-size", str(batch), "--kv-slots", str(slots or batch))


def users(count: str | int) -> tuple[str, ...]:
    """So many of them, without pause."""
    return ("-c", str(count))


STATES = (
    State("small batch", "server_queue", places(1, 8), (*users(8), *SHORT), never=("kv_cache",), quick=True),
    State("no batching", "server_queue", places(8, 8, "none"), (*users(8), *SHORT), never=("kv_cache",)),
    State("full slots", "server_queue", places(4), (*users(16), *SHORT), besides=("kv_cache",)),
    State("unfilled batch", "server_queue", places(16, 16, "static"), (*users(8), *SHORT), never=("kv_cache",)),
    State("overload", "server_queue", places(1, 8), ("-r", "60", *SHORT), never=("kv_cache", "nothing")),
    State(
        "long prompts", "prefill", places(16), (*users(8), "--input-tokens", "480", "--output-tokens", "1"),
        never=("decode", "kv_cache", "nothing"), quick=True,
    ),
    State("long answers", "decode", places(16), (*users(16), *SHORT), never=("prefill", "server_queue"), quick=True),
    State("one user", "decode", places(16), (*users(1), *SHORT), never=("prefill", "server_queue", "before_server")),
    State("more to come", "nothing", places(16), (*users("8,1"), *SHORT), never=("server_queue",)),
    State("light load", "nothing", places(16), ("-r", "2", *SHORT), never=("server_queue", "before_server")),
    State(
        "own cap", "before_server", places(16), ("-r", "60", "--max-in-flight", "2", *SHORT), never=("server_queue",),
        quick=True,
    ),
    State("gateway", "before_server", places(16), (*users(8), *SHORT), never=("server_queue",), gateway=True),
    State("busy client", "client", (), ("-r", "3000", *SHORT, "--workers", "1"), canned=True),
    State("no metrics", "cannot_tell", places(16), (*users(16), *SHORT, "--metrics", "off")),
)  # fmt: skip


@contextlib.contextmanager
def served(command: tuple[str, ...]) -> Iterator[str]:
    """A server's URL; it ends when it is left."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            found = re.search(r"http://[\w.:]+", line)
            if found is None:
                raise SystemExit(f"no server: {' '.join(command)}")
            yield found[0]
        finally:
            process.terminate()


def _gateway(pipe: Any, behind: str, at_once: int) -> None:
    """Lets so many requests through at once; the others wait, and the server does not know of them."""
    from aiohttp import ClientSession, web

    async def main() -> None:
        places = asyncio.Semaphore(at_once)
        async with ClientSession(behind) as session:

            async def through(request: web.Request) -> web.StreamResponse:
                async with places, session.request(request.method, request.path, data=await request.read(),
                                                   headers={"Content-Type": "application/json"}) as answer:  # fmt: skip
                    reply = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
                    await reply.prepare(request)
                    async for piece in answer.content.iter_any():
                        await reply.write(piece)
                    return reply

            app = web.Application()
            app.router.add_route("*", "/{path:.*}", through)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            pipe.send(runner.addresses[0][1])
            await asyncio.Event().wait()

    asyncio.run(main())


@contextlib.contextmanager
def gateway(behind: str) -> Iterator[str]:
    """The URL of one in front of a server."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_gateway, args=(theirs, behind, 2), daemon=True)
    process.start()
    theirs.close()  # or its end would not be heard
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


def played(state: State, seconds: int, folder: Path) -> list[dict[str, Any]]:
    """What is said of the state's last level, the heaviest first."""
    serve = FAKE if state.canned else (*LOADTEST, "serve", "--model", "tiny", "--port", "0", *state.serve)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(served(serve))
        load = (*state.load, "-d", f"{seconds}s", "--warmup", "1s", "--grace", "3s")
        if state.gateway:
            load += ("--metrics", f"{url}/metrics")
            url = stack.enter_context(gateway(url))
        done = subprocess.run(
            (*LOADTEST, "run", url, "--endpoint", "chat", *load, "-o", str(folder), "-q", "--no-html"),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{state.name}: {done.stderr}")
    told = subprocess.run((*LOADTEST, "explain", str(folder), "--json", "-"), capture_output=True, check=True).stdout
    findings: list[dict[str, Any]] = json.loads(told)["levels"][-1]["findings"]
    return findings


def right(state: State, findings: list[dict[str, Any]]) -> bool:
    """Whether that is what limited it."""
    limits = [finding["limit"] for finding in findings if finding["limit"] != "client" or state.limit == "client"]
    first = limits[0] if limits else "cannot_tell"
    return first == state.limit and {*state.besides} <= {*limits} and not {*state.never} & {*limits}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="how often each state is played (default: 3)")
    parser.add_argument("--only", metavar="NAME", choices=[one.name for one in STATES], help="this state alone")
    parser.add_argument("--quick", action="store_true", help="four states, once each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    options = parser.parse_args()
    times, seconds = (1, 4) if options.quick else (options.times, 8)
    rows = []
    for state in STATES:
        if (options.quick and not state.quick) or options.only not in (None, state.name):
            continue
        said: Counter[str] = Counter()
        count = 0
        with tempfile.TemporaryDirectory() as folder:
            for number in range(times):
                findings = played(state, seconds, Path(folder) / str(number))
                count += right(state, findings)
                said[", ".join(f"{one['limit']} {one['weight']:.0%}" for one in findings)] += 1
        ok = count == times
        print(f"{state.name:16} {state.limit:14} {count} of {times}  {'ok' if ok else 'MISSED'}", flush=True)
        for words in said:
            print(f"    {words}", flush=True)
        rows.append({"name": state.name, "ours": count, "other": None, "ratio": count / times, "goal": 1, "ok": ok})
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
