"""Commands and training in environments that stand already, run for real by the scripts of a plan."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrl import load
from hpcrl.collect.reading import RecordData, read_record
from hpcrl.environments.standing import check_standing, check_training
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.plan import Plan, read_plan
from hpcrl.surroundings import Surroundings, enter, read_surroundings
from tests.builders import ENVIRONMENTS, built_environment, cells_of, command_study, dqn_study, planned, run_task
from tests.collect.gathering import gathered
from tests.conftest import Shown

Call = Callable[..., Shown]
MODULES = Path("/usr/share/modules/init/bash")
# What a command sees, as JSON in the file that its first argument names.
SEEN = """\
import json, os, sys
names = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LOADEDMODULES", "GREETING", "HPCRL_CELL_DIR", "PYTHONPATH")
seen = {"argv": sys.argv[2:], "cwd": os.getcwd(), "prefix": sys.prefix, **{name: os.environ.get(name) for name in names}}
open(sys.argv[1], "w").write(json.dumps(seen))
import hpcrl
hpcrl.log(loss=1)
"""
# A stand-in for apptainer: it is none, and runs the command on this machine. It writes down what it was given.
STAND_IN = """\
#!/usr/bin/env python3
# A stand-in for apptainer (tests/run/test_surroundings.py).
import json, os, sys
words = sys.argv[1:]
assert words.pop(0) == "exec"
options = {"flags": [], "bind": [], "mount": [], "pwd": None, "env": []}
while words[0].startswith("--"):
    word = words.pop(0)
    if word == "--nv":
        options["flags"].append(word)
    else:
        value = words.pop(0)
        options[word[2:]] = value if word == "--pwd" else [*options[word[2:]], value]
