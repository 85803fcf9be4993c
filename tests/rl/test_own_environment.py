"""docs/your-own-environment.md, followed letter by letter; and environments that fail Gymnasium's check."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from hpcrl.errors import UsageError
from hpcrl.formats.plan import read_cells, read_plan
from hpcrl.formats.record import read_frames
from hpcrl.spec.gym import asked, environment_fault, lacks_jax
from hpcrl.spec.library import Library
from tests.builders import built_environment, planned, write_yaml

PAGE = (Path(__file__).parents[2] / "docs/your-own-environment.md").read_text(encoding="utf-8")
CODE, STUDY = (re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[0] for language in ("python", "yaml"))
WRONG = CODE.replace("np.eye(self.length, dtype=np.float32)[self.place]", "np.eye(self.length + 1, dtype=np.float32)[self.place]")  # fmt: skip
ERROR = r"corridor:Corridor-v0 fails Gymnasium.s check_env: AssertionError: The first element returned by `env.reset\(\)` is not within"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A directory of Python packages with the module of the page."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/corridor.py").write_text(CODE)
    return tmp_path / "packages"


def study_of(tmp_path: Path, python: Path) -> Path:
    """Write the study of the page, with a venv that there is in place of /venvs/mine."""
    study = YAML(typ="safe").load(STUDY.replace("/venvs/mine", str(python.parents[1])))
    return write_yaml(tmp_path / "corridor.yaml", study | {"calibration_seconds": 0, "idle_seconds": 0})


def outcomes(tmp_path: Path, packages: Path, python: Path, framework: str) -> list[tuple[str, str | None, float]]:
    """Run the cells of a framework; return how each ended and its last score."""
    plan = planned(tmp_path / "p", str(study_of(tmp_path, python)))
    found = []
    for job in read_plan(plan).cell_jobs():
        for task, cell in enumerate(read_cells(plan, job)):
            if cell.config["framework"] != framework:
                continue
            command = [python, "-m", "hpcrl.run", plan, "--job", job.name, "--index", str(task), "--interval", "0.1"]
            variables = {"PYTHONPATH": f"{plan / 'worker.zip'}:{packages}"}
            subprocess.run(command, env=os.environ | variables, capture_output=True, check=False, timeout=300)
    for record in (plan / "records").iterdir():
        (footer,) = (frame.payload for frame in read_frames(record) if frame.kind == "footer")
        found.append((footer["outcome"], footer["reason"], footer.get("final_score", 0.0)))
    return found


@pytest.fixture
def importable(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of the page can be imported where the study is planned."""
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PYTHONPATH", f"{packages}:{os.environ.get('PYTHONPATH', '')}")
    asked.cache_clear()
    environment_fault.cache_clear()


@pytest.mark.usefixtures("importable")
def test_the_page_in_numpy(tmp_path: Path, packages: Path) -> None:
    assert len(PAGE.splitlines()) < 100
    assert outcomes(tmp_path, packages, Path(sys.executable), "numpy") == [("completed", None, 1.0)]


@pytest.mark.slow
def test_the_page_in_jax(tmp_path: Path, packages: Path) -> None:
    python = built_environment("jax").path / "bin/python"
    assert outcomes(tmp_path, packages, python, "jax") == [("completed", None, 1.0)] * 2


