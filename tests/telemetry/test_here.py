"""This host's own figures, where the system tells them."""

import sys
from pathlib import Path

import pytest

from loadtest.telemetry import here
from loadtest.telemetry.watch import Unseen


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_this_host_tells_of_itself() -> None:
    found = here.look()[here.NAME]
    assert set(found) == {"busy_share_s", "received_mb", "sent_mb", "tcp_sockets"}
    assert found["busy_share_s"] > 0
    again = here.look()[here.NAME]
    assert all(again[name] >= found[name] for name in ("busy_share_s", "received_mb", "sent_mb"))


def test_networks_add_up_and_sockets_are_of_both_ips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "stat").write_text("cpu  1 2 3\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5\n")
    head = "Inter-|   Receive |  Transmit\n face |bytes packets errs |bytes packets\n"
    rows = "    lo: 1000000 1 0 0 0 0 0 0 2000000 1\n  eth0: 500000 1 0 0 0 0 0 0 1000000 1\n"
    (tmp_path / "net" / "dev").write_text(head + rows)
    (tmp_path / "net" / "sockstat").write_text("sockets: used 9\nTCP: inuse 4 orphan 0 tw 1\nUDP: inuse 1\n")
    (tmp_path / "net" / "sockstat6").write_text("TCP6: inuse 3\n")
    monkeypatch.setattr(here, "_PROC", tmp_path)
    monkeypatch.setattr(here, "busy_s", lambda: 30.0)
    assert here.look()[here.NAME] == {"busy_share_s": 15.0, "received_mb": 1.5, "sent_mb": 3.0, "tcp_sockets": 7.0}


def test_a_system_without_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(here, "_PROC", tmp_path / "none")
    monkeypatch.setattr(here, "busy_s", lambda: None)
    with pytest.raises(Unseen, match="does not tell"):
        here.look()
