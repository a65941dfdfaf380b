"""What the flags of a command come to: the options of a run, what they say of its scenario, its exports."""

import functools
import select
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from loadtest.exports.wanted import Exports
    from loadtest.options import Options


def options(ctx: click.Context, flags: dict[str, Any], **given: Any) -> "Options":
    """What to play, by the ``flags`` of ``scenario_flags`` and ``way_flags``, all of them."""
    from loadtest.options import Options
    from loadtest.telemetry.sight import Wanted
    from loadtest.wire.tls import Tls

    way = {name: flags.pop(name) for name in ("transport", "proxy", "traceparent", "workers", "cluster")}
    names = ("cacert", "cert", "key", "insecure", "key_password")
    return Options(
        redact=ctx.obj,
        **_who(ctx, flags),
        run_header=not flags.pop("no_run_header"),
        confirm=_confirmed(yes=flags.pop("yes")),
        headers=tuple(_pair(text, ":", "-H", "'Name: value'") for text in flags.pop("headers")),
        labels=dict(_pair(text, "=", "--label", "key=text") for text in flags.pop("labels")),
        tls=Tls(*(flags.pop(name) for name in names)),
        rehearse=not flags.pop("no_rehearsal"),
        wanted=Wanted(flags.pop("server_metrics"), flags.pop("gpu"), flags.pop("dcgm")),
        wait_ready_s=seconds("--wait-ready", flags.pop("wait_ready")),
        overrides=overrides(ctx, flags),  # what is left of them is the scenario's
        command=("loadtest", *map(shlex.quote, sys.argv[1:])),
        **way,
        **given,
    )


def _who(ctx: click.Context, flags: dict[str, Any]) -> dict[str, Any]:
    """How we say who we are. A flag stands above a variable that says it in another way."""
    from loadtest.credentials import RENEWED_EVERY_S, Bearer

    found = {name: flags.pop(name) for name in ("api_key", "basic", "auth_command")}
    typed = [name for name in found if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if typed or any(text.partition(":")[0].strip().lower() == "authorization" for text in flags["headers"]):
        found = {name: value if name in typed else None for name, value in found.items()}
    every_s = seconds("--auth-refresh", flags.pop("auth_refresh"))
    if every_s is not None and every_s < 1:
        raise click.UsageError("--auth-refresh: more often than once a second; write for example 5m")
    command = found["auth_command"]
    if command and " " in command:
        ctx.obj.learn([command], least=command.index(" ") + 2)  # its arguments may hold a password, and no name does
    return {
        "api_key": (found["api_key"] or "").strip() or None,
        "basic": found["basic"],
        "bearer": None if command is None else Bearer(command, every_s or RENEWED_EVERY_S, ctx.obj),
    }


def _confirmed(*, yes: bool) -> Callable[[str], bool] | None:
    """Who is asked whether much may be sent; None where nobody is there."""

    @functools.cache  # of runs in turn each asks the same
    def ask(question: str) -> bool:
        click.echo(f"{question}. Go on? [y/N] ", nl=False, err=True)
        # A Ctrl-C just before a read begins is not seen until the read ends: so it begins when there is text.
        while sys.platform != "win32" and not select.select([sys.stdin], [], [], 0.1)[0]:
            pass
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    if yes:
        return lambda _: True
    return ask if sys.stdin.isatty() and sys.stderr.isatty() else None


def seconds(flag: str, text: str | None) -> float | None:
    """The time that was given to a flag, None for none.

    Raises:
        UsageError: it is no time.
    """
    from loadtest.duration import duration

    try:
        return None if text is None else duration(text)
    except ValueError as error:
        raise click.UsageError(f"{flag} {text}: {error}") from None


def overrides(ctx: click.Context, flags: dict[str, Any]) -> dict[str, Any]:
    """What flags and LOADTEST_* variables say of the scenario, as text, with where it was said."""
    from loadtest.scenario.model import Override

    found = {}
    for parameter in ctx.command.params:
        name = parameter.name or ""
        value = flags.get(name)
        if value in (None, ()) or not isinstance(parameter, click.Option):
            continue
        by_flag = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        origin = max(parameter.opts, key=len) if by_flag else str(parameter.envvar)
        if name == "no_stream":
            found["stream"] = Override("false" if value else "true", origin)
        elif name in ("slo", "warn"):
            found[name] = Override("\n".join(value), origin)
        else:
            found[name] = Override(str(value), origin)
    loads = [name for name in ("concurrency", "rate", "trace") if name in found]
    if any(found[name].origin.startswith("-") for name in loads):
        for name in loads:  # one load, not two: the flag wins over the variable
            if not found[name].origin.startswith("-"):
                del found[name]
    return found


def _pair(text: str, separator: str, flag: str, form: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not found or not name.strip() or any(sign in text for sign in "\r\n"):
        raise click.UsageError(f"{flag}: not of the form {form}")
    return name.strip(), value.strip()


def exports(
    csv: Path | None, parquet: Path | None, otlp: str | None, mlflow: str | None, compat: tuple[str, Path] | None,
    within: Path | None = None, kept: Literal["all", "sampled", "none"] = "all",
) -> "Exports":  # fmt: skip
    """The exports that are asked for, seen to be possible."""
    from loadtest.exports.wanted import Exports

    asked = Exports(csv, parquet, otlp, mlflow, compat[1] if compat else None)
    asked.check(within, kept)
    return asked
