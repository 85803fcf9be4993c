from __future__ import annotations

import json
import os
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


def test_what_stands_in_the_place_of_a_result_is_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "calibration").mkdir()
    file = tmp_path / "calibration/n1.json"
    for text in ("[1]", '{"matrix": "x"}', '{"matrix": NaN}', '{"\\u001b[31m": 1}', '{"matrix": {}}'):
        file.write_text(text)
        assert Calibration(tmp_path, "n1").read() is None
    file.unlink()
    os.mkfifo(file)
    assert Calibration(tmp_path, "n1").read() is None


def test_a_result_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "plan").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "plan/calibration").symlink_to(tmp_path / "elsewhere")
    assert Calibration(tmp_path / "plan", "n1").measure(0.1) is None
    assert not list((tmp_path / "elsewhere").iterdir())
