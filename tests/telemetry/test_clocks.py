from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hpcrl.telemetry.clocks import offset, serve


@pytest.mark.parametrize("ahead", [0.0, 37.5, -3600.0])
def test_the_offset_to_the_first_nodes_clock(tmp_path: Path, ahead: float) -> None:
    serve(tmp_path / "clocks" / "cell.1")
    found = offset(tmp_path / "clocks" / "cell.1", clock=lambda: time.time() + ahead)
    assert found is not None
    assert found[0] == pytest.approx(ahead, abs=max(found[1], 1e-4))
    assert found[1] < 1


def test_a_first_node_that_cannot_be_found(tmp_path: Path) -> None:
    assert offset(tmp_path / "nobody", patience=0.2) is None
    (tmp_path / "gone").write_text(json.dumps([["127.0.0.1", 1]]))
    assert offset(tmp_path / "gone", patience=0.2) is None
    (tmp_path / "half").write_text("[[")
    assert offset(tmp_path / "half", patience=0.2) is None
