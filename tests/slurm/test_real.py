"""Against a real Slurm whose partitions, QOS, gres names and limits come from the profiles."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.collect.reading import read_record
from hpcrl.environments.build import MARKER
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import read_plan
from hpcrl.submit import submission
from hpcrl.submit.selection import Budget, Choice
from hpcrl.submit.status import cancel, plan_status
from tests.builders import (
    ENVIRONMENTS,
    built_environment,
    cells_of,
    command_study,
    dqn_study,
    planned,
    planned_script,
    write_yaml,
)
from tests.slurm.conftest import Cluster

FAULTY = Path(__file__).parents[1] / "run/faulty.py"
pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("numpy_environment")]


def test_every_script_of_sol_dqn_is_taken(sol: Cluster, tmp_path: Path) -> None:
    plan = sol.plan(tmp_path / "p", "sol-dqn")
    objections = submission.test_only(plan, sol.slurm)
    assert len(objections) == 20  # no `notify`, which the study does not ask for
    assert set(objections.values()) == {None}


def test_every_script_for_cirrus_is_taken(cirrus_cluster: Cluster, tmp_path: Path) -> None:
    plan = cirrus_cluster.plan(tmp_path / "p", "sol-dqn")
    assert set(submission.test_only(plan, cirrus_cluster.slurm).values()) == {None}


def test_every_script_of_the_cirrus_study_is_taken(legacy_cluster: Cluster, tmp_path: Path) -> None:
    """By the imitated cluster of the paper: whole nodes, two of them, and up to four GPUs."""
    plan = planned(tmp_path / "p", "cirrus-ppo-rainbow", "cirrus-legacy", allow_retired=True)
    objections = submission.test_only(plan, legacy_cluster.slurm)
    assert len([script for script in objections if "-cells-" in script]) == 9
    assert set(objections.values()) == {None}


@pytest.mark.parametrize(
    ("old", "new", "objection"),
    [
        ("--partition=htc", "--partition=htcc", "invalid partition specified"),
        ("--qos=public", "--qos=long", "Invalid qos specification"),
        ("--time=02:00:00", "--time=05:00:00", "Requested time limit is invalid"),
        ("--gres=gpu:a100:2", "--gres=gpu:a100:5", "Requested node configuration is not available"),
        ("--gres=gpu:a100:2", "--gres=gpu:h100:2", "not available"),
        ("--account=lab", "--account=other", "Invalid account"),
        ("--cpus-per-task=1", "--cpus-per-task=64", "not available"),
    ],
)
def test_the_imitated_sol_is_strict(sol: Cluster, tmp_path: Path, old: str, new: str, objection: str) -> None:
    plan = sol.plan(tmp_path / "p", "sol-dqn")
    script = plan / "scripts/sol-dqn-torch-cuda-horovod-1.sbatch"
    script.write_text(script.read_text().replace(old, new))
    found = sol.slurm.test_only(Path("scripts") / script.name, plan)
    assert found is not None
    assert objection in found


def test_quickstart_from_submit_to_report_in_one_staged_chain(sol: Cluster, tmp_path: Path) -> None:
    short = {"workload": {"hyperparameters": {"total_steps": 3000}}}
    study = write_yaml(tmp_path / "s.yaml", {"extends": "quickstart", "max_parallel": 2, **short})
    plan = sol.plan(tmp_path / "plan", str(study))
    assert sol.submit(plan) == 8
    assert sol.submit(plan) == 0
    status = sol.wait(plan, 400)
    assert status.counts() == {"COMPLETED": 8}
    assert {stage: each.state for stage, each in status.stages.items()} == dict.fromkeys(
        ("environments", "collect", "report"), "COMPLETED"
    )
    assert (plan / "report/report.html").is_file()
    rows = hpcrl.load(plan / "dataset")
    assert Counter(rows["outcome"]) == {"completed": 8}
    assert Counter(zip(rows["framework"], rows["execution"], strict=True)) == {
        ("numpy", "eager"): 2, ("torch", "eager"): 2, ("torch", "lazy"): 2, ("jax", "lazy"): 2,
    }  # fmt: skip
    assert set(rows["steps"]) == {3000}
    compiled = dict(zip(rows["framework"] + rows["execution"], rows["compiled"], strict=True))
    assert "0 graph breaks" in compiled["torchlazy"]
    assert "nothing" in compiled["torcheager"]
    assert "1 update programs" in compiled["jaxlazy"]
    # Three arrays and three stages: eleven tasks in six submissions.
    assert len(Ledger(plan).submissions()) == 6
    assert sol.submit(plan) == 0


def test_two_nodes_give_one_record_each(sol: Cluster, tmp_path: Path) -> None:
    resources = {"nodes": 2, "tasks": 2, "memory": "1G", "time": "00:05:00"}
    plan = sol.plan(tmp_path / "plan", command_study(["sleep", "2"], resources=resources))
    sol.submit(plan)
    assert sol.wait(plan).counts() == {"COMPLETED": 1}
    names = [path.name.split(".") for path in sorted((plan / "records").iterdir())]
    assert len(names) == 2
    assert len({node for _, _, node, _, _ in names}) == 2
    assert {rank for *_, rank, _ in names} == {"r0", "r1"}
    # Accounting hears of a job's end, and of its steps, seconds later.
    patience = time.monotonic() + 60
    while True:
        row = sol.collected(plan).to_dict("records")[0]
        if row["slurm_state"] == "COMPLETED" and row["slurm_memory_peak"] > 0:
            break
        assert time.monotonic() < patience, row["slurm_state"]
        time.sleep(0.5)
    assert (row["outcome"], row["records"]) == ("completed", 2)
    assert row["slurm_cpu_seconds"] > 0
    assert row["slurm_memory_peak"] > 1e6
    assert len(sol.slurm.host_names(row["slurm_nodes"])) == 2
    assert hpcrl.load(plan.parent / "dataset", "samples")["node"].nunique() == 2
    offsets = {
        path.name.split(".")[-2]: read_record(path).header["clock_offset"] for path in (plan / "records").iterdir()
    }
    # None if the second node could not ask. Two nodes of one machine may well be 0 apart: a clock's steps are 0.24 us.
    assert offsets["r0"] == 0
    assert abs(offsets["r1"]) < 1


def long_training(time: str = "00:10:00", **hyperparameters: Any) -> dict[str, Any]:
    study = dqn_study()
    study["workload"]["hyperparameters"] = {
        "hidden": [256, 256],
        "evaluation_interval": 10**6,
        "evaluation_episodes": 2,
        **hyperparameters,
    }
    study["resources"] = {"memory": "1G", "time": time}
    return study


def warned(cluster: Cluster, directory: Path, study: dict[str, Any]) -> Path:
    """Run a study of one cell, which gets the warning that Slurm sends before a time limit, and return its plan."""
    plan = cluster.plan(directory, study)
    cluster.submit(plan)
    cluster.until(lambda: bool((status := plan_status(plan, cluster.slurm)).cells[0].progress or not status.live()))
    key = plan_status(plan, cluster.slurm).cells[0].status.key
    assert key is not None
    assert cluster.virtual.command("scancel", "--signal=USR2", key).returncode == 0
    assert cluster.wait(plan, 1200).counts() == {"COMPLETED": 1}
    return plan


def test_a_cell_that_is_warned_is_checkpointed_requeued_and_finishes(sol: Cluster, tmp_path: Path) -> None:
    """The time limit is far away; another test has Slurm's own warning. The training takes 20 seconds or more on any machine."""
    plan = warned(sol, tmp_path / "plan", long_training("01:00:00", step_latency=0.002, total_steps=10_000))
    rows = sol.collected(plan)
    assert list(rows["outcome"]) == ["preempted", "completed"]
    last = rows.iloc[-1]
    assert (last["steps"], bool(last["latest"])) == (10_000, True)
    assert [attempt.rpartition("-")[2] for attempt in rows["attempt"]] == ["0", "1"]
    episodes = hpcrl.load(plan.parent / "dataset", "episodes")
    train = episodes[episodes["kind"] == "train"]
    before, after = rows.to_dict("records")
    own = train[train["attempt"] == after["attempt"]]["step"]
    assert after["steps"] > before["steps"]
    assert len(own)
    assert (own > before["steps"]).all()


