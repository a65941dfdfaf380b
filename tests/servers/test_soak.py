"""A few seconds of the load that bench/soak.py plays for ten minutes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parent.parent.parent / "bench" / "soak.py"


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("options", [(), ("--prefix-cache", "--kv-slots", "24", "--prefill-chunk", "32")])
def test_nothing_leaks_or_mixes_under_a_mixed_load(
    options: tuple[str, ...], environment: dict[str, str], tmp_path: Path
) -> None:
    played = subprocess.run(
        [sys.executable, SOAK, "--minutes", "0.08", "--json", tmp_path / "rows.json", "--", *options],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    rows = {row["name"]: row for row in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    said = played.stdout + played.stderr
    # A server that has just started still grows; its memory is for the long run to judge.
    assert all(row["ok"] for name, row in rows.items() if not name.startswith("memory")), said
    assert rows["good requests answered right"]["ours"] > 50, said
