"""What it costs to watch a server, its GPUs and this host while a level is played.

    python bench/telemetry.py [--quick] [--json FILE]

Each look is timed by itself, in CPU time, against a server in a process of its own whose metrics are as many as a large
vLLM's. Looks are taken each second, from the process that sends nothing. Rows, in percent of a core:

- server: reading its metrics over HTTP, and what is asked for in them.
- server, https: the same with TLS, a handshake each.
- gpus: a DCGM exporter of eight.
- host: this one.

``--quick`` takes fewer looks (a second in all). Exit code 0 only if every row is ok.
"""

import contextlib
import multiprocessing
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from share import Row, told

from loadtest.telemetry import dcgm, here, names
from loadtest.telemetry.scrape import Place, given, text
from loadtest.wire.origin import parse
from loadtest.wire.tls import Tls

HISTOGRAMS, BUCKETS = 40, 24
FIELDS = ("SM_CLOCK", "GPU_UTIL", "FB_USED", "FB_FREE", "POWER_USAGE", "TOTAL_ENERGY_CONSUMPTION", "GPU_TEMP")


def exposition() -> bytes:
    """As many series as a server of two engines has, most of them buckets."""
    lines = []
    for engine in range(2):
        labels = f'engine="{engine}",model_name="an-organisation/a-model-of-some-70B-Instruct"'
        lines += [f"vllm:{name}{{{labels}}} {value}" for name, value in (
            ("num_requests_running", 120), ("num_requests_waiting", 7), ("kv_cache_usage_perc", 0.83),
            ("prompt_tokens_total", 123456789), ("generation_tokens_total", 23456789), ("num_preemptions_total", 3),
            ("prefix_cache_queries_total", 123456), ("prefix_cache_hits_total", 2345),
            ("request_queue_time_seconds_sum", 12.5), ("request_queue_time_seconds_count", 4567),
        )]  # fmt: skip
        for number in range(HISTOGRAMS):
            lines.append(f"# TYPE vllm:time_{number}_seconds histogram")
            for bucket in range(BUCKETS):
                lines.append(f'vllm:time_{number}_seconds_bucket{{{labels},le="{bucket / 10}"}} {bucket * 31}.0')
    return "\n".join(lines).encode() + b"\n"


def exporter() -> bytes:
    """What a DCGM exporter says of eight GPUs."""
    return "".join(
        f'DCGM_FI_DEV_{field}{{gpu="{gpu}",UUID="GPU-{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="node"}} 97\n'
        for field in FIELDS
        for gpu in range(8)
    ).encode()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = exporter() if self.path == "/dcgm" else exposition()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _serve(pipe: Any, certificate: Path | None) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    pipe.send(server.server_port)
    server.serve_forever()


@contextlib.contextmanager
def served(certificate: Path | None = None) -> Iterator[int]:
    """A server in a process of its own, by its port."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(theirs, certificate), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _percent(look: Callable[[], object], times: int) -> float:
    """Of a core, at a look a second."""
    look()  # what is imported for the first one is imported once
    began = time.process_time()
    for _ in range(times):
        look()
    return (time.process_time() - began) / times * 100


def _place(url: str, tls: Tls) -> Place:
    return given("--metrics", url, parse(url), (), tls, "")


def rows(times: int) -> list[Row]:
    """All rows, each of so many looks."""
    with tempfile.TemporaryDirectory() as folder:
        certificate = Path(folder) / "both.pem"
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem"
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
        certificate.write_bytes(b"".join((Path(folder) / name).read_bytes() for name in ("key.pem", "cert.pem")))
        with served() as plain, served(certificate) as secured:
            http = _place(f"http://127.0.0.1:{plain}/metrics", Tls())
            https = _place(f"https://127.0.0.1:{secured}/metrics", Tls(insecure=True))
            gpus = _place(f"http://127.0.0.1:{plain}/dcgm", Tls())

            def server(place: Place) -> object:
                return names.read(text(place), "vllm")

            return [
                Row("server", _percent(partial(server, http), times)),
                Row("server, https", _percent(partial(server, https), times)),
                Row("gpus", _percent(lambda: dcgm.read(text(gpus), {}), times)),
                Row("host", _percent(here.look, times)),
            ]


if __name__ == "__main__":
    sys.exit(told(__doc__, lambda quick: rows(40 if quick else 400)))