def test_a_warning_to_every_process_of_a_step_does_not_end_those_of_environments(
    ungrouped: Cluster, tmp_path: Path
) -> None:
    """The cell waits for its environments most of the time."""
    waiting = {"environments": 4, "stepping": "processes", "step_latency": 0.002, "updates": 1}
    plan = warned(ungrouped, tmp_path / "plan", long_training("01:00:00", total_steps=20_000, **waiting))
    rows = ungrouped.collected(plan)
    assert list(rows["outcome"]) == ["preempted", "completed"]
    assert list(rows["steps"] == 20_000) == [False, True]


def test_without_requeues_it_is_a_timeout_with_its_partial_curve(sol: Cluster, tmp_path: Path) -> None:
    profile = write_yaml(tmp_path / "sol.yaml", {"extends": "sol", "scheduler": {"max_requeues": 0}})
    plan = sol.plan(tmp_path / "plan", long_training("00:01:00", total_steps=10**7), profile=str(profile))
    sol.submit(plan)
    status = sol.wait(plan)
    assert status.counts() == {"TIMEOUT": 1}
    (cause,) = status.causes()
    assert "the time limit was near after 0 requeues" in cause
    (row,) = sol.collected(plan).to_dict("records")
    assert row["outcome"] == "timeout"
    assert row["steps"] > 1000
    assert len(hpcrl.load(plan.parent / "dataset", "episodes")) > 20


