from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcrl.errors import HpcrlError, SpecError, UsageError
from hpcrl.formats.finding import find_cell
from hpcrl.formats.plan import STAGES, read_cells, read_plan
from hpcrl.plan.diff import diff_plans
from hpcrl.plan.directory import write_plan
from hpcrl.plan.make import UserChoices, make_plan
from hpcrl.spec.library import Library
from tests.builders import cells_of, command_study, dqn_study, planned, write_yaml

GOLDEN = Path(__file__).parent / "golden"
CHOICES = UserChoices(account="lab")


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("cluster", ["sol", "cirrus", "workstation"])
def test_the_same_inputs_give_the_same_bytes(tmp_path: Path, cluster: str) -> None:
    first = files_below(planned(tmp_path / "a", "sol-dqn" if cluster != "workstation" else "quickstart", cluster))
    second = files_below(
        planned(tmp_path / "elsewhere" / "b", "sol-dqn" if cluster != "workstation" else "quickstart", cluster)
    )
    assert first == second


def test_what_is_measured_is_part_of_a_plan(tmp_path: Path) -> None:
    """Else records of two plans would be taken for copies of each other."""
    plans = [
        read_plan(planned(tmp_path / "a", dqn_study())),
        read_plan(planned(tmp_path / "b", dqn_study(), precise_phases=True)),
        read_plan(planned(tmp_path / "c", dqn_study(sample_interval=0.5))),
    ]
    assert len({plan.id for plan in plans}) == 3
    assert [plan.study.precise_phases for plan in plans] == [False, True, False]


def test_sol_dqn_on_sol() -> None:
    plan = make_plan(Library(), "sol", None, CHOICES).plan
    assert plan.study.name == "sol-dqn"
    # Four frameworks on a core, a GPU and two of each: eager with five seeds, lazy with ten; fused JAX on one of each.
    assert plan.totals["cells"] == 4 * 4 * 5 + 4 * 4 * 10 + 2 * 10
    assert plan.totals["unplaced"] == 0
    # 140 cells of one core and 120 of two, two hours each; 70 cells of one GPU and 60 of two.
    assert plan.totals["core_hours"] == 760
    assert plan.totals["gpu_hours"] == 380
    # (cores + GiB/4 + 25 per A100) x hours: 70 x (1 + 2) + 60 x (2 + 4) + 70 x (1 + 2 + 25) + 60 x (2 + 4 + 50), twice.
    assert (plan.totals["billed"], plan.totals["billing_unit"]) == (11780, "CHE")
    assert {each.key.rpartition("-")[0] for each in plan.environments} == {
        f"{framework}-{flavour}{horovod}"
        for framework in ("torch", "jax", "tensorflow", "mxnet")
        for flavour in ("cpu", "cuda")
        for horovod in ("", "-horovod")
    }


def test_cirrus_has_no_place_for_gpu_cells() -> None:
    plan = make_plan(Library(), "cirrus", "sol-dqn", CHOICES).plan
    assert plan.totals["cells"] == 130
    assert plan.totals["unplaced"] == 130
    assert {each.cells for each in plan.unplaced} == {5, 10}


