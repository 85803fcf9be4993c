"""Fixtures that all tests share, and what happens to tests that need a real Slurm where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from hpcrl.private_slurm.programs import PACKAGES, missing_programs

NO_SLURM = missing_programs()


@dataclass(frozen=True)
class Shown:
    """What a call of the command line left."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's and the site's own files, and the surrounding Slurm job's variables, out of the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    monkeypatch.setenv("HPCRL_SITE", "/nonexistent")
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_")) or name in ("HPCRL_PATH", "HPCRL_ACCOUNT", "HPCRL_METRICS"):
            monkeypatch.delenv(name)


@pytest.fixture
def hpcrl(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Shown]:
    """Call the command line in this process."""
    from hpcrl.cli.main import main

    def call(*arguments: object) -> Shown:
        monkeypatch.setattr(sys, "argv", ["hpcrl", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        return Shown(int(stop.value.code or 0), out, err)

    return call


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a Slurm where there is none; in CI such a test runs, and fails on what is not installed."""
    if not NO_SLURM or os.environ.get("CI") == "true":
        return
    for item in items:
        if item.get_closest_marker("slurm"):
            item.add_marker(pytest.mark.skip(reason=f"no Slurm here: {', '.join(NO_SLURM)}"))


class _ByFile(LoadScopeScheduling):
    """Gives each worker whole files. All of tests/slurm is one of them: it shares its private Slurms, and mostly waits.

    The longest file, whose tests share nothing, is given test by test.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file == "tests/rl/test_frameworks.py":
            return nodeid.partition("[")[0]
        return "slurm" if file.startswith("tests/slurm/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _ByFile(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [each for each in terminalreporter.stats.get("skipped", []) if "no Slurm here" in str(each.longrepr)]
    if skipped:
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.line(
            f"{len(skipped)} tests on a real Slurm were skipped: not installed: {', '.join(NO_SLURM)}"
        )
        terminalreporter.line(f"install them: apt-get install {PACKAGES}")


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the stand-in for NVIDIA's library and return its directory, for ``LD_LIBRARY_PATH``."""
    directory = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).parent / "telemetry/nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", directory / "libnvidia-ml.so.1", source], check=True)
    return directory
