"""The commands ``loadtest model …``. Imports nothing heavy until one runs."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from servers.decoder import Shape

_SIZES = {"layers": "layers", "hidden": "hidden", "heads": "heads", "kv": "kv_heads", "inter": "inter",
          "vocab": "vocab", "max_seq": "max_seq_len"}  # fmt: skip
_output = click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="DIR", help="New folder for the model."
)


@click.group()
def model() -> None:
    """Build, convert and inspect models for the bundled server.

    \b
    loadtest model build --shape demo --dtype int8 -o models/demo-int8
    loadtest model convert-gguf SmolLM2-135M-Instruct.Q8_0.gguf -o models/smollm2
    loadtest model inspect models/smollm2
    """


@model.command(short_help="Random weights of a shape of your choice.")
@click.option(
    "--shape",
    required=True,
    metavar="SIZES|PRESET",
    help="tiny, demo, or layers=…,hidden=…,heads=…,kv=…,inter=…,vocab=…,max_seq=…",
)
@_output
@click.option(
    "--dtype",
    type=click.Choice(("fp32", "int8", "fp16")),
    default="fp32",
    show_default=True,
    help="Precision: fp32 and int8 for the CPU, fp16 for CUDA.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=20_240_229, show_default=True, help="Same seed, same weights."
)
def build(*, shape: str, output: Path, dtype: str, seed: int) -> None:
    """Build a Llama-style decoder of random weights: as fast, and as slow, as a trained one of its shape.

    Sizes that are not given are those of the demo preset. The head size, hidden / heads, must be a multiple of 16.

    \b
    loadtest model build --shape layers=24,hidden=2048,heads=32,kv=8,inter=5632 -o models/1b
    loadtest model build --shape demo --dtype int8 -o models/demo-int8
    loadtest serve --model models/1b
    """
    with _exits():
        from servers import builder
        from servers.errors import StartError

        sizes = _shape(shape)
        try:
            with builder.fresh(output) as made:
                builder.write(made, output.name, sizes, dtype, seed)  # type: ignore[arg-type]
        except OSError as error:
            raise StartError(f"cannot write {output}: {error.strerror or error}") from error
        click.echo(f"{output}: {sizes.parameters:,} weights, {dtype}")


@model.command("convert-gguf", short_help="A Llama-family model out of a GGUF file.")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@_output
@click.option(
    "--dtype",
    type=click.Choice(("int8", "fp32", "fp16")),
    default="int8",
    show_default=True,
    help="Precision: int8 and fp32 for the CPU, fp16 for CUDA.",
)
def convert_gguf(*, file: Path, output: Path, dtype: str) -> None:
    """Convert a Llama-family model (Llama, Mistral, SmolLM2, TinyLlama…) with its tokenizer and chat template.

    It takes memory for the weights twice, in float32. Needs pip install '.[gguf,models]'.

    \b
    loadtest model convert-gguf SmolLM2-135M-Instruct.Q8_0.gguf -o models/smollm2
    loadtest model convert-gguf tinyllama.gguf --dtype fp16 -o models/tinyllama
    loadtest serve --model models/smollm2
    """
    with _exits():
        from servers import gguf

        gguf.convert(file, output, dtype)  # type: ignore[arg-type]
        click.echo(f"{output}: converted, {dtype}")


@model.command(short_help="What a model is, and how many slots of it fit here.")
@click.argument("folder", metavar="DIR|FILE|PRESET")
@click.option(
    "--dtype",
    default="auto",
    show_default=True,
    type=click.Choice(("auto", "fp32", "int8", "fp16")),
    help="Of a folder with several precisions, the one to look at.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def inspect(*, folder: str, dtype: str, as_json: bool) -> None:
    """Say what the server would make of a model: layout, parameters, KV cache, and what fits in this machine.

    \b
    loadtest model inspect demo
    loadtest model inspect models/smollm2 --dtype int8
    loadtest model inspect models/smollm2 --json | jq .fits
    """
    with _exits():
        import json

        from servers import catalog
        from servers.inspection import inspect as look

        found = look(catalog.find(folder, dtype, "cpu"))
        click.echo(json.dumps(found.document(), indent=2) if as_json else found.text(), nl=as_json)


def _shape(text: str) -> "Shape":
    from servers.builder import PRESETS
    from servers.decoder import Shape

    if text in PRESETS:
        return PRESETS[text]
    sizes = {field.name: getattr(PRESETS["demo"], field.name) for field in fields(Shape)}
    for part in text.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        if name not in _SIZES or not value.isdecimal() or int(value) == 0:
            raise click.UsageError(
                f"--shape: {part!r} is not of the form NAME=NUMBER with one of {', '.join(_SIZES)}, and {text!r} is "
                f"no preset ({', '.join(PRESETS)})"
            )
        sizes[_SIZES[name]] = int(value)
    try:
        return Shape(**sizes)
    except ValueError as error:
        raise click.UsageError(f"--shape: {error}") from error


@contextlib.contextmanager
def _exits() -> Iterator[None]:
    from servers.errors import StartError

    try:
        yield
    except StartError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