def test_killed_at_the_limit_failing_and_cancelled_cells_are_reported_as_such(sol: Cluster, tmp_path: Path) -> None:
    code = "case {variant} in fine) ;; broken) exit 3 ;; killed) kill -9 $$ ;; *) sleep 300 ;; esac"
    study = command_study(["sh", "-c", code], axes={"variant": ["fine", "broken", "killed", "cancelled", "late"]})
    plan = sol.plan(tmp_path / "plan", study)
    sol.submit(plan)
    cells = {cell["config"]["variant"]: cell["id"] for cell in cells_of(plan)}
    sol.until(lambda: plan_status(plan, sol.slurm).counts().get("RUNNING") == 2)
    late = next(each for each in plan_status(plan, sol.slurm).cells if each.cell.id == cells["late"])
    assert late.status.key is not None
    done = sol.virtual.command("scontrol", "update", f"jobid={late.status.key}", "EndTime=now+2seconds")
    assert done.returncode == 0, done.stderr
    assert cancel(plan, sol.slurm, [cells["cancelled"]]).cells == 1
    status = sol.wait(plan)
    assert status.counts() == {"FAILED": 2, "COMPLETED": 1, "CANCELLED": 1, "TIMEOUT": 1}
    sol.until(lambda: set(sol.collected(plan)["slurm_state"]) >= {"CANCELLED", "TIMEOUT"})
    rows = {row["cell"]: row for row in sol.collected(plan).to_dict("records")}
    outcomes = {variant: rows[cell]["outcome"] for variant, cell in cells.items()}
    assert outcomes == {
        "fine": "completed",
        "broken": "failed",
        "killed": "failed",
        "cancelled": "cancelled",
        "late": "timeout",
    }
    assert "exit code 3" in rows[cells["broken"]]["reason"]


def test_a_broken_environment_stage_stops_the_chain(sol: Cluster, tmp_path: Path) -> None:
    plan = planned(tmp_path / "plan", command_study(["true"], chain="staged"), "sol", environments_root="/proc/nowhere")
    sol.submit(plan)
    status = sol.wait(plan)
    assert status.stages["environments"].state == "FAILED"
    assert status.stages["environments"].reason is not None
    assert "/proc/nowhere" in status.stages["environments"].reason
    assert status.counts() == {"CANCELLED": 1}


