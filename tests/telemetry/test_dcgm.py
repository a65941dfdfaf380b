"""What a DCGM exporter says of each GPU, and what of it is no reading."""

import pytest

from loadtest.telemetry import dcgm
from tests.telemetry.expositions import DCGM


def test_each_gpu_of_each_host_is_told_apart_in_our_units() -> None:
    models: dict[str, str] = {}
    found = dcgm.read(DCGM, models)
    assert found["node/0"] == pytest.approx(
        {
            "sm_clock_mhz": 1755, "utilisation": 0.98, "memory_share": 0.75, "power_w": 695.5, "power_limit_w": 700,
            "energy_j": 8000, "power_cap": 1, "thermal": 0, "power_brake": 0, "hardware_slowdown": 0,
        }
    )  # fmt: skip
    assert models == {"node/0": "NVIDIA H100", "node/1": "NVIDIA H100"}


def test_a_blank_field_and_an_instance_of_a_partitioned_gpu_are_no_reading() -> None:
    found = dcgm.read(DCGM, {})
    assert found["node/1"] == {"sm_clock_mhz": 1980}
    assert found["node/0"]["utilisation"] == 0.98, "not that of its instance"


def test_older_exporters_call_the_reasons_otherwise() -> None:
    old = DCGM.replace("CLOCKS_EVENT_REASONS", "CLOCK_THROTTLE_REASONS").replace('Hostname="node"} 4', "} 32")
    assert dcgm.read(old.replace(',Hostname="node"', ""), {})["0"]["thermal"] == 1


def test_what_is_no_dcgm_exporter_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="DCGM_FI_DEV_"):
        dcgm.read("vllm:num_requests_running 1\n", {})
