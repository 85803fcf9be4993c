"""The other frameworks against the NumPy learner in float64, each in its own environment, built as for any user."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hpcrl.environments.build import Built, build_all, check
from hpcrl.formats.plan import read_plan
from hpcrl.formats.worker import worker_zip
from tests.builders import planned

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("parity_program.py")


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    plan = read_plan(planned(tmp_path_factory.mktemp("e") / "plan", "quickstart"))
    site = plan.cluster["environments"] | {"root": str(Path.home() / ".cache/hpcrl/environments")}
    return {each.environment.name: each for each in build_all(plan.environments, site, lambda key, text: None)}


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_environments_are_cpu_only_and_import(environments: dict[str, Built], framework: str) -> None:
    built = environments[framework]
    assert check(built.environment, built.path)
    packages = [path.name.lower() for path in (built.path / "lib/python3.11/site-packages").glob("*.dist-info")]
    assert not [name for name in packages if name.startswith(("nvidia_c", "triton", "cuda", "jax_cuda"))]


@pytest.mark.parametrize(
    ("framework", "execution"), [("torch", "eager"), ("torch", "lazy"), ("jax", "eager"), ("jax", "lazy")]
)
def test_ten_updates_agree_with_the_specification(
    environments: dict[str, Built], tmp_path: Path, framework: str, execution: str
) -> None:
    """Weights of about 0.5 in float32 have a spacing of 6e-8: 5e-8 after one update is half of it, 1e-6 after ten."""
    worker = tmp_path / "worker.zip"
    worker.write_bytes(worker_zip())
    done = subprocess.run(
        [environments[framework].path / "bin/python", PROGRAM, framework, execution],
        env={**os.environ, "PYTHONPATH": str(worker), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for case in json.loads(done.stdout.splitlines()[-1]):
        assert case["one"] < 5e-8, case
        assert case["ten"] < 1e-6, case
        assert case["moved"] > 1e-3, case
        assert case["agree"] == 1000, case
        assert case["restored"], case
        if execution == "eager":
            assert case["compiled"].startswith("nothing")
        elif framework == "torch":
            assert "0 graph breaks" in case["compiled"], case
            assert int(case["compiled"].split()[1]) >= 2, case
        else:
            assert case["compiled"].startswith("jax.jit: 1 update programs"), case
