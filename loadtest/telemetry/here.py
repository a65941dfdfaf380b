"""This host: its processors, networks and sockets, from /proc (proc(5)); Linux only."""

from pathlib import Path

from loadtest.host import busy_s
from loadtest.telemetry.watch import Seen, Unseen

NAME = "here"
_PROC = Path("/proc")


def look() -> Seen:
    """Counters and gauges of this host, under one name.

    Raises:
        Unseen: the system does not tell them in this way.
    """
    found: dict[str, float] = {}
    cores = _cores()
    if (busy := busy_s()) is not None and cores:
        found["busy_share_s"] = busy / cores
    try:
        received, sent = _bytes((_PROC / "net" / "dev").read_text("ascii"))
        found |= {"received_mb": received / 1e6, "sent_mb": sent / 1e6}
        found["tcp_sockets"] = float(_sockets())
    except (OSError, ValueError, IndexError) as error:
        if not found:
            raise Unseen(f"this system does not tell of itself in {_PROC} ({error})") from None
    return {NAME: found}


def _cores() -> int:
    """Cores that the system counts in its busy time, whether we may use them or not."""
    try:
        lines = (_PROC / "stat").read_text("ascii").splitlines()
    except OSError:
        return 0
    return sum(line.startswith("cpu") and line[3:4].isdigit() for line in lines)


def _bytes(text: str) -> tuple[float, float]:
    rows = [line.partition(":")[2].split() for line in text.splitlines()[2:]]
    return sum(float(row[0]) for row in rows), sum(float(row[8]) for row in rows)


def _sockets() -> int:
    """TCP sockets in use, of both versions of IP."""
    count = 0
    for name in ("sockstat", "sockstat6"):
        for line in (_PROC / "net" / name).read_text("ascii").splitlines():
            if line.startswith("TCP"):
                count += int(line.split()[2])
    return count
