import pytest
from click.testing import CliRunner

from servers.cli import serve


@pytest.mark.parametrize("option", ["--batch-timeout-ms=nan", "--drain-timeout=nan", "--kv-slots=4", "--port=-1"])
def test_a_setting_that_cannot_be_meant_is_exit_2(option: str) -> None:
    done = CliRunner().invoke(serve, ["--model", "tiny", "--port", "0", option])
    assert done.exit_code == 2
    assert option.partition("=")[0] in done.output
