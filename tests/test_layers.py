"""Data flows one way: no room imports from a floor above its own, and the generator knows nothing of the server."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Top down. A room may import from its own floor and from those below.
FLOORS = [
    {"cli", "__main__", "cli_results", "intent", "terminal", "completion", "flags", "headings"},
    {"page"},
    {"baselines", "turns"},
    {"recovery", "preview", "pipeline"},
    {"run", "calibrate", "capacity", "probe"},
    {"question"},
    {"resume"},
    {"sitting"},
    {"approach", "route"},
    {"rehearsal"},
    {"vigil"},
    {"progress"},
    {"display", "feeds"},
    {"glance"},
    {"engine", "reports", "exports"},
    {"forecast"},
    {"plan"},
    {
        "endpoints",
        "detect",
        "portrait",
        "sizing",
        "material",
        "scenario",
        "options",
        "bundled",
        "folder",
        "summary",
        "parts",
        "client",
        "sessions",
        "measures",
        "caveats",
        "audit",
        "reconcile",
        "faults",
        "verdict",
        "judgement",
        "window",
        "gaps",
        "result",
        "repeats",
        "likeness",
        "comparison",
        "compare",
        "search",
        "statement",
        "consent",
        "telemetry",
        "explain",
    },
    {"columns", "keeping"},
    {"rows"},
    {"wire", "records", "target", "calibration", "credentials"},
    {"level"},
    {
        "workload",
        "schedule",
        "stats",
        "selection",
        "evidence",
        "shift",
        "tails",
        "steady",
        "abort",
        "slo",
        "redact",
        "errors",
        "duration",
        "host",
        "whole",
        "histogram",
        "alert",
        "trace",
    },
]
PURE = {
    "shift", "schedule", "stats", "evidence", "tails", "steady", "abort", "duration", "summary", "parts", "client",
    "sessions", "measures", "columns", "selection", "repeats", "caveats", "reconcile", "faults", "plan", "reports",
    "level", "redact", "errors", "forecast", "likeness", "comparison", "compare", "slo", "verdict", "judgement",
    "window", "gaps", "audit", "search", "statement", "histogram", "glance", "portrait", "alert", "trace", "explain",
}  # fmt: skip
WORLDLY = {"asyncio", "multiprocessing", "os", "pathlib", "socket", "subprocess", "time", "datetime", "threading"}


def imports(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it, but not those it names for the type checker alone."""
    tree = ast.parse(path.read_text("utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "loadtest" and len(parts) > 1 and not parts[1].startswith("_") else None


def floor(name: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if name in rooms)


FILES = [
    path
    for path in sorted((ROOT / "loadtest").rglob("*.py"))
    if path.parent.name != "loadtest" or path.stem != "__init__"
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_room_imports_from_a_floor_above(path: Path) -> None:
    own = path.relative_to(ROOT / "loadtest").with_suffix("").parts[0]
    above = {other for module in imports(path) if (other := room(module)) and floor(other) < floor(own)}
    assert not above, f"{own} imports from above: {above}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pure_rooms_know_no_clock_no_file_no_network(path: Path) -> None:
    own = path.relative_to(ROOT / "loadtest").with_suffix("").parts[0]
    if own in PURE:
        assert not {module.split(".")[0] for module in imports(path)} & WORLDLY


def test_the_server_and_the_generator_are_strangers() -> None:
    for path in (ROOT / "servers").rglob("*.py"):
        assert not any(module.split(".")[0] == "loadtest" for module in imports(path)), path
    for path in (ROOT / "loadtest").rglob("*.py"):
        known = {module for module in imports(path) if module.split(".")[0] == "servers"}
        assert known <= ({"servers.cli.serve", "servers.cli_model.model"} if path.name == "cli.py" else set()), path


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom loadtest.cli import main\n"
        "assert CliRunner().invoke(main, ['run', '--help']).exit_code == 0\n"
        "print([m for m in ('numpy', 'pydantic', 'yaml', 'rich', 'aiohttp', 'uvloop', 'msgspec', 'onnxruntime') "
        "if m in sys.modules])"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"
