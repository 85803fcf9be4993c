"""What is installed: a login node needs nothing of the report, and the archives hold what they should."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import hpcrl
from hpcrl.formats.plan import read_plan
from hpcrl.formats.version import full_version
from tests.builders import cells_of, command_study, planned, write_record

ROOT = Path(__file__).parents[1]
OF_REPORT = ("altair", "duckdb", "optuna", "PIL", "scipy", "vl_convert")


def hpcrl_without(tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Call hpcrl where the packages of the extra `report` are not installed."""
    blocked = tmp_path / "blocked"
    blocked.mkdir(exist_ok=True)
    text = f"import sys\nsys.modules.update(dict.fromkeys({OF_REPORT!r}))\n"
    (blocked / "sitecustomize.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "hpcrl", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{blocked}{os.pathsep}{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_list_is_that_of_the_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {each.partition(">")[0].removesuffix("-python").replace("-", "_") for each in extras["report"]}
    assert names == {"pillow" if each == "PIL" else each for each in OF_REPORT}


def test_planning_and_collecting_need_nothing_of_the_report(tmp_path: Path) -> None:
    done = hpcrl_without(tmp_path, "plan", "--study", "quickstart", "--cluster", "sol", "--account", "x")
    assert done.returncode == 0, done.stderr
    plan = planned(tmp_path / "p", command_study(["true"]))
    write_record(plan, cells_of(plan)[0])
    for words in (["status", plan], ["collect", plan, "-o", "d"], ["study", "list"], ["cluster", "show", "sol"]):
        done = hpcrl_without(tmp_path, *words)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["report", "d"], ["query", "SELECT 1", "--dataset", "d"]])
def test_what_is_not_installed_is_one_sentence(tmp_path: Path, words: list[str]) -> None:
    plan = planned(tmp_path / "p", command_study(["true"]))
    write_record(plan, cells_of(plan)[0])
    assert hpcrl_without(tmp_path, "collect", plan, "-o", "d").returncode == 0
    done = hpcrl_without(tmp_path, *words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "is not installed: install the packages for reports: pip install 'hpcrl[report]'" in done.stderr


@pytest.mark.slow
def test_the_archives_hold_what_they_should(tmp_path: Path) -> None:
    import hatchling.build  # noqa: F401, it builds below

    code = "import hatchling.build as b, sys; print(b.build_wheel(sys.argv[1])); print(b.build_sdist(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "hpcrl/py.typed",
        "hpcrl/library/clusters/sol.yaml",
        "hpcrl/library/templates/sbatch/base.sbatch.j2",
    ):
        assert wanted in names
    assert not [name for name in names if "results" in name or name.startswith("tests")]
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = [name.partition("/")[2] for name in archive.getnames()]
    assert not [name for name in inside if name.startswith("docs/results")]
    assert "requirements/dev.txt" in inside
    assert sdist.stat().st_size < 5 * 2**20


def test_two_states_of_the_code_have_two_versions(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "hpcrl", copy / "hpcrl", ignore=shutil.ignore_patterns("__pycache__"))

    def version() -> str:
        words = [
            sys.executable,
            "-c",
            "import hpcrl; from hpcrl.formats.version import full_version; print(full_version(hpcrl.__version__))",
        ]
        done = subprocess.run(
            words, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    first = version()
    assert first == full_version(hpcrl.__version__)
    assert re.fullmatch(r"\d+\.\d+\.\d+\+[0-9a-f]{8}", first)
    with (copy / "hpcrl/errors.py").open("a") as file:
        file.write("# changed\n")
    assert version() != first
    assert read_plan(planned(tmp_path / "p", command_study(["true"]))).hpcrl == first
