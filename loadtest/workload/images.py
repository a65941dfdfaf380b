"""Pictures for prompts: PNG of any size, each different, made in well under a millisecond."""

import base64
import random
import struct
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_UP = b"\x02"  # filter type: the row as the difference to the one above


def image(width: int, height: int, rng: random.Random) -> str:
    """A picture of random vertical stripes in 24-bit colour, as a data URL.

    A model sees all of its pixels, but the file is small: only its first row is random, and the others are as that.

    Source: PNG, third edition, W3C 2025 (chunks: 5.3; IHDR: 11.2.1; filter types: 9.2); data URLs: RFC 2397.
    """
    row = rng.randbytes(3 * width)
    rows = b"".join((b"\x00", row, (_UP + bytes(3 * width)) * (height - 1)))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits of each of red, green, blue; no interlace
    chunks = _chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows, 1)), _chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(_SIGNATURE + b"".join(chunks)).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
