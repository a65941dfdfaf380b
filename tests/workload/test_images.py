import base64
import random
import struct
import zlib

import pytest

from loadtest.workload.images import image


def pixels(url: str) -> list[bytes]:
    """The rows of a PNG data URL, read as strictly as the standard allows."""
    kind, _, data = url.partition(",")
    assert kind == "data:image/png;base64"
    png = base64.b64decode(data, validate=True)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = [], 8
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        name, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length)[0] == zlib.crc32(name + body)
        chunks.append((name, body))
        at += 12 + length
    assert [name for name, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour, *methods = struct.unpack(">IIBBBBB", chunks[0][1])
    assert (depth, colour, methods) == (8, 2, [0, 0, 0])
    raw = zlib.decompress(chunks[1][1])
    assert len(raw) == height * (1 + 3 * width)
    rows = []
    for number in range(height):
        filtered, row = (
            raw[number * (1 + 3 * width)],
            raw[number * (1 + 3 * width) + 1 : (number + 1) * (1 + 3 * width)],
        )
        above = rows[-1] if rows else bytes(3 * width)
        assert filtered in (0, 2)
        rows.append(bytes((a + b) % 256 for a, b in zip(row, above, strict=True)) if filtered == 2 else row)
    return rows


@pytest.mark.parametrize(("width", "height"), [(1, 1), (7, 3), (512, 512)])
def test_a_picture_is_a_valid_png_of_its_size(width: int, height: int) -> None:
    rows = pixels(image(width, height, random.Random(1)))
    assert (len(rows[0]), len(rows)) == (3 * width, height)
    assert set(rows) == {rows[0]}


def test_each_picture_is_another_and_the_same_seed_makes_the_same() -> None:
    made = [image(64, 64, random.Random(seed)) for seed in range(100)]
    assert len(set(made)) == 100
    assert made[7] == image(64, 64, random.Random(7))
