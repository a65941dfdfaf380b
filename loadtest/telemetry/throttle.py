"""Why a GPU's clock is held down, as bits (nvml.h, nvmlClocksEventReasons; DCGM's field 112 has the same)."""

REASONS: dict[str, int] = {
    "power_cap": 0x04,
    "thermal": 0x20 | 0x40,
    "power_brake": 0x80,
    "hardware_slowdown": 0x08,
}
"""Those that a load can cause; a GPU that idles, or whose clocks somebody has set, is not held down by it."""
