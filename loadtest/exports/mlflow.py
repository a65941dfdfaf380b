"""A run logged to MLflow: conditions as parameters, each figure of each level as a metric whose step is the level.

Needs ``mlflow-skinny`` or ``mlflow`` (``loadtest[mlflow]``). Nothing is sent but to the store that was named.
"""

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from loadtest.errors import ResultError
from loadtest.exports.flat import rows
from loadtest.redact import Redactor
from loadtest.result import FILE_NAME, Result

_METRICS, _PARAMETERS = 1000, 100  # that MLflow takes at once
_LONGEST = 500  # characters of a parameter that every store takes
_BESIDE = ("scenario.resolved.yaml", "report.html")
_OF_THE_RUN = (
    "scenario", "endpoint", "url", "run_model", "precision", "server_hardware", "client_hardware", "seed",
)  # fmt: skip
_OF_A_LEVEL = ("name", "load", "concurrency", "rate_per_s", "scheduler", "max_batch_size", "batch_timeout_ms", "model")

T = TypeVar("T")


def log(result: Result, folder: Path, store: str) -> str:
    """Log to ``store``, a tracking server's URI or a folder, in the experiment of the scenario's name.

    Returns the id that MLflow gave the run.

    Raises:
        ResultError: MLflow cannot, with its words.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a load test tells nobody else
    uri = store
    if "://" not in store and store != "databricks":
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder was asked for by name
        uri = Path(store).absolute().as_uri()
    from mlflow import MlflowClient, MlflowException  # noqa: PLC0415  # an extra, and heavy
    from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415

    at_ms = round(datetime.fromisoformat(result.started_at.replace("Z", "+00:00")).timestamp() * 1000)
    table = rows(result)
    metrics = [
        Metric(name, float(value), at_ms, step)
        for step, row in enumerate(table, 1)
        for name, value in row.items()
        if isinstance(value, int | float) and name not in (*_OF_THE_RUN, *_OF_A_LEVEL, "level")
    ]
    given = {name: table[0][name] for name in _OF_THE_RUN} if table else {}
    given |= {f"level_{step}.{name}": row[name] for step, row in enumerate(table, 1) for name in _OF_A_LEVEL}
    parameters = [Param(name, str(value)[:_LONGEST]) for name, value in given.items() if value is not None]
    tags = {
        "loadtest.run_id": result.run_id,
        "loadtest.version": result.tool.version,
        "loadtest.command": result.command,
        "loadtest.verdict": result.verdict.outcome,
        "loadtest.exit_code": str(result.exit_code),
        **{f"loadtest.label.{name}": text for name, text in result.labels.items()},
    }
    try:
        client = MlflowClient(uri)
        name = result.conditions.scenario.name
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name)
        run = client.create_run(number, start_time=at_ms, run_name=folder.name).info.run_id
        client.log_batch(run, tags=[RunTag(key, value[:_LONGEST]) for key, value in tags.items() if value])
        for some in _parts(metrics, _METRICS):
            client.log_batch(run, metrics=some)
        for few in _parts(parameters, _PARAMETERS):
            client.log_batch(run, params=few)
        for path in (folder / each for each in (FILE_NAME, *_BESIDE)):
            if path.exists():
                client.log_artifact(run, str(path))
        client.set_terminated(run, "FINISHED" if result.complete else "KILLED")
    except (MlflowException, OSError) as error:
        raise ResultError(Redactor()(f"cannot log to MLflow at {store}: {error}")) from None
    return str(run)


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
