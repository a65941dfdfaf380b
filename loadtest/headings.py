"""The help of a command: its options under headings, since ``run`` has seventy. click alone is imported here."""

from collections.abc import Iterator

import click

HEADINGS: dict[str, tuple[str, ...]] = {
    "The load": (
        "source", "concurrency", "rate", "arrival", "burstiness", "trace", "speed", "requests", "duration", "warmup",
        "grace", "cooldown", "repeat", "seed", "scale", "workers", "cluster", "transport", "max_in_flight", "max_rate",
    ),
    "What is asked": (
        "endpoint", "model", "input_tokens", "output_tokens", "data", "tokenizer", "batch_size", "no_stream", "method",
        "body", "probe_rate", "timeout", "connect_timeout", "stall_timeout",
    ),
    "What it has to keep": ("slo", "warn", "on_inconclusive", "abort_on", "audit", "strict"),
    "The way to the target": (
        "api_key", "basic", "auth_command", "auth_refresh", "headers", "proxy", "cacert", "cert", "key",
        "key_password", "insecure", "wait_ready", "no_rehearsal", "traceparent", "no_run_header", "yes",
    ),
    "What is watched": ("server_metrics", "gpu", "dcgm"),
    "The bundled server": (
        "scheduler", "max_batch_size", "batch_timeout_ms", "serve_model", "provider", "dtype", "threads",
    ),
    "What is written and shown": (
        "output", "records", "labels", "json_to", "html", "no_html", "png", "svg", "markdown", "junit", "csv",
        "parquet", "compat", "otlp", "mlflow", "live_json", "prometheus", "quiet", "verbose", "help",
    ),
}  # fmt: skip
"""Which options stand below which heading, by their parameters' names; what is in none comes first."""


class Command(click.Command):
    """A command whose many options stand below headings; few are simply listed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # click takes whatever follows an option for its value, and complains of what then is too much.
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        flags = {flag for each in options for flag in (*each.opts, *each.secondary_opts)}
        taken, _, _ = self.make_parser(ctx).parse_args([*args])
        for each in options:
            for value in _texts(taken.get(each.name or "")):
                if value.partition("=")[0] in flags and not ctx.resilient_parsing:
                    raise click.UsageError(f"{each.opts[-1]} has no value before {value}.", ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        rows = {each.name or "": row for each in options if (row := each.get_help_record(ctx)) is not None}
        if len(rows) <= 12:
            super().format_options(ctx, formatter)
            return
        named = {name for names in HEADINGS.values() for name in names}
        sections = {"Options": tuple(name for name in rows if name not in named), **HEADINGS}
        for heading, names in sections.items():
            below = [rows[name] for name in names if name in rows]
            if below:
                with formatter.section(heading):
                    formatter.write_dl(below)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
