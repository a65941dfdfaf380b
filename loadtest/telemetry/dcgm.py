"""What a DCGM exporter says of GPUs (NVIDIA's "DCGM Exporter Metrics"). Pure."""

import math

from loadtest.telemetry.exposition import samples
from loadtest.telemetry.throttle import REASONS
from loadtest.telemetry.watch import Seen

_POWER_LIMITS = ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_POWER_MGMT_LIMIT")
_THROTTLES = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
_FIELDS = {
    "DCGM_FI_DEV_GPU_UTIL": ("utilisation", 0.01),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_mhz", 1.0),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 0.001),
    **dict.fromkeys(_POWER_LIMITS, ("power_limit_w", 1.0)),
}
_USED, _FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
# A field that is blank is told as one of the largest numbers there are (dcgm_structs.h, DCGM_FP64_BLANK and above).
_BLANK = 2.0**47


def read(text: str, models: dict[str, str]) -> Seen:
    """Each GPU's figures by its name, which is its index, with the host if one is named; ``models`` learns what it is.

    Raises:
        ValueError: it is no exposition of DCGM's.
    """
    found: dict[str, dict[str, float]] = {}
    memory: dict[str, dict[str, float]] = {}
    for sample in samples(text, {*_FIELDS, *_THROTTLES, _USED, _FREE}):
        labels = sample.labels
        index = labels.get("gpu")
        # An instance of a partitioned GPU is told beside the whole.
        if index is None or labels.get("GPU_I_ID") or not math.isfinite(sample.value):
            continue
        if sample.value >= _BLANK and sample.name != "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION":
            continue
        name = f"{labels['Hostname']}/{index}" if labels.get("Hostname") else index
        models[name] = labels.get("modelName", "")
        own = found.setdefault(name, {})
        if sample.name in _THROTTLES:
            own |= {why: float(bool(int(sample.value) & bits)) for why, bits in REASONS.items()}
        elif sample.name in (_USED, _FREE):
            memory.setdefault(name, {})[sample.name] = sample.value
        else:
            figure, unit = _FIELDS[sample.name]
            own[figure] = sample.value * unit
    for name, parts in memory.items():
        if len(parts) == 2 and (whole := sum(parts.values())) > 0:
            found[name]["memory_share"] = parts[_USED] / whole
    if not found:
        raise ValueError("no series of a DCGM exporter in it (DCGM_FI_DEV_…)")
    return dict(found)