def test_the_stage_builds_nothing_for_cells_that_are_not_submitted(sol: Cluster, tmp_path: Path) -> None:
    """Horovod for CUDA cannot be built here; the other cell does not need it."""
    size = [{"framework": "numpy"}, {"framework": "torch", "gpus": 2, "gpu_type": "a100", "parallelism": "horovod"}]
    plan = sol.plan(tmp_path / "plan", dqn_study(axes={"size": size}, chain="staged"))
    assert len(read_plan(plan).environments) == 2
    submission.submit(plan, "slurm", sol.slurm, Budget(), lambda *progress: None, Choice(where=("framework=numpy",)))
    status = sol.wait(plan)
    assert status.counts() == {"COMPLETED": 1, "NOT SUBMITTED": 1}
    assert {stage: each.state for stage, each in status.stages.items()} == dict.fromkeys(
        ("environments", "collect", "report"), "COMPLETED"
    )


def test_ten_thousand_cells_are_one_submission(sol: Cluster, tmp_path: Path) -> None:
    plan = sol.plan(tmp_path / "plan", command_study(["true"], seeds=10_000, max_parallel=1))
    assert sol.submit(plan) == 10_000
    try:
        assert len(Ledger(plan).submissions()) == 1
        assert len(plan_status(plan, sol.slurm).cells) == 10_000
        assert sol.submit(plan) == 0
    finally:
        cancel(plan, sol.slurm, [])
    sol.wait(plan)


@pytest.mark.parametrize("name", ["a b", 'it\'s "q" $(x) `y`', "line\nbreak", "ünïcode ∑", "per%cent%j"])
def test_plans_may_lie_anywhere(sol: Cluster, tmp_path: Path, name: str) -> None:
    plan = sol.plan(tmp_path / name / "plan", command_study(["sh", "-c", "echo here"]))
    sol.submit(plan)
    assert sol.wait(plan).counts() == {"COMPLETED": 1}
    (log,) = [path for path in (plan / "logs").iterdir()]
    assert "here" in log.read_text()


def test_a_script_by_hand_needs_no_hpcrl(sol: Cluster, tmp_path: Path) -> None:
    plan = sol.plan(tmp_path / "plan", command_study(["true"]))
    (script,) = (plan / "scripts").glob("*-cpu-*")
    wrong = subprocess.run(
        ["sbatch", "--wait", str(script)], cwd=tmp_path, env=sol.virtual.environment(), check=False, capture_output=True
    )
    assert wrong.returncode != 0
    done = subprocess.run(
        ["sbatch", "--wait", f"scripts/{script.name}"], cwd=plan, env=sol.virtual.environment(), check=False
    )
    assert done.returncode == 0
    assert len(list((plan / "records").iterdir())) == 1


def test_a_refused_script_is_said_in_slurm_s_words_and_nothing_is_lost(sol: Cluster, tmp_path: Path) -> None:
    from hpcrl.errors import HpcrlError

    plan = sol.plan(tmp_path / "plan", command_study(["true"]))
    (script,) = (plan / "scripts").glob("*-cpu-*")
    good = script.read_text()
    planned_script(plan, script, good.replace("--partition=public", "--partition=nosuch"))
    with pytest.raises(HpcrlError, match=r"sbatch refused it: .*invalid partition specified: nosuch"):
        sol.submit(plan)
    planned_script(plan, script, good)
    assert sol.submit(plan) == 1
    assert sol.wait(plan).counts() == {"COMPLETED": 1}