def test_an_environment_that_fails_gymnasium_s_check(
    tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (packages / "corridor.py").write_text(WRONG)
    # Where its module is not installed, it is planned, and the cell says it.
    ((outcome, reason, _),) = outcomes(tmp_path, packages, Path(sys.executable), "numpy")
    assert outcome == "failed" and reason is not None and re.search(ERROR, reason)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PYTHONPATH", f"{packages}:{os.environ.get('PYTHONPATH', '')}")
    asked.cache_clear()
    environment_fault.cache_clear()
    with pytest.raises(UsageError, match=rf"corridor.yaml:\d+: workload.environment: {ERROR}"):
        Library().study(str(study_of(tmp_path / "again", Path(sys.executable))))


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("name", "options", "body", "said"),
    [
        ("corridor:Coridor-v0", {}, "", r"Environment `Coridor` doesn't exist"),
        ("corridor:Corridor-v0", {"lenght": 6}, "", r"options lenght: .*unexpected keyword argument 'lenght'"),
        (
            "corridor:Corridor-v0",
            {},
            "raise OSError('no map')",
            r"corridor:Corridor-v0 cannot be made: OSError: no map",
        ),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused_where_it_is_planned(
    packages: Path, name: str, options: dict[str, Any], body: str, said: str
) -> None:
    if body:
        head = re.search(r"    def __init__\(.*\n", CODE)
        assert head
        (packages / "corridor.py").write_text(CODE.replace(head[0], f"{head[0]}        {body}\n"))
    wrong, told = asked(name, tuple(options.items()))
    assert told is None and wrong is not None and re.search(said, wrong), wrong


@pytest.mark.usefixtures("importable")
def test_an_environment_with_other_actions_than_the_algorithm_s_is_refused(tmp_path: Path, packages: Path) -> None:
    code = CODE.replace("spaces.Discrete(2)", "spaces.Box(-1, 1, (1,), np.float32)")
    (packages / "corridor.py").write_text(code.replace("int(action)", "int(action[0] > 0)"))
    said = r"workload.environment: DQN: expected discrete actions, got continuous ones of corridor:Corridor-v0"
    with pytest.raises(UsageError, match=said):
        Library().study(str(study_of(tmp_path, Path(sys.executable))))


@pytest.mark.usefixtures("importable")
def test_an_environment_that_is_not_there_in_jax_is_refused_where_it_is_planned(tmp_path: Path, packages: Path) -> None:
    Library().study(str(study_of(tmp_path, Path(sys.executable))))
    (packages / "corridor.py").write_text(CODE[: CODE.index("def jax_world")])
    asked.cache_clear()
    environment_fault.cache_clear()
    assert lacks_jax("corridor:Corridor-v0", ())
    assert not lacks_jax("other:Corridor-v0", ())
    said = (
        r"axes.framework.1.stepping: .*the module corridor has no `jax_world`: corridor:Corridor-v0 is not there in JAX"
    )
    with pytest.raises(UsageError, match=said):
        Library().study(str(study_of(tmp_path, Path(sys.executable))))


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("spaces.Discrete(2)", "spaces.MultiDiscrete([2, 2])"),
            "expected discrete actions, got MultiDiscrete ones of",
        ),
        (
            ("Box(0, 1, (length,), np.float32)", "Dict({'a': gymnasium.spaces.Box(0, 1, (length,), np.float32)})"),
            "got Dict of",
        ),
        (("Box(0, 1, (length,), np.float32)", "Discrete(length)"), "got Discrete of"),
        (
            ("Box(0, 1, (length,), np.float32)", "Tuple([gymnasium.spaces.Box(0, 1, (length,), np.float32)])"),
            "got Tuple of",
        ),
        (("Box(0, 1, (length,), np.float32)", "Box(0, 1, (length, 2), np.float32)"), "got float32 of shape (6, 2) of"),
    ],
)
def test_spaces_that_an_algorithm_cannot_take_are_named(
    tmp_path: Path, packages: Path, change: tuple[str, str], said: str
) -> None:
    code = CODE.replace(*change).replace("int(action)", "int(np.ravel(action)[0])")
    shown = {"Dict": "{'a': S}", "Tuple": "(S,)", "Discrete": "self.place", "(length, 2)": "np.stack([S, S], 1)"}
    form = next((form for name, form in shown.items() if name in change[1] and "Multi" not in change[1]), "S")
    row = "np.eye(self.length, dtype=np.float32)[self.place]"
    (packages / "corridor.py").write_text(code.replace(f"return {row}", f"return {form.replace('S', row)}"))
    with pytest.raises(UsageError) as refused:
        Library().study(str(study_of(tmp_path, Path(sys.executable))))
    assert f"{said} corridor:Corridor-v0" in str(refused.value)


@pytest.mark.usefixtures("importable")
def test_an_environment_with_a_needed_option_that_is_not_there_in_jax(tmp_path: Path, packages: Path) -> None:
    code = CODE[: CODE.index("def jax_world")].replace("length=8", "length")
    (packages / "corridor.py").write_text(code)
    with pytest.raises(UsageError, match="the module corridor has no `jax_world`"):
        Library().study(str(study_of(tmp_path, Path(sys.executable))))


def test_an_environment_of_hpcrl_by_its_module_may_be_in_jax() -> None:
    assert not lacks_jax("hpcrl.rl.envs.doors:Doors-v0", ())
