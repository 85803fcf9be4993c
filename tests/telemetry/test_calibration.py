from __future__ import annotations

import json
from pathlib import Path

from hpcrl.telemetry.calibration import Calibration, measure


def test_four_rates_are_measured() -> None:
    found = measure(0.2)
    assert set(found) == {"matrix", "memory", "python", "environment", "unix_time"}
    assert all(value > 0 for value in found.values())


def test_whoever_comes_first_measures_and_the_others_read(tmp_path: Path) -> None:
    first, second = Calibration(tmp_path, "n1"), Calibration(tmp_path, "n1")
    result = first.measure(0.1)
    assert result is not None
    assert second.measure(0.1) == result == second.read() == json.loads((tmp_path / "calibration/n1.json").read_text())
    assert Calibration(tmp_path, "n2").read() is None


def test_who_comes_while_another_measures_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "calibration").mkdir()
    (tmp_path / "calibration/n1.claim").touch()
    assert Calibration(tmp_path, "n1").measure(1000) is None


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "calibration").touch()
    assert Calibration(tmp_path, "n1").measure(1000) is None
