"""RAPL's files, made by hand: few machines let a test read theirs."""

from __future__ import annotations

from pathlib import Path

from hpcrl.telemetry.packages import Packages


def zone(powercap: Path, number: str, name: str, microjoules: int) -> Path:
    path = powercap / f"intel-rapl:{number}"
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "max_energy_range_uj").write_text("1000000\n")
    (path / "energy_uj").write_text(f"{microjoules}\n")
    return path


def test_packages_are_added_and_a_counter_that_starts_anew_goes_on(tmp_path: Path) -> None:
    first, second = zone(tmp_path, "0", "package-0", 900_000), zone(tmp_path, "1", "package-1", 100)
    core = zone(tmp_path, "0:0", "core", 5)
    packages = Packages(tmp_path)
    assert packages.read() == {"cpu_energy": 0.0}
    (first / "energy_uj").write_text("100000\n")
    (second / "energy_uj").write_text("300100\n")
    (core / "energy_uj").write_text("999999\n")
    assert packages.read() == {"cpu_energy": 0.5}
    (second / "energy_uj").write_text("400100\n")
    assert packages.read() == {"cpu_energy": 0.6}


def test_no_counter_no_value(tmp_path: Path) -> None:
    assert Packages(tmp_path / "none").read() == {}
    (zone(tmp_path, "0", "package-0", 1) / "energy_uj").unlink()
    assert Packages(tmp_path).read() == {}
