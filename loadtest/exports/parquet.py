"""The records of a run as Parquet: a row for each request, with the names and units of records.jsonl.

Needs pyarrow (``loadtest[parquet]``). The file is made for analysis and not for keeping: without its last bytes it
cannot be read, while the journal loses nothing.
"""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from loadtest.errors import ResultError
from loadtest.records import Record
from loadtest.result import Result

_ROWS = 20_000  # of a row group


def write(result: Result, records: Iterable[Record], path: Path) -> int:
    """Write all ``records`` to ``path``, and return how many they are.

    Columns are the fields of a record, those of its ``error`` as ``error_kind`` and so on, and ``level_name``;
    ``level`` counts from 0 as in the journal. The file's metadata name the run.

    Raises:
        ResultError: it cannot be written.
    """
    import pyarrow as pa  # noqa: PLC0415  # an extra, and heavy
    from pyarrow import parquet  # noqa: PLC0415

    names = [level.name for level in result.levels]
    about = {"loadtest.run_id": result.run_id or "", "loadtest.scenario": result.conditions.scenario.name}
    schema = pa.schema([("level_name", pa.string()), *_columns(Record, pa)], metadata=about)
    left, count = iter(records), 0
    try:
        with parquet.ParquetWriter(path, schema) as writer:
            while rows := [_row(record, names) for record in islice(left, _ROWS)]:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                count += len(rows)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}; name another file") from None
    return count


def _row(record: Record, names: list[str]) -> dict[str, Any]:
    error = {} if record.error is None else {f"error_{key}": value for key, value in _fields(record.error)}
    own = {key: value for key, value in _fields(record) if key != "error"}
    return {"level_name": names[record.level] if record.level < len(names) else None, **own, **error}


def _fields(of: msgspec.Struct) -> Iterable[tuple[str, Any]]:
    return ((name, getattr(of, name)) for name in of.__struct_fields__)


def _columns(struct: type[msgspec.Struct], pa: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """The columns of a struct's fields, by their types."""
    for field in inspect.type_info(struct).fields:  # type: ignore[attr-defined]
        of = field.type
        if isinstance(of, inspect.UnionType):  # with None
            (of,) = (each for each in of.types if not isinstance(each, inspect.NoneType))
        name = prefix + field.name
        match of:
            case inspect.StructType(cls=cls):
                yield from _columns(cls, pa, f"{name}_")
            case inspect.IntType():
                yield name, pa.int64()
            case inspect.FloatType():
                yield name, pa.float64()
            case inspect.BoolType():
                yield name, pa.bool_()
            case inspect.CollectionType() | inspect.ListType():
                yield name, pa.list_(pa.float32())
            case _:
                yield name, pa.string()
