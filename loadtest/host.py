"""This machine, in words."""

import contextlib
import os
import platform
import sys
import tempfile
from pathlib import Path

from loadtest import __version__


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    with contextlib.suppress(OSError):  # only Linux has it
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    """Where things may be kept from run to run: ``$XDG_CACHE_HOME/loadtest``, by default under ``~/.cache``.

    Of a user without a home, as in a bare container, it is in the folder for temporary files.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(tempfile.gettempdir() if base.startswith("~") else base) / "loadtest"


def busy_s() -> float | None:
    """CPU seconds of everything on this machine since it started; None where the system does not tell (not Linux)."""
    try:
        ticks = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()
    except OSError:
        return None
    # proc(5): user, nice, system, idle, iowait, irq, softirq, steal; what follows is part of user and nice.
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[1:9])
    return float(user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def description() -> str:
    """Processor, cores, system."""
    return f"{processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def software() -> dict[str, str]:
    """Name to version of what the generator itself runs on."""
    found = {"loadtest": __version__, "python": platform.python_version()}
    if sys.platform != "win32":
        import uvloop  # noqa: PLC0415  # not on Windows

        found["uvloop"] = uvloop.__version__
    return found