def test_two_clusters_side_by_side_give_one_dataset(
    sol: Cluster, cirrus_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = dqn_study(seeds=2)
    plans = []
    for cluster in (sol, cirrus_cluster):
        monkeypatch.setenv("SLURM_CONF", str(cluster.virtual.conf))
        plan = cluster.plan(tmp_path / cluster.name, study)
        cluster.submit(plan)
        assert cluster.wait(plan).counts() == {"COMPLETED": 2}
        collect([plan], tmp_path / "dataset", cluster.slurm)
        plans.append(plan)
    rows = hpcrl.load(tmp_path / "dataset")
    assert sorted(zip(rows["cluster"], rows["outcome"], strict=True)) == [
        ("cirrus", "completed"), ("cirrus", "completed"), ("sol", "completed"), ("sol", "completed"),
    ]  # fmt: skip
    assert {each.cluster.name for each in map(read_plan, plans)} == {"sol", "cirrus"}
    assert rows["cell"].nunique() == 2
    assert np.isfinite(rows["final_score"]).all()


def test_gpus_are_bound_as_asked(sol: Cluster, tmp_path: Path) -> None:
    code = "import os, hpcrl; hpcrl.log(gpus=len(os.environ['CUDA_VISIBLE_DEVICES'].split(',')))"
    pins = {"extends": "numpy", "flavours": {"cuda": {"packages": []}}}
    write_yaml(tmp_path / "library/envs/numpy.yaml", pins)
    python = next(path for path in ENVIRONMENTS.glob("numpy-cpu-*/bin/python"))
    study = command_study(
        [str(python), "-c", code],
        axes={"gpus": [1, 2]},
        resources={"gpu_type": "a100", "memory": "1G", "time": "00:05:00"},
    )
    from hpcrl.plan.directory import write_plan
    from hpcrl.plan.make import UserChoices, make_plan
    from hpcrl.spec.library import Library

    path = write_yaml(tmp_path / "s.yaml", study)
    files = make_plan(
        Library([tmp_path / "library"]),
        "sol",
        str(path),
        UserChoices(account="lab", environments_root=str(tmp_path / "e")),
    )
    plan = tmp_path / "plan"
    write_plan(files, plan)
    (environment,) = files.plan.environments
    place = tmp_path / "e" / environment.key
    place.mkdir(parents=True)
    for each in ("bin", "lib", "pyvenv.cfg"):
        (place / each).symlink_to(python.parent.parent / each)
    (place / MARKER).write_text(json.dumps({"key": environment.key}))
    sol.submit(plan)
    assert sol.wait(plan).counts() == {"COMPLETED": 2}
    collect([plan], tmp_path / "dataset", sol.slurm)
    rows = hpcrl.load(tmp_path / "dataset").set_index("cell")
    values = hpcrl.load(tmp_path / "dataset", "episodes").set_index("cell")["value"]
    assert all(values[cell] == rows.loc[cell, "gpus"] for cell in rows.index)
    assert set(rows["partition"]) == {"htc"}


@pytest.mark.parametrize(
    "value",
    ["a b", "it's", 'say "x"', "$(id) `id` $HOME", "back\\slash", "# hash", "a;b|c&d", "é ∑ 漢", "%j", "x=y", "-n 4"],
)
def test_directive_values_reach_slurm_unchanged(sol: Cluster, tmp_path: Path, value: str) -> None:
    profile = write_yaml(tmp_path / "sol.yaml", {"extends": "sol", "script": {"directives": {"comment": value}}})
    plan = sol.plan(tmp_path / "plan", command_study(["true"]), profile=str(profile))
    (script,) = (plan / "scripts").glob("*-cpu-*")
    held = ["sbatch", "--parsable", "--hold", f"scripts/{script.name}"]
    done = subprocess.run(held, cwd=plan, env=sol.virtual.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = sol.virtual.command("squeue", "-h", "-o", "%k", "-j", done.stdout.strip())
    sol.slurm.cancel([done.stdout.strip()])
    assert shown.stdout.removesuffix("\n") == value


def horovod_study(framework: str, nodes: int = 1) -> dict[str, Any]:
    """Two ranks, with faults on demand."""
    study = dqn_study(
        axes={"framework": [framework], "execution": ["lazy"], "parallelism": ["horovod"]},
        resources={"nodes": nodes, "cpus": 1, "tasks": 2, "memory": "1G", "time": "00:10:00"},
    )
    study["workload"] |= {"environment": "faulty:Faulty-v0"}
    return study


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "collective", "nodes"),
    [
        ("mxnet", "Horovod 0.28.1 over MPI", 1),
        ("jax", "mpi4py over Open MPI v", 1),
        ("mxnet", "Horovod 0.28.1 over MPI", 2),
    ],
)
def test_srun_starts_the_ranks_and_they_average(
    sol: Cluster, tmp_path: Path, framework: str, collective: str, nodes: int
) -> None:
    built_environment(framework, horovod=True)
    plan = sol.plan(tmp_path / "plan", horovod_study(framework, nodes))
    shutil.copy(FAULTY, plan)
    sol.submit(plan)
    assert sol.wait(plan).counts() == {"COMPLETED": 1}
    (row,) = sol.collected(plan).to_dict("records")
    assert (row["outcome"], row["records"], row["tasks"], row["hosts"]) == ("completed", 2, 2, 1)
    assert collective in row["collective"]
    records = [read_record(path) for path in (plan / "records").iterdir()]
    assert len({record.header["node"] for record in records}) == nodes
    # Every rank works: on nodes of its own, too.
    footers = [record.footer or {} for record in records]
    assert all(footer["own_cpu_seconds"] > 0 for footer in footers)
    assert len({footer["updates"] for footer in footers}) == 1
    assert footers[0]["updates"] > 0


