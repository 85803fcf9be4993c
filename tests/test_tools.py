"""What `make demo` and `make test` install: missing Debian packages only. Stand-ins for sudo and apt-get note what they are told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def debian_packages(tmp_path: Path, python: Path, *probes: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Ask for packages where nothing can be installed. Return the end of the script, and what it told sudo."""
    told = tmp_path / "told"
    told.write_text("")
    program(tmp_path / "bin/id", "echo 1000")
    program(tmp_path / "bin/apt-get", "exit 1")
    program(tmp_path / "bin/sudo", f'echo "$@" >> {told}')
    done = subprocess.run(
        [ROOT / "tools/debian-packages", "a test", *probes],
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHON": str(python)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, told.read_text()


def test_only_missing_packages_are_installed(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/Python.h").touch()
    python = program(tmp_path / "own/python", f"echo {tmp_path / 'include'}")
    done, told = debian_packages(tmp_path, python, "header:Python.h=python3.11-dev", "sh=dash")
    assert (done.returncode, done.stderr, told) == (0, "", "")
    (tmp_path / "include/Python.h").unlink()
    done, told = debian_packages(tmp_path, python, "header:Python.h=python3.11-dev", "sh=dash")
    assert done.returncode == 0
    assert done.stderr == "installing for a test: python3.11-dev\n"
    (install,) = (line for line in told.splitlines() if "apt-get install" in line)
    assert "--no-upgrade" in install
    assert install.endswith(" python3.11-dev")


def test_nothing_is_installed_for_a_python_that_does_not_run(tmp_path: Path) -> None:
    done, told = debian_packages(tmp_path, tmp_path / "none/python", "header:Python.h=python3.11-dev")
    assert done.returncode == 2
    assert told == ""


@pytest.mark.parametrize(("target", "venv"), [("demo", ".venv-demo"), ("test", ".venv")])
def test_headers_are_looked_for_in_the_python_of_the_target(target: str, venv: str) -> None:
    said = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in said.splitlines() if "header:Python.h" in line)
    assert line.startswith(f"PYTHON={venv}/bin/python tools/debian-packages ")
