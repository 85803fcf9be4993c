"""What runs in a cell is complete: each of its modules can be imported where there is nothing else of hpcrl."""

from __future__ import annotations

import subprocess
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from hpcrl.catalogue.registry import frameworks
from hpcrl.formats.worker import worker_zip
from tests.builders import built_environment

PROGRAM = """
import importlib, pkgutil, sys
import hpcrl
assert hpcrl.__file__.startswith(sys.argv[1]), hpcrl.__file__
for name in sys.argv[2:]:
    importlib.import_module(name)
print("done")
"""


def modules() -> list[str]:
    """Return the worker's modules, without those of a framework and the ones that need its packages."""
    names = zipfile.ZipFile(BytesIO(worker_zip())).namelist()
    found = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names]
    parts = {f"hpcrl.rl.frameworks.{name}" for name in frameworks() if name != "numpy"}
    of_frameworks = tuple(f"hpcrl.run.profilers.tracers.{name}" for name in frameworks())
    with_jax = ("hpcrl.rl.envs.jax.", "hpcrl.rl.vector.compiled", *of_frameworks)
    return [name for name in found if ".".join(name.split(".")[:4]) not in parts and not name.startswith(with_jax)]


@pytest.mark.slow
def test_every_module_can_be_imported_in_numpy_s_environment(tmp_path: Path) -> None:
    worker = tmp_path / "worker.zip"
    worker.write_bytes(worker_zip())
    words = [built_environment("numpy").path / "bin/python", "-P", "-c", PROGRAM, str(worker), *modules()]
    done = subprocess.run(
        words, cwd=tmp_path, env={"PYTHONPATH": str(worker)}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "done", done.stderr


def test_nothing_of_the_planning_side_is_in_it() -> None:
    packages = {name.split(".")[1] for name in modules() if "." in name}
    assert not packages & {"spec", "plan", "submit", "collect", "report", "cli", "api", "private_slurm", "environments"}
