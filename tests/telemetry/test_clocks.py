from __future__ import annotations

import json
import socket
import stat
import time
from pathlib import Path

import psutil
import pytest

from hpcrl.telemetry.clocks import offset, serve


@pytest.mark.parametrize("ahead", [0.0, 37.5, -3600.0])
def test_the_offset_to_the_first_nodes_clock(tmp_path: Path, ahead: float) -> None:
    serve(tmp_path / "clocks" / "cell.1", towards="127.0.0.1")
    found = offset(tmp_path / "clocks" / "cell.1", clock=lambda: time.time() + ahead)
    assert found is not None
    assert found[0] == pytest.approx(ahead, abs=max(found[1], 1e-4))
    assert found[1] < 1


def test_a_first_node_that_cannot_be_found(tmp_path: Path) -> None:
    assert offset(tmp_path / "nobody", patience=0.2) is None
    (tmp_path / "gone").write_text(json.dumps(["127.0.0.1", 1, "token"]))
    assert offset(tmp_path / "gone", patience=0.2) is None
    (tmp_path / "half").write_text("[[")
    assert offset(tmp_path / "half", patience=0.2) is None


def test_strangers_get_no_answer_and_spoil_nothing(tmp_path: Path) -> None:
    """One who trickles a byte, one who knows no token, one who says nothing; and the port is on one address alone."""
    file = tmp_path / "clocks" / "cell.1"
    serve(file, towards="127.0.0.1")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    address, port, token = json.loads(file.read_text())
    assert address == "127.0.0.1"
    listening = [each.laddr.ip for each in psutil.Process().net_connections("tcp") if each.laddr.port == port]
    assert set(listening) == {"127.0.0.1"}
    silent, trickling, guessing = (socket.create_connection((address, port), timeout=10) for _ in range(3))
    trickling.sendall(token[:1].encode())
    guessing.sendall(b"?" * len(token))
    assert guessing.recv(8) == b""
    started = time.monotonic()
    found = offset(file)
    assert found is not None
    assert abs(found[0]) <= max(found[1], 1e-3)
    assert time.monotonic() - started < 4  # nobody was waited for
    for each in (silent, trickling, guessing):
        each.close()
