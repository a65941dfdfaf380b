"""Costs in percent of a core, told and judged: for the benches of what goes on beside the load."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

GOAL = 1.0  # % of a core
NOISE = 1.15


class Row(NamedTuple):
    """A cost in percent of a core."""

    name: str
    ours: float

    @property
    def ok(self) -> bool:
        return self.ours <= GOAL * NOISE


def told(doc: str | None, rows: Callable[[bool], Sequence[Row]]) -> int:
    """The command line of such a bench: print its ``rows`` (quickly or not); 0 if each is ok."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a second")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    options = parser.parse_args()
    found = rows(options.quick)
    for row in found:
        print(f"{row.name:14} {row.ours:6.3f} %  of a core, at most {GOAL:g} %  {'ok' if row.ok else 'MISSED'}")
    if options.json:
        written = [
            {"name": r.name, "ours": r.ours, "other": None, "ratio": None, "goal": GOAL, "ok": r.ok} for r in found
        ]
        options.json.write_text(json.dumps({"rows": written}, indent=2) + "\n")
    return 0 if all(row.ok for row in found) else 1
