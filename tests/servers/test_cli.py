import pytest
from click.testing import CliRunner

from servers.cli import serve


@pytest.mark.parametrize("option", ["--batch-timeout-ms=nan", "--drain-timeout=nan", "--kv-slots=4", "--port=-1"])
def test_a_setting_that_cannot_be_meant_is_exit_2(option: str) -> None:
    done = CliRunner().invoke(serve, ["--model", "tiny", "--port", "0", option])
    assert done.exit_code == 2
    assert option.partition("=")[0] in done.output


@pytest.mark.parametrize("scheduler", ["continuous", "none"])
def test_a_wait_that_no_batch_would_wait_is_refused(scheduler: str) -> None:
    done = CliRunner().invoke(serve, ["--model", "tiny", "--scheduler", scheduler, "--batch-timeout-ms", "20"])
    assert done.exit_code == 2
    assert (
        f"--batch-timeout-ms is for --scheduler dynamic and static; leave it out with --scheduler {scheduler}"
        in done.output
    )
