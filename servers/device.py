"""Which device the model runs on, decided before a session exists, and never by a silent fallback.

``onnxruntime.get_available_providers()`` lists CUDA wherever the GPU build is installed, and a CUDA session on a
machine without CUDA quietly becomes a CPU session. So the driver is asked first, and the session afterwards.
"""

import contextlib
import ctypes
import io
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from servers import pages
from servers.decoder import Dtype
from servers.errors import StartError

Provider = Literal["cpu", "cuda"]
PROVIDERS: dict[Provider, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
# Of loadtest's own graphs, the default first. GroupQueryAttention exists in float16 only on CUDA; on the CPU float16
# is emulated and slower than float32.
DTYPES: dict[Provider, tuple[Dtype, ...]] = {"cpu": ("fp32", "int8"), "cuda": ("fp16",)}


class FellBack(StartError):
    """ONNX Runtime took another device than the one it was given."""


def choose(provider: str, cuda_missing: str | None) -> Provider:
    """The device for ``--provider`` (auto, cpu, cuda).

    ``cuda_missing`` says why CUDA cannot be used, or is None where it can (see ``why_no_cuda``).

    Raises:
        StartError: CUDA was asked for and is not there.
    """
    if provider == "cuda" and cuda_missing:
        raise StartError(f"--provider cuda: {cuda_missing}; use --provider cpu, or auto")
    return "cuda" if provider == "cuda" or (provider == "auto" and not cuda_missing) else "cpu"


def why_no_cuda() -> str | None:
    """Why CUDA cannot be used here, or None if a driver with at least one device answers."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return f"no NVIDIA driver on this machine ({name} cannot be loaded)"
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the NVIDIA driver reports no usable GPU"
    import onnxruntime

    if PROVIDERS["cuda"] not in onnxruntime.get_available_providers():
        return "the installed onnxruntime has no CUDA; install loadtest[cuda]"
    return None


def load_cuda_libraries() -> None:
    """Load the CUDA and cuDNN libraries of the ``cuda`` extra, before the first session.

    What is missing is only printed by onnxruntime, and the session check reports it better; so the text is dropped.
    """
    import onnxruntime

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        onnxruntime.preload_dlls()


def check_session(provider: Provider, session_providers: list[str]) -> None:
    """Refuse a session that fell back to another device.

    Raises:
        FellBack: the session does not run on ``provider``.
    """
    if session_providers[0] != PROVIDERS[provider]:
        raise FellBack(
            f"the model fell back to {session_providers[0]}: onnxruntime could not load its CUDA libraries; "
            "install loadtest[cuda] (CUDA 13, cuDNN 9 and a driver that runs them), or use --provider cpu"
        )


def open_session(graph: bytes | Path, provider: Provider, threads: int, *, cuda_graph: bool = False) -> Any:
    """An ONNX Runtime session of a graph, in memory or in a file, on ``provider``.

    With ``cuda_graph`` a run whose option ``gpu_graph_id`` is not "-1" is captured under that number, and replayed
    when the number comes again.

    Raises:
        FellBack: it does not run there.
        StartError: ONNX Runtime does not load it.
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # A spinning worker takes the core that the client, or another server, needs (15.1 against 10.0 ms a step
    # beside one busy process).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    source = graph if isinstance(graph, bytes) else str(graph)
    chosen: Any = (PROVIDERS[provider], {"enable_cuda_graph": "1"}) if cuda_graph else PROVIDERS[provider]
    try:
        session = onnxruntime.InferenceSession(source, options, providers=[chosen])
    except Exception as error:  # its exceptions have no base class of their own
        where = "" if isinstance(graph, bytes) else f" {graph}"
        raise StartError(f"onnxruntime {onnxruntime.__version__} cannot load{where}: {error}") from error
    check_session(provider, session.get_providers())
    if provider == "cpu":
        pages.collapse()
    return session


def wheel_conflict() -> str | None:
    """A warning if both onnxruntime wheels are installed: they overwrite each other's files."""
    found = []
    for name in ("onnxruntime", "onnxruntime-gpu"):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    if len(found) < 2:
        return None
    return (
        f"{' and '.join(found)} are both installed and share one folder; repair: "
        "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"
    )
