"""This host's GPUs by their driver, which is not here: a stand-in for its package says what such a driver does."""

import sys
from types import SimpleNamespace

import pytest

from loadtest.errors import UsageError
from loadtest.telemetry.nvml import Nvml
from loadtest.telemetry.watch import Unseen


class NVMLError(Exception):
    """As the package's."""


def refused(*_: object) -> object:
    raise NVMLError("Not Supported")


def driver(**of: object) -> SimpleNamespace:
    """A package with one GPU; ``of`` are functions that behave otherwise."""
    usual = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _: "NVIDIA H200",
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=87, memory=40),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=30 << 30, total=120 << 30),
        "nvmlDeviceGetPowerUsage": lambda _: 512_000,
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
        "nvmlDeviceGetClockInfo": lambda _, clock: {1: 1830}[clock],
        "nvmlDeviceGetTotalEnergyConsumption": lambda _: 9_000_000,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 0x4 | 0x1,
    }
    return SimpleNamespace(**{**usual, **of})


def here(monkeypatch: pytest.MonkeyPatch, package: object) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", package)


def test_a_gpu_is_read_in_our_units(monkeypatch: pytest.MonkeyPatch) -> None:
    here(monkeypatch, driver())
    opened = Nvml()
    assert opened.models == {"0": "NVIDIA H200"}
    assert opened.look()["0"] == {
        "utilisation": 0.87, "memory_share": 0.25, "power_w": 512, "power_limit_w": 700, "sm_clock_mhz": 1830,
        "energy_j": 9000, "power_cap": 1, "thermal": 0, "power_brake": 0, "hardware_slowdown": 0,
    }  # fmt: skip


def test_what_a_gpu_does_not_support_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    here(monkeypatch, driver(nvmlDeviceGetTotalEnergyConsumption=refused, nvmlDeviceGetPowerUsage=refused))
    found = Nvml().look()["0"]
    assert not {"energy_j", "power_w"} & set(found)
    assert found["utilisation"] == 0.87


def test_a_driver_that_has_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    package = driver()
    here(monkeypatch, package)
    opened = Nvml()
    for name in vars(package):
        if name.startswith("nvmlDeviceGet"):
            setattr(package, name, refused)
    with pytest.raises(Unseen, match="tells nothing"):
        opened.look()


@pytest.mark.parametrize(
    ("package", "words"),
    [
        (None, r"pip install 'loadtest\[gpu\]'"),
        (driver(nvmlInit=refused), "no NVIDIA driver answers"),
        (driver(nvmlDeviceGetCount=lambda: 0), "no NVIDIA GPU"),
    ],
)
def test_without_a_gpu_it_is_refused_with_the_mend(
    monkeypatch: pytest.MonkeyPatch, package: object, words: str
) -> None:
    here(monkeypatch, package)
    with pytest.raises(UsageError, match=words):
        Nvml()
