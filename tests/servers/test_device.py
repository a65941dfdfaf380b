"""The choice of the device, on machines with and without CUDA, and never a silent fallback."""

import pytest

from servers import device
from servers.device import check_session, choose
from servers.errors import StartError

MISSING = "no NVIDIA driver on this machine"


@pytest.mark.parametrize(
    ("provider", "missing", "chosen"),
    [("auto", MISSING, "cpu"), ("auto", None, "cuda"), ("cpu", None, "cpu"), ("cuda", None, "cuda")],
)
def test_the_device_that_is_taken(provider: str, missing: str | None, chosen: str) -> None:
    assert choose(provider, missing) == chosen


def test_cuda_that_is_not_there_is_refused_with_the_mend() -> None:
    with pytest.raises(StartError, match=r"--provider cuda: no NVIDIA driver.*--provider cpu"):
        choose("cuda", MISSING)


def test_a_session_that_fell_back_is_refused() -> None:
    check_session("cuda", ["CUDAExecutionProvider", "CPUExecutionProvider"])
    check_session("cpu", ["CPUExecutionProvider"])
    with pytest.raises(StartError, match=r"loadtest\[cuda\]"):
        check_session("cuda", ["CPUExecutionProvider"])


def test_a_session_that_captures_is_asked_for_by_its_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    asked = []

    class Session:
        def __init__(self, source: bytes, options: object, providers: list[object]) -> None:
            asked.append(providers)

        def get_providers(self) -> list[str]:
            return ["CUDAExecutionProvider"]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    for cuda_graph in (False, True):
        device.open_session(b"", "cuda", 1, cuda_graph=cuda_graph)
    assert asked == [["CUDAExecutionProvider"], [("CUDAExecutionProvider", {"enable_cuda_graph": "1"})]]


class Driver:
    def __init__(self, init: int, devices: int) -> None:
        self.init, self.devices = init, devices

    def cuInit(self, _: int) -> int:
        return self.init

    def cuDeviceGetCount(self, count) -> int:
        count._obj.value = self.devices
        return 0


@pytest.mark.parametrize(("init", "devices"), [(100, 0), (0, 0)])
def test_a_driver_without_a_gpu_is_no_cuda(init: int, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.ctypes, "CDLL", lambda _: Driver(init, devices))
    assert device.why_no_cuda() == "the NVIDIA driver reports no usable GPU"


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(device.ctypes, "CDLL", missing)
    assert "libcuda.so.1" in str(device.why_no_cuda())


def test_a_runtime_without_cuda_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    monkeypatch.setattr(device.ctypes, "CDLL", lambda _: Driver(0, 1))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert "loadtest[cuda]" in str(device.why_no_cuda())


def test_both_wheels_at_once_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "version", lambda _: "1.31.1")
    assert "pip uninstall" in str(device.wheel_conflict())
