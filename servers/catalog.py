"""Finding the model that ``--model`` names: a preset, a folder, or an ONNX file."""

from pathlib import Path

from servers import builder, pretrained
from servers.bundle import Bundle
from servers.device import DTYPES, Provider
from servers.errors import StartError


def find(model: str, dtype: str, provider: Provider) -> Bundle:
    """The model that ``model`` names, in the precision ``dtype`` ("auto": the best on ``provider``).

    Raises:
        StartError: it is not there, or not in that precision.
    """
    ours = DTYPES[provider]
    if model in builder.PRESETS:
        if dtype != "auto" and dtype not in ours:
            raise StartError(f"--dtype {dtype}: on {provider} the {model} model runs in {' or '.join(ours)} only")
        return builder.preset(model, ours[0] if dtype == "auto" else dtype)  # type: ignore[arg-type]
    path = Path(model)
    if not (path / builder.MANIFEST).exists():
        return pretrained.read(path, dtype, provider)
    bundle = builder.read(path)
    if dtype not in ("auto", bundle.dtype):
        raise StartError(f"--dtype {dtype}: the model in {path} is {bundle.dtype}; leave --dtype out")
    if bundle.dtype not in ours:
        raise StartError(f"the model in {path} is {bundle.dtype}, and {provider} runs {' or '.join(ours)} only")
    return bundle