@pytest.mark.parametrize(
    ("cluster", "script", "by"),
    [
        ("sol", "sol-dqn-torch-cuda-horovod-1", None),
        ("sol", "sol-dqn-jax-cpu-1", None),
        ("sol", "sol-dqn-collect", None),
        ("sol", "sol-dqn-feed", None),
        ("cirrus", "sol-dqn-notify", None),
        ("cirrus", "sol-dqn-torch-cpu-1", None),
        ("cirrus-legacy", "legacy-numpy-cuda-1", None),
        ("cirrus", "sol-dqn-torch-cpu-1", 3),
    ],
)
def test_golden_scripts(tmp_path: Path, cluster: str, script: str, by: int | None) -> None:
    """Scripts as an admin reviews them. To accept a change: HPCRL_ACCEPT=1 make test."""
    study = "sol-dqn"
    library = Library()
    if cluster == "cirrus-legacy":
        pins = {
            "name": "numpy",
            "title": "N",
            "python": "3.11",
            "flavours": {"cuda": {"packages": ["numpy==2.4.6", "psutil==7.2.2"]}},
        }
        write_yaml(tmp_path / "envs" / "numpy.yaml", pins)
        study = str(
            write_yaml(
                tmp_path / "s.yaml", command_study(["x"], name="legacy", resources={"gpus": 2, "time": "01:00:00"})
            )
        )
        library = Library([tmp_path])
    choices = UserChoices(account="lab", allow_retired=True, cells_per_task=by)
    text = str(make_plan(library, cluster, study, choices).files[f"scripts/{script}.sbatch"])
    # The hash changes with every pin; the script around it is what is reviewed.
    text = re.sub(r"(-(?:cpu|cuda|horovod))-[0-9a-f]{10}", r"\1-HASH", text)
    golden = GOLDEN / f"{cluster}-{script}{f'-by-{by}' if by else ''}.sh"
    if os.environ.get("HPCRL_ACCEPT"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), f"{golden} differs; accept it with HPCRL_ACCEPT=1 make test"


def check_scripts(directory: Path) -> None:
    scripts = sorted(map(str, (directory / "scripts").iterdir()))
    assert scripts
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck") or os.environ.get("CI") == "true":
        # SC1091: a site's activate script is not here to be read.
        done = subprocess.run(["shellcheck", "-e", "SC1091", *scripts], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("cluster", ["sol", "cirrus"])
@pytest.mark.parametrize("cells_per_task", [1, 2])
def test_scripts_pass_bash_and_shellcheck(tmp_path: Path, cluster: str, cells_per_task: int) -> None:
    check_scripts(planned(tmp_path / "p", "sol-dqn", cluster, cells_per_task=cells_per_task))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(root=st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=30))
def test_any_environment_directory_survives_the_script(tmp_path_factory: pytest.TempPathFactory, root: str) -> None:
    base = tmp_path_factory.mktemp("p")
    root = "/r/" + root.replace("$", "")
    directory = planned(base / "plan", command_study(["true"]), "sol", environments_root=root)
    check_scripts(directory)
    script = directory / "scripts" / "mine-numpy-cpu-1.sbatch"
    lines = [
        line for line in script.read_text().split("\n") if "HPCRL_ENV=" in line or line.startswith("environments=")
    ]
    done = subprocess.run(
        ["bash", "-c", "\n".join([*lines, 'printf %s "$HPCRL_ENV"'])], capture_output=True, check=True, env={}
    )
    assert done.stdout.decode().rpartition("/")[0] == root


def test_arrays_are_split_at_the_site_s_limit(tmp_path: Path) -> None:
    profile = write_yaml(tmp_path / "small.yaml", {"extends": "sol", "scheduler": {"max_array_size": 4}})
    study = write_yaml(tmp_path / "s.yaml", command_study(["true"], seeds=10))
    files = make_plan(Library(), str(profile), str(study), CHOICES)
    assert [(job.first, job.count) for job in files.plan.cell_jobs()] == [(0, 4), (4, 4), (8, 2)]
    assert "#SBATCH --array=0-3\n" in str(files.files[files.plan.jobs[0].script])


def test_what_a_site_forbids_stays_out_of_its_scripts(tmp_path: Path) -> None:
    profile = write_yaml(tmp_path / "odd.yaml", {"extends": "sol", "script": {"+lines": ["conda init bash"]}})
    with pytest.raises(UsageError, match="would run `conda init`, which Arizona State University, Sol forbids"):
        make_plan(Library(), str(profile), None, CHOICES)


def test_a_retired_cluster() -> None:
    with pytest.raises(UsageError, match="was switched off on 2025-12-08; its successor is cirrus"):
        make_plan(Library(), "cirrus-legacy", None, CHOICES)


