"""This host's NVIDIA GPUs, as their driver tells them (NVML, by nvidia-ml-py)."""

import contextlib
from typing import Any

from loadtest.errors import UsageError
from loadtest.telemetry.throttle import REASONS
from loadtest.telemetry.watch import Seen, Unseen


class Nvml:
    """The driver, opened.

    Raises:
        UsageError: the package or the driver is not here, or there is no GPU.
    """

    def __init__(self) -> None:
        try:
            import pynvml  # noqa: PLC0415  # an extra
        except ModuleNotFoundError:
            raise UsageError("--gpu needs nvidia-ml-py: pip install 'loadtest[gpu]', or give --dcgm URL") from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._gpus = {str(index): pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)}
        except pynvml.NVMLError as error:
            raise UsageError(f"--gpu: no NVIDIA driver answers on this host ({error}); leave it out") from None
        if not self._gpus:
            raise UsageError("--gpu: this host has no NVIDIA GPU; leave it out")
        self.models = {name: str(pynvml.nvmlDeviceGetName(gpu)) for name, gpu in self._gpus.items()}

    def look(self) -> Seen:
        """Each GPU's figures by its index. What one of them does not support is left out.

        Raises:
            Unseen: the driver tells nothing any more.
        """
        nvml, found = self._nvml, {}
        for name, gpu in self._gpus.items():
            own: dict[str, float] = {}
            # What a GPU has no reading for is refused call by call (vGPUs, older boards).
            with contextlib.suppress(nvml.NVMLError):
                own["utilisation"] = nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
            with contextlib.suppress(nvml.NVMLError):
                memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
                own["memory_share"] = memory.used / memory.total
            with contextlib.suppress(nvml.NVMLError):
                own["power_w"] = nvml.nvmlDeviceGetPowerUsage(gpu) / 1000
            with contextlib.suppress(nvml.NVMLError):
                own["power_limit_w"] = nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000
            with contextlib.suppress(nvml.NVMLError):
                own["sm_clock_mhz"] = float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM))
            with contextlib.suppress(nvml.NVMLError):
                own["energy_j"] = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000
            with contextlib.suppress(nvml.NVMLError):
                bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
                own |= {why: float(bool(bits & mask)) for why, mask in REASONS.items()}
            if own:
                found[name] = own
        if not found:
            raise Unseen("the NVIDIA driver tells nothing of its GPUs")
        return dict(found)