image = words.pop(0)
json.dump({"image": image, "command": words, **options}, open(os.environ["STAND_IN_SAYS"], "w"))
os.chdir(options["pwd"])
os.execvp(words[0], words)
"""


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    (tmp_path / "seen.py").write_text(SEEN)
    return tmp_path / "seen.json"


def made(tmp_path: Path, command: list[str], environment: Any, **changes: Any) -> tuple[Path, Plan]:
    plan = planned(tmp_path / "p", command_study(command, environment=environment, **changes))
    return plan, read_plan(plan)


def script(plan: Path, tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the plan's script with the interpreter of the tests as hpcrl's own environment."""
    opened = read_plan(plan)
    (job,) = opened.cell_jobs()
    root = tmp_path / "environments"
    if job.environment and opened.environments:
        place = root / job.environment
        (place / "bin").mkdir(parents=True, exist_ok=True)
        (place / "hpcrl-environment.json").write_text(json.dumps({"key": job.environment}))
        (place / "bin/python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (place / "bin/python").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PYTHONPATH"))}
    return subprocess.run(
        ["bash", job.script],
        cwd=plan,
        env=environment | {"HPCRL_ENVIRONMENTS": str(root)} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def only_record(plan: Path) -> RecordData:
    (path,) = (plan / "records").iterdir()
    return read_record(path)


def ended(plan: Path) -> tuple[str, str | None]:
    footer = only_record(plan).footer
    assert footer is not None
    return footer["outcome"], footer.get("reason")


def recorded(plan: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(only_record(plan).header["code"]["surroundings"])
    return facts


def venv(place: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    return place


def test_a_command_in_a_venv_of_ones_own(tmp_path: Path, seen: Path) -> None:
    place = venv(tmp_path / "my venv")
    command = ["python", str(tmp_path / "seen.py"), str(seen), "a b"]
    plan, opened = made(tmp_path, command, {"path": str(place)})
    done = script(plan, tmp_path, PYTHONPATH="/mine", VIRTUAL_ENV="/other")
    assert done.returncode == 0, done.stderr
    told = json.loads(seen.read_text())
    assert told["prefix"] == told["VIRTUAL_ENV"] == str(place)
    assert told["PATH"].startswith(f"{place}/bin:")
    assert f"{tmp_path}/environments" not in told["PATH"]
    assert told["PYTHONPATH"].endswith("worker.zip:/mine")
    assert told["argv"] == ["a b"]
    assert only_record(plan).values[0]["values"] == {"loss": 1.0}
    assert recorded(plan) == {"kind": "path", "path": str(place)}
    # hpcrl's own NumPy is not the command's.
    assert only_record(plan).header["software"] == {"python": f"3.{sys.version_info[1]}"}
    (job,) = opened.cell_jobs()
    assert job.environment is not None
    assert job.environment.startswith("numpy-cpu-")
    assert [each.key for each in opened.environments] == [job.environment]
    (cell,) = cells_of(plan)
    assert cell["environment"].startswith("path-")


def test_a_command_in_a_conda_environment(tmp_path: Path, seen: Path) -> None:
    place = tmp_path / "conda"
    (place / "conda-meta").mkdir(parents=True)
    (place / "bin").mkdir()
    (place / "bin/mine").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (place / "bin/mine").chmod(0o755)
    plan, _ = made(tmp_path, ["mine", str(tmp_path / "seen.py"), str(seen)], {"path": str(place)})
    assert script(plan, tmp_path).returncode == 0
    told = json.loads(seen.read_text())
    assert told["CONDA_PREFIX"] == str(place)
    assert told["VIRTUAL_ENV"] is None


def test_a_command_in_the_shell_as_it_is(tmp_path: Path, seen: Path) -> None:
    plan, _ = made(tmp_path, [sys.executable, str(tmp_path / "seen.py"), str(seen)], "none")
    path = f"{tmp_path}/first:{os.environ['PATH']}"
    assert script(plan, tmp_path, PATH=path, VIRTUAL_ENV="/other").returncode == 0
    told = json.loads(seen.read_text())
    assert told["PATH"] == path
    assert told["VIRTUAL_ENV"] == "/other"
    assert recorded(plan) == {"kind": "none"}
    assert only_record(plan).header["software"] == {}
    gathered(tmp_path / "dataset", plan)
    (row,) = load(tmp_path / "dataset").to_dict("records")
    assert row["surroundings"] == '{"kind": "none"}'
    assert row["environment"].startswith("none-")


@pytest.mark.skipif(not MODULES.exists(), reason="environment-modules is not installed")
def test_a_command_with_modules(tmp_path: Path, seen: Path) -> None:
    for name, greeting in (("hello/1.0", "first"), ("hello/2.0", "it's a $second")):
        file = tmp_path / "modulefiles" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#%Module\nsetenv GREETING {{{greeting}}}\nprepend-path PATH /modules/{name}\n")
    (tmp_path / "modulefiles/other").write_text("#%Module\nprepend-path PATH /modules/other\n")
    command = [sys.executable, str(tmp_path / "seen.py"), str(seen), "$HOME"]
    plan, _ = made(tmp_path, command, {"modules": ["hello/2.0", "other"]})
    there = {"MODULEPATH": str(tmp_path / "modulefiles")}
    done = script(plan, tmp_path, **there)
    assert done.returncode == 0, done.stderr
    told = json.loads(seen.read_text())
    assert told["GREETING"] == "it's a $second"
    assert told["LOADEDMODULES"] == "hello/2.0:other"
    assert told["PATH"].startswith("/modules/other:/modules/hello/2.0:")
    assert told["argv"] == ["$HOME"]
    assert recorded(plan) == {"kind": "modules", "modules": ["hello/2.0", "other"]}
    for record in (plan / "records").iterdir():
        record.unlink()
    (tmp_path / "modulefiles/other").unlink()
    assert script(plan, tmp_path, **there).returncode == 1
    outcome, reason = ended(plan)
    assert outcome == "failed"
    assert "modules hello/2.0, other cannot be loaded on" in str(reason)
    assert "other" in str(reason)
    with pytest.raises(HpcrlError, match="cannot be loaded"):
        check_standing(Surroundings(modules=("no-such",)))


def test_without_the_command_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrl.surroundings._LOAD", 'echo "there is no command module" >&2; exit 1')
    with pytest.raises(UsageError, match=r"modules gcc/12 cannot be loaded on .*: there is no command module"):
        enter(Surroundings(modules=("gcc/12",)), ["true"], os.environ, tmp_path)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No apptainer is to be had from Debian or PyPI: a script of that name stands for it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/apptainer").write_text(STAND_IN)
    (tmp_path / "bin/apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_SAYS", str(tmp_path / "said.json"))
    return tmp_path / "said.json"


@pytest.mark.parametrize(
    "name", ["image.sif", "it's an image.sif", 'a "b" $(c).sif', "a\nb.sif", "-x.sif", "a,b:c.sif"]
)
def test_a_command_in_a_container(tmp_path: Path, seen: Path, stand_in: Path, name: str) -> None:
    image = tmp_path / name
    image.write_bytes(b"not really an image")
    command = [sys.executable, str(tmp_path / "seen.py"), str(seen), "a\nb"]
    plan, _ = made(tmp_path, command, {"container": str(image), "options": ["--env", "A=b c"]})
    done = script(plan, tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(stand_in.read_text())
    assert told["image"] == str(image)
    assert told["command"] == command
    assert told["flags"] == []
    assert told["env"] == ["A=b c"]
    start = str(tmp_path / "p-study")
    assert told["pwd"] == start
    assert {start, str(plan)} <= set(told["bind"])
    assert only_record(plan).values[0]["values"] == {"loss": 1.0}
    facts = recorded(plan)
    assert facts["container"] == str(image)
    assert facts["size"] == image.stat().st_size
    assert facts["sha256"] == hashlib.sha256(image.read_bytes()).hexdigest()


def test_a_container_sees_gpus_where_the_cell_has_some_and_odd_directories(tmp_path: Path, stand_in: Path) -> None:
    image = tmp_path / "image.sif"
    image.touch()
    odd = tmp_path / 'a,b:"c"'
    how = Surroundings(container=str(image), options=("--cleanenv",))
    words, _ = enter(how, ["nvidia-smi"], os.environ, odd, [tmp_path, odd], gpus=True)
    assert words[1:3] == ["exec", "--nv"]
    mount = f'type=bind,"source={tmp_path}/a,b:""c""","destination={tmp_path}/a,b:""c"""'
    assert words[3:] == [
        "--mount", mount, "--bind", str(tmp_path), "--pwd", str(odd), "--cleanenv", str(image), "nvidia-smi",
    ]  # fmt: skip
    address = Surroundings(container="docker://debian:12")
    assert enter(address, ["true"], os.environ, tmp_path)[0][-2:] == ["docker://debian:12", "true"]


def test_no_program_for_containers(tmp_path: Path) -> None:
    (tmp_path / "image.sif").touch()
    with pytest.raises(UsageError, match="neither apptainer nor singularity found on"):
        enter(Surroundings(container=str(tmp_path / "image.sif")), ["true"], {"PATH": str(tmp_path)}, tmp_path)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"path": "/no/such venv"}, "environment: /no/such venv: no such directory on "),
        ({"container": "/no/such.sif"}, "environment: /no/such.sif: no such container image on "),
        ({"path": "$HPCRL_NOT_SET/venv"}, "environment: $HPCRL_NOT_SET/venv: $HPCRL_NOT_SET is not set on "),
    ],
)
def test_what_is_missing_is_a_note_of_the_plan_and_a_failure_of_the_run(
    tmp_path: Path, environment: dict[str, str], expected: str, hpcrl: Call
) -> None:
    plan, opened = made(tmp_path, ["true"], environment)
    (note,) = [each for each in opened.totals["notes"] if "environment" in each]
    assert expected in note
    assert note.endswith(": the nodes must have it")
    assert run_task(plan, opened.cell_jobs()[0].name).returncode == 1
    outcome, reason = ended(plan)
    assert outcome == "failed"
    assert expected in str(reason)
    assert "\n" not in str(reason)
    found = hpcrl("env", "check", "--plan", plan)
    assert found.code == 1
    assert expected in found.err


