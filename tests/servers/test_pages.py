"""Memory in huge pages: what is moved, that it keeps its content, and that no system is asked for what it lacks."""

import ctypes
import logging
import mmap
import re
import sys
from pathlib import Path

import pytest

from servers import builder, pages
from servers.model import load

MIB = 1 << 20
MAPS = b"""\
55d0c0000000-55d0c1000000 rw-p 00000000 00:00 0                          [heap]
Size:              16384 kB
Rss:               15000 kB
VmFlags: rd wr mr mw me ac
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
Size:               8192 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                  12 kB
VmFlags: rd wr mr mw me ac
7f1000000000-7f1004000000 rw-p 00000000 00:00 0
Size:              65536 kB
Rss:               65536 kB
7f2000000000-7f2004000000 r--p 00000000 00:00 0
Rss:               65536 kB
7f3000000000-7f3004000000 rw-s 00000000 00:01 1029                       /dev/zero (deleted)
Rss:               65536 kB
7f4000000000-7f4004000000 rw-p 00000000 fe:00 812                        /lib/a name.so
Rss:               65536 kB
"""


def test_only_private_memory_that_is_in_use_is_moved() -> None:
    large = [(0x55D0C0000000, 0x55D0C1000000), (0x7F1000000000, 0x7F1004000000)]
    assert pages._large(MAPS, 2 * MIB) == large


def huge(address: int) -> int:
    """Bytes in huge pages of the mapping that ``address`` lies in."""
    for start, end, kib in re.findall(
        r"^(\w+)-(\w+) .*\n(?:\w+: .*\n)*?AnonHugePages: +(\d+) kB$", Path("/proc/self/smaps").read_text(), re.MULTILINE
    ):
        if int(start, 16) <= address < int(end, 16):
            return 1024 * int(kib)
    raise LookupError(address)


def written(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = bytes(range(256)) * (size // 256)
    return memory


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux")
def test_large_memory_is_in_huge_pages_afterwards_and_unchanged() -> None:
    with written(16 * MIB) as tried:
        try:
            tried.madvise(pages._COLLAPSE)
        except OSError as error:
            pytest.skip(f"this system gives no huge pages: {error}")
    memory = written(16 * MIB)
    before = memory[:]
    pages.collapse()
    assert huge(ctypes.addressof(ctypes.c_char.from_buffer(memory))) >= 14 * MIB
    assert memory[:] == before


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux")
def test_a_kernel_that_knows_no_such_advice_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pages, "_COLLAPSE", 9999)
    caplog.set_level(logging.INFO)
    memory = written(16 * MIB)
    pages.collapse()
    assert memory[:256] == bytes(range(256))
    assert "Invalid argument" in caplog.text


def test_a_system_without_huge_pages_is_only_worth_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pages, "_SIZE", tmp_path / "hpage_pmd_size")
    caplog.set_level(logging.INFO)
    pages.collapse()
    assert caplog.messages == [f"no huge pages: {tmp_path / 'hpage_pmd_size'}: No such file or directory"]


def test_a_model_on_the_cpu_is_moved_when_it_is_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr(pages, "collapse", lambda: calls.append(None))
    load(builder.preset("tiny", "fp32"), "cpu", slots=1, max_seq_len=64, threads=1)
    assert calls == [None]
