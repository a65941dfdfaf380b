"""Replays recorded server behaviours, so that any load-testing client can be pointed at them.

    python tests/cases/replay_server.py [--host 127.0.0.1] [--port 8765] [--max-seconds 3600]
        [--tls-cert cert.pem --tls-key key.pem]

Routes: ``POST /case/<id>/<anything>`` replays a case; ``GET /case/<id>/v1/models`` lists one model, ``m``; ``GET
/cases``, ``GET /stats[/<id>]`` and ``POST /stats/reset`` tell of the cases and of what was asked. README.md beside
this file says what a case is made of. Only the standard library is needed.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import socket
import ssl
import struct
import time
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).resolve().parent / "recorded"
_HANG_S = 30.0
_RESET_AFTER_S = 0.03  # so that the client has read what was written: a reset may throw it away
_LONGEST_LINE = 1 << 24


class Case:
    """One recorded behaviour: its replies by name, each bytes and timing, and the rules that pick one."""

    def __init__(self, folder: Path) -> None:
        self.about: dict[str, Any] = json.loads((folder / "case.json").read_text("utf-8"))
        self.replies: dict[str, tuple[bytes, dict[str, Any]]] = {}
        for reply in folder.glob("*.bin"):
            timing = folder / ("timing.json" if reply.stem == "response" else f"{reply.stem}.timing.json")
            self.replies[reply.stem] = (reply.read_bytes(), json.loads(timing.read_text("utf-8")))
        rules = folder / "server.json"
        self.server: dict[str, Any] = json.loads(rules.read_text("utf-8")) if rules.is_file() else {}
        self.posts = 0

    def pick(self, body: dict[str, Any], headers: dict[str, str], path: str) -> str:
        """The name of the reply that this request gets."""
        for rule in self.server.get("rules", []):
            if all(self._holds(kind, value, body, headers, path) for kind, value in rule["if"].items()):
                return str(rule["serve"])
        return "response"

    def _holds(self, kind: str, value: Any, body: dict[str, Any], headers: dict[str, str], path: str) -> bool:
        match kind:
            case "body_has":
                return str(value) in body
            case "header_has":
                return str(value[1]).lower() in headers.get(str(value[0]).lower(), "").lower()
            case "header_lacks":
                return str(value).lower() not in headers
            case "nth_below":
                return self.posts < int(value)
            case "path_ends":
                return path.endswith(str(value))
        raise ValueError(f"server.json: no such condition: {kind}")


class Stats:
    """What was asked of one case."""

    def __init__(self) -> None:
        self.connections = self.requests = self.reused_connections = self.in_flight = self.peak_in_flight = 0
        self.client_closed_early = 0
        self.authorization_seen = False
        self.paths: dict[str, int] = {}
        self.accept_encoding: dict[str, int] = {}
        self.prompts: dict[str, int] = {}
        self.last_body: dict[str, Any] = {}
        self.last_replay: dict[str, Any] | None = None

    def request(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> None:
        """Count one request."""
        self.requests += 1
        _count(self.paths, path)
        _count(self.accept_encoding, headers.get("accept-encoding", "(none)"))
        self.authorization_seen = self.authorization_seen or "authorization" in headers
        asked = json.dumps(body.get("messages", body.get("prompt")), sort_keys=True)
        _count(self.prompts, hashlib.sha256(asked.encode()).hexdigest()[:16])
        self.last_body = body

    def public(self) -> dict[str, Any]:
        """All of it as JSON."""
        shown = {key: value for key, value in vars(self).items() if key not in ("prompts", "in_flight")}
        repeated = sum(times - 1 for times in self.prompts.values())
        return {**shown, "distinct_prompts": len(self.prompts), "repeated_prompts": repeated}


def _count(into: dict[str, int], key: str) -> None:
    into[key] = into.get(key, 0) + 1


class Replayer:
    """Serves the cases of a folder."""

    def __init__(self, recorded: Path = RECORDED) -> None:
        folders = sorted(path.parent for path in recorded.glob("*/response.bin"))
        self.cases = {folder.name: Case(folder) for folder in folders}
        self.stats: dict[str, Stats] = {}

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        broken = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)
        try:
            with contextlib.suppress(*broken):  # a client that goes away, or speaks nonsense: part of the job
                await self._serve(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen: set[str] = set()
        idle_s: float | None = None
        while True:
            try:
                asked = await asyncio.wait_for(_head(reader), idle_s)
            except TimeoutError:
                return
            if asked is None:
                return
            method, target, headers = asked
            raw = await _body(reader, writer, headers)
            path = target.split("?")[0]
            _, first, name, rest = (*path.split("/", 3), "", "", "")[:4]
            if first != "case" or name not in self.cases or rest.startswith("/") or method == "GET":
                writer.write(self._answer(method, path))
                await writer.drain()
                idle_s = None
                continue
            case, stats = self.cases[name], self.stats.setdefault(name, Stats())
            if name in seen:
                stats.reused_connections += 1
                if case.server.get("on_reuse") == "close":
                    _count(stats.paths, "(closed on reuse)")
                    writer.transport.abort()
                    return
            else:
                stats.connections += 1
                seen.add(name)
            try:
                body = json.loads(raw or b"{}")
            except ValueError:
                body = {}
            stats.request(path, headers, body if isinstance(body, dict) else {})
            reply = case.pick(stats.last_body, headers, path)
            case.posts += 1
            timing = case.replies[reply][1]
            end = await self._replay(writer, stats, reply, *case.replies[reply])
            if end != "keep-alive":
                await _end(reader, writer, end)
                return
            idle_s = timing["idle_close_ms"] / 1000 if "idle_close_ms" in timing else None

    async def _replay(
        self, writer: asyncio.StreamWriter, stats: Stats, name: str, data: bytes, timing: dict[str, Any]
    ) -> str:
        """Write a reply step by step; returns how the connection is to end."""
        written: list[float] = []
        stats.last_replay = {"served": name, "step_written_ms": written}
        stats.in_flight += 1
        stats.peak_in_flight = max(stats.peak_in_flight, stats.in_flight)
        steps = timing["steps"]
        began = time.perf_counter()
        try:
            for (start, delay_ms), (stop, _) in zip(steps, [*steps[1:], [len(data), 0]], strict=True):
                await asyncio.sleep(delay_ms / 1000)
                writer.write(data[start:stop])
                written.append(round((time.perf_counter() - began) * 1000, 2))
                await writer.drain()
                if writer.transport.is_closing():
                    stats.client_closed_early += 1
                    return "close"
        finally:
            stats.in_flight -= 1
        return str(timing.get("end", "keep-alive"))

    def _answer(self, method: str, path: str) -> bytes:
        """The reply to everything that is not a case being played."""
        bits = path.strip("/").split("/")
        if path == "/cases":
            return _json("200 OK", [case.about for case in self.cases.values()])
        if path == "/stats/reset":
            self.stats.clear()
            for case in self.cases.values():
                case.posts = 0
            return _json("200 OK", {"reset": True})
        if bits[0] == "stats":
            if len(bits) > 1:
                return _json("200 OK", self.stats.setdefault(bits[1], Stats()).public())
            return _json("200 OK", {name: stats.public() for name, stats in self.stats.items()})
        if method == "GET" and bits[0] == "case" and len(bits) > 2 and bits[1] in self.cases:
            models = {"object": "list", "data": [{"id": "m", "object": "model"}]}
            own = self.cases[bits[1]].server.get("gets", {}).get("/" + "/".join(bits[2:]))
            return _json("200 OK", own or (models if bits[-1] == "models" else {"status": "ok"}))
        return _json("404 Not Found", {"error": {"message": f"no such path {path}", "type": "not_found"}})


async def _head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]] | None:
    """Method, target and headers of the next request; None when there is none."""
    line = await reader.readline()
    if not line:
        return None
    method, target, _ = line.decode("latin-1").split()
    headers = {}
    while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return method, target, headers


async def _body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: dict[str, str]) -> bytes:
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        return await reader.readexactly(int(headers.get("content-length", "0")))
    parts = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    while await reader.readline() not in (b"\r\n", b"\n", b""):
        pass
    return b"".join(parts)


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, how: str) -> None:
    if how == "reset":
        await asyncio.sleep(_RESET_AFTER_S)
        # To linger for no time at all is to send RST instead of FIN.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    elif how == "hang":
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), _HANG_S)


def _json(status: str, value: object) -> bytes:
    body = json.dumps(value).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def serve(host: str, port: int, max_seconds: float, tls: ssl.SSLContext | None) -> None:
    """Serve until the time is up; the first line printed names the address."""
    server = await asyncio.start_server(Replayer().connection, host, port, limit=_LONGEST_LINE, backlog=4096, ssl=tls)
    shown = f"[{host}]" if ":" in host else host
    print(f"http{'s' if tls else ''}://{shown}:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.sleep(max_seconds)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=8765)
    options.add_argument("--max-seconds", type=float, default=3600)
    options.add_argument("--tls-cert", help="speak TLS, with this certificate")
    options.add_argument("--tls-key")
    given = options.parse_args()
    tls = None
    if given.tls_cert:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(given.tls_cert, given.tls_key)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(given.host, given.port, given.max_seconds, tls))