def test_places_are_relative_to_the_study_and_variables_are_the_cluster_s(tmp_path: Path) -> None:
    _, opened = made(tmp_path / "a", ["true"], {"path": "../venv"})
    assert opened.study.surroundings.path == str(tmp_path / "a/venv")
    for number, (text, expected) in enumerate({"~/venv": "$HOME/venv", "$SCRATCH/x.sif": "$SCRATCH/x.sif"}.items()):
        _, opened = made(tmp_path / str(number), ["true"], {"container": text})
        assert opened.study.surroundings.container == expected


def test_the_environment_is_part_of_a_cell_s_id(tmp_path: Path) -> None:
    environments: list[Any] = [
        None, "none", {"path": "/a"}, {"path": "/b"}, {"modules": ["a"]}, {"modules": ["a", "b"]},
        {"modules": ["b", "a"]}, {"container": "/a"}, {"container": "/a", "options": ["--cleanenv"]},
    ]  # fmt: skip
    ids = []
    for number, each in enumerate(environments):
        plan = planned(tmp_path / str(number), command_study(["true"], **({"environment": each} if each else {})))
        ids.append(cells_of(plan)[0]["id"])
    assert len(set(ids)) == len(ids)


def test_cells_with_gpus_need_no_flavour_for_them(tmp_path: Path) -> None:
    study = command_study(["true"], environment={"path": "/venv"})
    study["resources"] |= {"gpus": 1, "cpus": 1}
    plan = planned(tmp_path / "p", study, cluster="sol")
    (job,) = read_plan(plan).cell_jobs()
    assert job.resources["gpus"] == 1
    assert str(job.environment).startswith("numpy-cpu-")
    with pytest.raises(UsageError, match="no cuda flavour"):
        planned(tmp_path / "q", {**study, "environment": "numpy"}, cluster="sol")