def test_a_plan_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_study(["true"]))
    files = make_plan(Library(), "workstation", str(tmp_path / "p-study/study.yaml"), CHOICES)
    assert write_plan(files, plan) is False
    with pytest.raises(UsageError, match="contains another plan"):
        planned(tmp_path / "p", command_study(["false"]))
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "x").touch()
    with pytest.raises(UsageError, match="exists and is not a plan directory"):
        write_plan(files, tmp_path / "busy")
    (tmp_path / "file").touch()
    with pytest.raises(HpcrlError, match="cannot be"):
        write_plan(files, tmp_path / "file" / "p")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busy", "file", "p", "p-study"]


def test_plans_of_another_version_or_damaged(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_study(["true"]))
    manifest = plan / "plan.json"
    content = json.loads(manifest.read_text())
    for text, expected in [
        (json.dumps(content | {"version": 99}), r"plan format 99 \(hpcrl .*\), but this hpcrl reads format 2"),
        (json.dumps(content | {"format": "x"}), "is not a plan's manifest"),
        ("{", "is damaged"),
        (json.dumps({key: content[key] for key in content if key != "jobs"}), "is damaged"),
        (
            json.dumps(content | {"study": content["study"] | {"name": "../x"}}),
            r"is damaged \('\.\./x' is not a plain name\)",
        ),
        (
            json.dumps(content | {"cluster": content["cluster"] | {"name": "/tmp/x"}}),
            r"is damaged \('/tmp/x' is not a plain name\)",
        ),
    ]:
        manifest.write_text(text)
        with pytest.raises(UsageError, match=expected):
            read_plan(plan)
    with pytest.raises(UsageError, match="is not a plan directory"):
        read_plan(tmp_path)
    manifest.write_text(json.dumps(content))
    (plan / "cells.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=r"cells\.jsonl:1: is damaged"):
        list(read_cells(plan))


def test_cells_are_found_by_the_beginning_of_their_id(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_study(["true"], seeds=3))
    wanted = cells_of(plan)[2]["id"]
    cell, job, task = find_cell(plan, read_plan(plan), wanted[:8])
    assert (cell.id, job.count, task) == (wanted, 3, 2)
    with pytest.raises(UsageError, match="no cell of"):
        find_cell(plan, read_plan(plan), "zzz")


def test_cell_ids_do_not_depend_on_the_cluster(tmp_path: Path) -> None:
    study: dict[str, Any] = command_study(["true"], seeds=2)
    ids = [[each["id"] for each in cells_of(planned(tmp_path / name, study, name))] for name in ("sol", "workstation")]
    assert ids[0] == ids[1]
    other = cells_of(planned(tmp_path / "other", command_study(["false"], seeds=2), "sol"))
    assert not {each["id"] for each in other} & set(ids[0])


def ids(tmp_path: Path, name: str, **changes: Any) -> list[str]:
    return [each["id"] for each in cells_of(planned(tmp_path / name, command_study(["true"], **changes)))]


def test_cell_ids_say_what_is_computed(tmp_path: Path) -> None:
    first = ids(tmp_path, "a", seeds=2)
    raised = {"memory": "2G", "time": "02:00:00"}
    assert ids(tmp_path, "b", seeds=2, resources=raised) == first
    assert ids(tmp_path, "c", seeds=2, workload={"command": ["true"], "on_warning": "USR2"}) == first
    assert not set(ids(tmp_path, "d", seeds=2, resources=raised | {"cpus": 2})) & set(first)
    assert not set(ids(tmp_path, "e", seeds=2, workload={"command": ["true"], "env": {"A": "1"}})) & set(first)
    assert not set(ids(tmp_path, "f", seeds=2, environment="torch")) & set(first)


def test_cells_of_a_job_are_in_blocks_by_seed(tmp_path: Path) -> None:
    """A slow hour of a machine then slows all that is compared, whatever the order of the seeds and however jobs are divided."""
    plan = planned(tmp_path / "p", command_study(["true"], axes={"a": [1, 2], "cpus": [1, 2]}, seeds=[7, 3]))
    order = [(cell["resources"]["cpus"], cell["config"]["seed"], cell["config"]["a"]) for cell in cells_of(plan)]
    assert order == [(cpus, seed, a) for cpus in (1, 2) for seed in (7, 3) for a in (1, 2)]


def test_time_and_memory_as_axes_are_part_of_an_id(tmp_path: Path) -> None:
    axes = {"variant": ["a"], "memory": ["1G", "2G"], "time": ["00:10:00", "00:20:00"]}
    assert len(set(ids(tmp_path, "a", axes=axes))) == 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"axes": {"size": [{"variant": "a", "memory": "1G"}, {"variant": "a", "memory": "2G"}]}},
            r"study mine: two cells \(a seed 1\) differ only in memory, .*: make memory an axis, or",
        ),
        ({"include": [{"variant": "a", "time": "01:00:00", "memory": "3G"}]}, "differ only in time and memory"),
        ({"include": [{"variant": "a"}]}, r"the cell \(a seed 1\) occurs twice: remove it from `include`"),
    ],
)
def test_two_cells_with_one_id_are_refused(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        planned(tmp_path / "p", command_study(["true"], **changes))


@pytest.mark.parametrize(
    ("taken", "signal"), [(None, None), ("none", None), ("TERM", "TERM@120"), ("USR2", "USR2@120")]
)
def test_a_command_is_warned_by_the_signal_that_it_takes(tmp_path: Path, taken: str | None, signal: str | None) -> None:
    study = command_study(["true"], resources={"time": "01:00:00"})
    if taken:
        study["workload"]["on_warning"] = taken
    text = (planned(tmp_path / "p", study, "sol") / "scripts" / "mine-numpy-cpu-1.sbatch").read_text()
    assert re.findall(r"^#SBATCH --signal=(.*)$", text, re.MULTILINE) == ([signal] if signal else [])


def test_training_is_always_warned(tmp_path: Path) -> None:
    text = (planned(tmp_path / "p", dqn_study(), "sol") / "scripts" / "short-numpy-cpu-1.sbatch").read_text()
    assert "#SBATCH --signal=USR2@120\n" in text


def test_every_slurm_plan_can_be_fed_and_can_notify(tmp_path: Path) -> None:
    stages = {
        name: [job.stage for job in read_plan(planned(tmp_path / name, command_study(["true"]), name)).jobs]
        for name in ("sol", "workstation")
    }
    assert stages == {"sol": ["cells", "feed", "notify"], "workstation": ["cells", "notify"]}
    staged = read_plan(planned(tmp_path / "staged", command_study(["true"], chain="staged"), "sol"))
    assert [job.stage for job in staged.jobs] == list(STAGES)
    (fed, told) = (
        (tmp_path / "sol" / "scripts" / f"mine-{stage}.sbatch").read_text().splitlines()[-1]
        for stage in ("feed", "notify")
    )
    assert (fed, told) == ('exec "$hpcrl" submit . --fed', 'exec "$hpcrl" notify . --chain')


def test_where_feed_and_notify_have_no_place_a_plan_goes_without(tmp_path: Path) -> None:
    gpus_only = {"htc": {"gpu_jobs_only": True}, "public": {"gpu_jobs_only": True}, "highmem": {"gpu_jobs_only": True}}
    profile = write_yaml(tmp_path / "g.yaml", {"extends": "sol", "partitions": gpus_only})
    study = write_yaml(tmp_path / "s.yaml", command_study(["true"], resources={"gpus": 1}, environment="torch"))
    assert [job.stage for job in make_plan(Library(), str(profile), str(study), CHOICES).plan.jobs] == ["cells"]


def test_a_retry_may_grow_as_far_as_the_site_goes(tmp_path: Path) -> None:
    sol = read_plan(planned(tmp_path / "a", command_study(["true"], resources={"cpus": 4}), "sol")).jobs[0]
    assert (sol.max_time, sol.max_memory) == (7 * 86400, 512 * 1024)
    # On cirrus memory comes with cores: 288 of them with 2666 MiB each; its QOS stops two days before the partition.
    cirrus = read_plan(planned(tmp_path / "b", command_study(["true"]), "cirrus")).jobs[0]
    assert (cirrus.max_time, cirrus.max_memory) == (48 * 3600, 288 * 2666)
    ranks = command_study(["true"], resources={"nodes": 2, "tasks": 4, "parallelism": "native"})
    assert read_plan(planned(tmp_path / "c", ranks, "sol")).jobs[0].max_memory == 256 * 1024


def test_diff(tmp_path: Path) -> None:
    first = planned(tmp_path / "a", command_study(["true"], seeds=2), "sol")
    second = planned(tmp_path / "b", command_study(["true"], seeds=3), "sol")
    assert not diff_plans(first, first)
    found = diff_plans(first, second)
    assert (len(found.only_in_first), len(found.only_in_second)) == (0, 1)
    assert any(line == "+#SBATCH --array=0-2" for line in found.scripts)
    script = next((second / "scripts").iterdir())
    script.unlink()
    assert f"only in {first}: scripts/{script.name}" in diff_plans(first, second).scripts


def test_secrets_in_a_profile_are_refused(tmp_path: Path) -> None:
    profile = write_yaml(tmp_path / "leaky.yaml", {"extends": "sol", "script": {"+lines": ["export MY_TOKEN=abc"]}})
    with pytest.raises(UsageError, match="would write MY_TOKEN into a file"):
        make_plan(Library(), str(profile), None, CHOICES)


def test_a_control_character_in_a_directive(tmp_path: Path) -> None:
    profile = write_yaml(tmp_path / "odd.yaml", {"extends": "sol", "script": {"directives": {"comment": "a\nb"}}})
    with pytest.raises(SpecError, match="control character"):
        make_plan(Library(), str(profile), None, CHOICES)


@pytest.mark.parametrize(
    ("environment", "gamma", "told"),
    [
        ("CartPole-v1", 0.99, None),
        ("CartPole-v1", 0.995, "can be from 0 to 200 at gamma 0.995"),
        (
            "MountainCar-v0",
            0.99,
            "support from 0 to 100 does not hold the discounted returns, which can be from -100 to 0",
        ),
        ("Acrobot-v1", 1.0, "can be from -70 to 0 at gamma 1"),
    ],
)
def test_a_support_that_cannot_hold_the_returns_is_told(
    tmp_path: Path, environment: str, gamma: float, told: str | None
) -> None:
    study = dqn_study(name="rb")
    study["workload"] = {"algorithm": "rainbow", "environment": environment, "hyperparameters": {"gamma": gamma}}
    study["workload"]["max_episode_steps"] = 70
    directory = planned(tmp_path / "plan", str(write_yaml(tmp_path / "rb.yaml", study)), "workstation")
    notes = [note for note in read_plan(directory).totals["notes"] if "support" in note]
    assert len(notes) == (told is not None)
    assert told is None or told in notes[0]


@pytest.mark.parametrize(
    ("environment", "axes", "told"),
    [
        ("CartPole-v1", {}, "from 0 to 500 at gamma 1"),
        ("CartPole-v0", {}, "from 0 to 200 at gamma 1"),
        ("CartPole-v1", {"max_episode_steps": [90, 120]}, "from 0 to 120 at gamma 1"),
    ],
)
def test_without_discounting_returns_are_as_long_as_the_environment_s_episodes(
    tmp_path: Path, environment: str, axes: dict[str, Any], told: str
) -> None:
    study = dqn_study(axes={"framework": ["numpy"], **axes})
    study["workload"] = {"algorithm": "rainbow", "environment": environment, "hyperparameters": {"gamma": 1.0}}
    directory = planned(tmp_path / "plan", study, "workstation")
    (note,) = [note for note in read_plan(directory).totals["notes"] if "support" in note]
    assert told in note
