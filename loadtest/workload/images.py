"""Pictures for prompts: PNG of any size, each different, made in well under a millisecond."""

import base64
import functools
import random
import struct
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def image(width: int, height: int, rng: random.Random) -> str:
    """A picture of random vertical stripes in 24-bit colour, as a data URL.

    A model sees all of its pixels, but the file is small: only its first row is random, and the others are as that.

    Source: PNG, third edition, W3C 2025 (chunks: 5.3; IHDR: 11.2.1; filter types: 9.2); zlib streams: RFC 1950; data
    URLs: RFC 2397.
    """
    first = b"\x00" + rng.randbytes(3 * width)
    deflate = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    rest, deflated = _rest(width, height)
    # The two parts of a zlib stream, deflated apart and put end to end where the first is flushed to a whole byte.
    check = struct.pack(">I", zlib.adler32(rest, zlib.adler32(first)))
    data = b"\x78\x01" + deflate.compress(first) + deflate.flush(zlib.Z_FULL_FLUSH) + deflated + check
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits of each of red, green, blue; no interlace
    chunks = _chunk(b"IHDR", header), _chunk(b"IDAT", data), _chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(_SIGNATURE + b"".join(chunks)).decode()


@functools.lru_cache(2)
def _rest(width: int, height: int) -> tuple[bytes, bytes]:
    """All rows but the first, plain and deflated: the same in every picture of that size."""
    rest = (b"\x02" + bytes(3 * width)) * (height - 1)  # filter type 2: nothing changes from the row above
    deflate = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    return rest, deflate.compress(rest) + deflate.flush()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
