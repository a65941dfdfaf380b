"""Which exports of a result are asked for: seen to be possible before the run, made after it."""

import json
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from loadtest.errors import ResultError, UsageError
from loadtest.records import Mode, records
from loadtest.redact import Redactor
from loadtest.result import Result


class Exports(NamedTuple):
    """What is to be made of a result; None of each: nothing."""

    csv: Path | None = None
    parquet: Path | None = None
    otlp: str | None = None
    mlflow: str | None = None
    vllm: Path | None = None

    def check(self, within: Path | None = None, kept: Mode = "all") -> None:
        """See that they can be made. In ``within``, the folder that the run will make, nothing can be tried before.

        ``kept`` says which requests there are.

        Raises:
            UsageError: a file cannot be written, a package is missing, an address is none, or requests are.
        """
        for flag, value in (("--parquet", self.parquet), ("--otlp", self.otlp), ("--compat vllm", self.vllm)):
            if value is not None and kept != "all":
                raise UsageError(f"{flag} takes every request, and --records {kept} leaves not all of them")
        _needs("--parquet", self.parquet, "pyarrow", "parquet")
        _needs("--otlp", self.otlp, "opentelemetry.exporter.otlp.proto.http", "otel")
        _needs("--mlflow", self.mlflow, "mlflow", "mlflow")
        if self.otlp is not None:
            parts = urlsplit(self.otlp)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                shown = Redactor()(self.otlp)
                raise UsageError(f"--otlp {shown}: expected the URL of a collector, such as http://127.0.0.1:4318")
        for flag, path in (("--csv", self.csv), ("--parquet", self.parquet), ("--compat vllm", self.vllm)):
            if path is None or (within is not None and within.absolute() in path.absolute().parents):
                continue
            if str(path) == "-":
                raise UsageError(f"{flag} -: only --json writes to stdout; name a file")
            existed = path.exists()
            try:
                path.open("ab").close()
            except OSError as error:
                raise UsageError(f"{flag} {path}: {error.strerror}; name a file that can be written") from None
            if not existed:
                path.unlink()

    def make(self, result: Result, folder: Path) -> list[str]:
        """Make them of the ``result`` and the journal in its ``folder``; return what is to be said of them.

        Raises:
            ResultError: one cannot be made.
        """
        said = []
        if self.csv is not None:
            from loadtest.exports import csv  # noqa: PLC0415  # each only where it is asked for

            _write(self.csv, csv.text(result))
        if self.parquet is not None:
            from loadtest.exports import parquet  # noqa: PLC0415

            _make_folder(self.parquet)
            parquet.write(result, records(folder), self.parquet)
        if self.vllm is not None:
            said += [f"vllm: {path}" for path in _vllm(result, folder, self.vllm)]
        if self.otlp is not None:
            from loadtest.exports import otlp  # noqa: PLC0415

            said += [f"otlp: {text}" for text in otlp.send(result, records(folder), self.otlp)]
        if self.mlflow is not None:
            from loadtest.exports import mlflow  # noqa: PLC0415

            said.append(f"mlflow: run {mlflow.log(result, folder, self.mlflow)}")
        return said


def _vllm(result: Result, folder: Path, path: Path) -> list[Path]:
    """A file for each level with requests in its window: ``path`` where there is one level, else numbered."""
    from loadtest.columns import Columns  # noqa: PLC0415  # numpy comes with it, which no request should wait for
    from loadtest.exports import vllm  # noqa: PLC0415
    from loadtest.window import window_of_figures  # noqa: PLC0415

    written = []
    for place, of_level in groupby(records(folder), lambda record: record.level):
        load = [record for record in of_level if not record.probe]
        if place >= len(result.levels) or not load:
            continue
        level, columns = result.levels[place], Columns.of(load)
        bounds = window_of_figures(level, columns)
        if bounds is None:
            continue
        inside = [record for record, chosen in zip(load, columns.belonging_to(bounds).tolist(), strict=True) if chosen]
        to = path if len(result.levels) == 1 else path.with_stem(f"{path.stem}-{place + 1}")
        _write(to, json.dumps(vllm.document(result, level, inside), ensure_ascii=False) + "\n")
        written.append(to)
    if not written:
        raise ResultError("--compat vllm: no level has a request in its window, so there is nothing to write")
    return written


def _needs(flag: str, value: object, module: str, extra: str) -> None:
    """See that a package is there, without importing it."""
    if value is None:
        return
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise UsageError(f"{flag} needs the package {module.partition('.')[0]}: pip install 'loadtest[{extra}]'")


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}; name another file") from None


def _write(path: Path, text: str) -> None:
    _make_folder(path)
    try:
        path.write_text(text, "utf-8", newline="")
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}; name another file") from None
