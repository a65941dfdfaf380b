"""Huge pages under a model's weights. A decode step reads all of them, and in pages of 4 KiB it waits for the
translation of an address every 64 cache lines. ONNX Runtime does not ask for larger ones, as NumPy does for the caches.
"""

import ctypes
import logging
import os
import re
from pathlib import Path

log = logging.getLogger(__name__)
_COLLAPSE = 25  # MADV_COLLAPSE of madvise(2), Linux 6.1
_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_MAPS = Path("/proc/self/smaps")
# Private, writable and of no file: its start, its end, and how much of it is in memory.
_MAPPING = re.compile(rb"^(\w+)-(\w+) rw-p \S+ \S+ 0\b.*\n(?:\w+: .*\n)*?Rss: +(\d+) kB$", re.MULTILINE)


def collapse() -> None:
    """Move this process's large private memory into huge pages, where the system has them; else it stays as it is.

    What moves is copied once, so the time for it is when the weights have just been read.
    """
    try:
        size = int(_SIZE.read_bytes())
        maps = _MAPS.read_bytes()
    except OSError as error:
        log.info("no huge pages: %s: %s", error.filename, error.strerror)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for start, end in _large(maps, size):
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _COLLAPSE):
            # EINVAL is a kernel before 6.1, or that some of the mapping was never written; the rest has moved then.
            reason = os.strerror(ctypes.get_errno())
            log.info("not all of a mapping of %d MiB is in huge pages: %s", (end - start) >> 20, reason)


def _large(maps: bytes, size: int) -> list[tuple[int, int]]:
    """Start and end of the mappings, in ``/proc/PID/smaps``, that have ``size`` bytes or more in memory.

    A thread's stack does not, however large it is: it would only grow.
    """
    found = (match.groups() for match in _MAPPING.finditer(maps))
    return [(int(start, 16), int(end, 16)) for start, end, kib in found if 1024 * int(kib) >= size]