def own_with_packages(place: Path, *left_out: str) -> Path:
    """A venv that sees the packages of the tests, but those left out."""
    venv(place)
    packages = next((place / "lib").glob("python3*")) / "site-packages"
    import numpy

    for each in Path(numpy.__file__).parents[1].iterdir():
        if not any(
            each.name.lower().startswith(name) for name in (*left_out, "hpcrl", "_hpcrl", "__editable", "_editable")
        ):
            (packages / each.name).symlink_to(each)
    return place


def test_training_in_a_venv_of_ones_own(tmp_path: Path) -> None:
    place = own_with_packages(tmp_path / "venv")
    study = dqn_study(environment={"path": str(place)})
    study["workload"]["hyperparameters"]["total_steps"] = 500
    plan = planned(tmp_path / "p", study)
    opened = read_plan(plan)
    assert opened.environments == []
    assert "venv" in (plan / opened.cell_jobs()[0].script).read_text()
    done = script(plan, tmp_path)
    assert done.returncode == 0, done.stderr
    assert ended(plan) == ("completed", None)
    assert recorded(plan) == {"kind": "path", "path": str(place)}
    assert str(place) in check_standing(Surroundings(path=str(place)), ["numpy"])
    (record,) = (plan / "records").iterdir()
    record.unlink()
    shutil.rmtree(plan / "attempts", ignore_errors=True)
    shutil.rmtree(place)
    done = script(plan, tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith(f"{place}: has no bin/python on ")


def test_a_venv_without_psutil_says_so(tmp_path: Path, hpcrl: Call) -> None:
    place = own_with_packages(tmp_path / "venv", "psutil", "gymnasium")
    plan = planned(tmp_path / "p", dqn_study(environment={"path": str(place)}))
    done = script(plan, tmp_path)
    assert done.returncode == 3
    assert done.stderr == (
        f"hpcrl: {place}: has no psutil and no gymnasium, which the cell needs: install it there, or name another environment\n"
    )
    with pytest.raises(HpcrlError, match="has no psutil and no gymnasium and no torch"):
        check_training(place, ["torch"])
    found = hpcrl("run", plan, "--cell", cells_of(plan)[0]["id"])
    assert found.code == 1
    assert "has no psutil" in found.err


def test_a_python_that_is_too_old(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text("#!/bin/sh\necho 'it has Python 3.6' >&2\nexit 1\n")
    (tmp_path / "bin/python").chmod(0o755)
    with pytest.raises(HpcrlError, match=r"expected Python 3\.11 or newer: it has Python 3\.6"):
        check_training(tmp_path)
    plan = planned(tmp_path / "p", dqn_study(environment={"path": str(tmp_path)}))
    done = script(plan, tmp_path)
    assert done.returncode == 3
    assert "hpcrl needs Python 3.11 or newer there" in done.stderr


@pytest.mark.parametrize("value", [3, ["a"], {"path": 3}, {"modules": "gcc"}, {"options": [1], "container": "x"}])
def test_a_plan_of_a_stranger_with_another_type(value: Any) -> None:
    with pytest.raises(UsageError, match="make the plan again"):
        read_surroundings(value)


def test_the_files_of_a_program_are_read_with_the_libraries_of_its_own_environment(tmp_path: Path) -> None:
    """hpcrl's own environment has no TensorBoard; the tests' own stands for the user's."""
    built_environment("numpy")
    write = "from tensorboard.summary import DirectoryOutput, Writer\nw = Writer(DirectoryOutput('runs'))\nw.add_scalar('loss', 0.5, 7)\nw.close()"
    study = command_study(["python", "-c", write], environment={"path": sys.prefix}, score="loss")
    study["workload"] |= {"start_in": "cell", "metrics": {"tensorboard": "runs"}}
    plan = planned(tmp_path / "p", study)
    done = script(plan, tmp_path, HPCRL_ENVIRONMENTS=str(ENVIRONMENTS))
    assert done.returncode == 0, done.stderr
    assert only_record(plan).values[0]["values"] == {"loss": 0.5}