@pytest.mark.slow
def test_a_rank_that_dies_under_srun_fails_the_cell_with_its_error(sol: Cluster, tmp_path: Path) -> None:
    built_environment("mxnet", horovod=True)
    plan = sol.plan(tmp_path / "plan", horovod_study("mxnet"))
    fault = FAULTY.read_text().replace('os.environ.get("FAULT", "")', '"error"')
    (plan / FAULTY.name).write_text(fault)
    sol.submit(plan)
    assert sol.wait(plan).counts() == {"FAILED": 1}
    (row,) = sol.collected(plan).to_dict("records")
    assert row["outcome"] == "failed"
    assert row["reason"] == "rank 1: RuntimeError: the simulator of this rank is gone"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "resources"),
    [
        ({"topology": "asynchronous", "actors": 3}, {"overcommit": True, "cpus": 1}),
        ({"topology": "collective", "actors": 3}, {"nodes": 2}),
        ({"topology": "asynchronous", "actors": 3}, {"nodes": 2}),
    ],
)
def test_a_learner_and_its_actors_under_srun(
    sol: Cluster, tmp_path: Path, topology: dict[str, Any], resources: dict[str, Any]
) -> None:
    """On one node whose core they share, and on two."""
    built_environment("numpy")
    study = dqn_study(
        axes={"framework": ["numpy"], **{name: [value] for name, value in topology.items()}},
        resources={"cpus": 1, "memory": "300M", "time": "00:10:00", **resources},
    )
    study["workload"]["hyperparameters"] |= {"total_steps": 6000, "acting": "numpy", "train_interval": 240}
    plan = sol.plan(tmp_path / "plan", study)
    sol.submit(plan)
    assert sol.wait(plan).counts() == {"COMPLETED": 1}
    (row,) = sol.collected(plan).to_dict("records")
    assert (row["outcome"], row["records"], row["tasks"], row["steps"]) == ("completed", 4, 4, 6000)
    assert sum(json.loads(row["messages"])["transitions"]) == 6000
    nodes = {path.name.split(".")[2] for path in (plan / "records").iterdir()}
    assert len(nodes) == resources.get("nodes", 1)


@pytest.mark.slow
def test_a_cell_whose_actor_died_under_srun_goes_on_from_its_last_evaluation(sol: Cluster, tmp_path: Path) -> None:
    """Slurm kills the other ranks at once, so that the learner writes nothing any more."""
    built_environment("torch")
    study = dqn_study(
        axes={"framework": ["torch"], "topology": ["asynchronous"], "actors": [2]},
        resources={"cpus": 1, "overcommit": True, "memory": "1G", "time": "00:10:00"},
    )
    study["workload"] |= {"environment": "faulty:Faulty-v0"}
    study["workload"]["hyperparameters"] |= {"total_steps": 3000, "acting": "numpy"}
    plan = sol.plan(tmp_path / "plan", study)
    fault = FAULTY.read_text().replace('os.environ.get("FAULT", "")', '"error"')
    (plan / FAULTY.name).write_text(fault)
    sol.submit(plan)
    assert sol.wait(plan).counts() == {"FAILED": 1}
    shutil.copy(FAULTY, plan)
    assert sol.submit(plan) == 1
    assert sol.wait(plan).counts() == {"COMPLETED": 1}
    first, second = sol.collected(plan).to_dict("records")
    assert first["reason"] == "rank 1: RuntimeError: the simulator of this rank is gone"
    assert (second["outcome"], second["steps"]) == ("completed", 3000)
    assert 500 <= second["resumed_step"] < 3000
