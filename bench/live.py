"""What the live view costs: of the generator's core, and of the one that draws.

    python bench/live.py [--quick] [--json FILE]

The code that a worker runs for it is timed by itself, at 1,000 answers a second and times spread over two decades, in
CPU time. Rows, in percent of a core:

- generator: counting each answer and each sample of the loop's lag, and four snapshots a second packed and sent.
- drawing: two redraws a second for four workers, and a line of JSON; it is in the process that sends nothing.

``--quick`` times fewer of them (a second in all). Exit code 0 only if every row is ok.
"""

import io
import math
import pickle
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from share import Row, told

from loadtest.display import Screen
from loadtest.engine.orders import Snapshot
from loadtest.feeds import JsonLines
from loadtest.glance import glance
from loadtest.histogram import bucket
from loadtest.level import Level
from loadtest.schedule import Load
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload

ANSWERS_PER_S = 1000
LOOP_LAGS_PER_S = 100
SNAPSHOTS_PER_S = 4
REDRAWS_PER_S = 2
WORKERS = 4
LEVEL = Level(
    0, "c=256", Load("closed", concurrency=256), None, (Workload(Length(8, 8), Length(8, 8)),), 60, None, 6, 9
)


def _cost_s(call: Callable[[], object], times: int) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - began) / times


def rows(times: int) -> list[Row]:
    """Both rows, each part timed ``times`` times or a few of them."""
    draw = random.Random(1)
    ttft, e2e, send_lag, loop_lag = (
        [draw.lognormvariate(math.log(middle), 0.7) for _ in range(20_000)] for middle in (120.0, 2000.0, 0.1, 0.3)
    )
    counters: list[Counter[int]] = [Counter(map(bucket, values)) for values in (ttft, e2e, send_lag, loop_lag)]

    def answer() -> None:
        counters[0][bucket(123.4)] += 1
        counters[1][bucket(2345.6)] += 1
        counters[2][bucket(0.12)] += 1

    def lag() -> None:
        counters[3][bucket(0.34)] += 1

    def snapshot() -> Snapshot:
        first, second, third, fourth = map(dict, counters)
        return Snapshot(True, 256, 20_000, 0, 10**6, first, second, third, fourth)

    generator_s = (
        ANSWERS_PER_S * _cost_s(answer, times)
        + LOOP_LAGS_PER_S * _cost_s(lag, times)
        + SNAPSHOTS_PER_S * _cost_s(lambda: pickle.dumps(snapshot()), times // 100)
    )
    said = [pickle.loads(pickle.dumps(snapshot())) for _ in range(WORKERS)]
    screen = Screen(io.StringIO(), {}, keys=False)
    with tempfile.TemporaryDirectory() as folder:
        feed = JsonLines(str(Path(folder) / "live"), print)
        drawing_s = REDRAWS_PER_S * _cost_s(lambda: screen.show(glance(LEVEL, 9, 30.0, said)), times // 100)
        drawing_s += _cost_s(lambda: feed.take(glance(LEVEL, 9, 30.0, said)), times // 100)
    return [Row("generator", generator_s * 100), Row("drawing", drawing_s * 100)]


if __name__ == "__main__":
    sys.exit(told(__doc__, lambda quick: rows(20_000 if quick else 200_000)))
