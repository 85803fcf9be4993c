"""What the packaged studies say of themselves: which cells and jobs they have."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hpcrl.catalogue.registry import algorithms, frameworks
from hpcrl.catalogue.training import WORKERS
from hpcrl.formats.plan import Plan
from hpcrl.plan.expand import Point, expand
from hpcrl.plan.make import UserChoices, make_plan
from hpcrl.spec.library import Library
from hpcrl.spec.study import Study

PACKAGED = sorted(path.stem for path in (Path(__file__).parents[2] / "jobs").glob("*.yaml"))
LEGACY = UserChoices(account="lab", allow_retired=True)


def cirrus(cluster: str) -> Plan:
    return make_plan(Library([]), cluster, "cirrus-ppo-rainbow", LEGACY).plan


def test_the_cirrus_study_is_nine_jobs_on_the_cluster_of_its_paper() -> None:
    files = make_plan(Library([]), "cirrus-legacy", "cirrus-ppo-rainbow", LEGACY)
    plan = files.plan
    assert plan.unplaced == []
    jobs = plan.cell_jobs()
    assert [job.count for job in jobs] == [24] * 9
    scripts = [str(files.files[job.script]) for job in jobs]
    assert all("#SBATCH --exclusive\n" in script and "#SBATCH --array=0-23%1\n" in script for script in scripts)
    # As many cores for each number of GPUs, and a rank for each GPU.
    asked = [job.asked for job in jobs if job.asked.gpus]
    assert [(one.gpus, one.tasks, one.cpus, one.cores) for one in asked] == [
        (1, 1, 40, 40),
        (2, 2, 20, 40),
        (3, 3, 13, 39),
        (4, 4, 10, 40),
    ]
    requested = [line for script in scripts for line in script.splitlines() if "--gres" in line]
    assert requested == [f"#SBATCH --gres=gpu:{number}" for number in (1, 2, 4, 4)]
    assert [note for note in plan.totals["notes"] if "idle" in note] == [
        f"cells with {gpus} have a whole gpu node: {idle} of the 4 GPUs there {are} idle"
        for gpus, idle, are in (("1 GPU", 3, "are"), ("2 GPUs", 2, "are"), ("3 GPUs", 1, "is"))
    ]
    assert [note for note in plan.totals["notes"] if "capability" in note] == [
        "cells of environment torch on v100 would fail: these GPUs have compute capability 7.0, and the packages have programs for 7.5 and newer only"
    ]


def test_a_cluster_without_gpus_runs_the_other_five_jobs_of_the_cirrus_study() -> None:
    plan = cirrus("cirrus")
    assert [job.count for job in plan.cell_jobs()] == [24] * 5
    assert plan.totals["unplaced"] == 4 * 24
    assert all(group.reason.endswith("but EPCC, Cirrus EX4000 has no GPU") for group in plan.unplaced)


@pytest.mark.parametrize("cluster", ["cirrus", "sol", "cirrus-legacy"])
def test_uses_of_equal_cores_get_equal_cores(cluster: str) -> None:
    """Where memory comes with the cores, ranks of one core would get more of them than threads do."""
    files = make_plan(Library([]), cluster, "cirrus-cores", LEGACY)
    assert files.plan.unplaced == []
    for job in files.plan.cell_jobs():
        assert f"#SBATCH --cpus-per-task={job.asked.cpus}\n" in str(files.files[job.script])


@pytest.mark.parametrize(
    ("name", "slow_seeds"),
    [
        ("ppo-cartpole", 5),
        ("ppo-cartpole-100", 5),
        ("rainbow-cartpole", 1),
        ("dqn-mountaincar", 1),
        ("vpg-cartpole", 1),
    ],
)
def test_a_study_of_all_frameworks_has_each_of_their_modes(name: str, slow_seeds: int) -> None:
    """Eager JAX has few seeds where a seed takes too long."""
    study = Library([]).study(name)
    (algorithm,) = study.algorithms()
    cells = [(point.config["framework"], point.config["execution"], point.config["seed"]) for point in expand(study)]
    assert sorted(cells) == sorted(
        (framework, mode, seed)
        for framework in algorithm.frameworks
        for mode in frameworks()[framework].modes
        for seed in range(1, 1 + (slow_seeds if (framework, mode) == ("jax", "eager") else 5))
    )


@pytest.mark.parametrize("name", PACKAGED)
def test_all_modes_of_a_packaged_study_are_evaluated_at_the_same_steps(name: str) -> None:
    """The environments of an on-policy algorithm step together, and a fused mode stops after whole rollouts only."""
    study = Library([]).study(name)
    points = expand(study)
    fused = any(point.config.get("execution") == "fused" for point in points)
    for point in points:
        algorithm = study.algorithm_of(point.config)
        if algorithm is None or algorithm.family != "on_policy":
            continue
        values = study.known_hyperparameters(algorithm) | point.config
        rollout = values["environments"] * values["rollout_steps"]
        assert values["total_steps"] % rollout == 0, values  # the last steps are learnt from, too
        assert values["evaluation_interval"] % (rollout if fused else values["environments"]) == 0, values


@pytest.mark.parametrize(("name", "most"), [("ppo-cartpole", 100_000), ("ppo-mountaincar", 1_000_000)])
def test_the_last_evaluation_is_within_the_steps_of_the_goal(name: str, most: int) -> None:
    steps = Library([]).study(name).workload.hyperparameters["total_steps"]
    assert isinstance(steps, int) and 0.99 * most < steps <= most


def test_any_number_of_ranks_of_the_cirrus_study_is_evaluated_at_the_same_steps() -> None:
    for values in values_of("cirrus-ppo-rainbow"):
        for name in ("total_steps", "evaluation_interval"):
            assert values[name] % 12 == 0, values  # 1, 2, 3 or 4 ranks


def test_the_ablation_leaves_out_each_part_of_rainbow_alone() -> None:
    study = Library([]).study("rainbow-ablation")
    parts = ("double", "dueling", "prioritized", "n_step", "noisy", "distributional")
    defaults = {name: algorithms()["rainbow"].settings.__dataclass_fields__[name].default for name in parts}
    off = {name: 1 if name == "n_step" else False for name in parts}
    cells = [{name: point.config[name] for name in parts} for point in expand(study) if point.config["seed"] == 1]
    assert cells == [defaults, *({**defaults, name: off[name]} for name in parts), off]


def computed(study: Study, point: Point) -> str:
    """Say what a cell computes: with the defaults of its algorithm, and without the limits of memory and time."""
    algorithm = study.algorithm_of(point.config)
    defaults = {field.name: field.default for field in fields(algorithm.settings)} if algorithm else {}
    values = {**defaults, **study.workload.hyperparameters, **point.config}
    if values.get("environments") == 1:
        values["workers"] = WORKERS[0]  # one process in any case
    resources = point.resources.model_dump(exclude={"memory", "time"})
    return json.dumps([values, resources], sort_keys=True, default=str)


@pytest.mark.parametrize("name", PACKAGED)
def test_no_packaged_study_has_two_cells_that_compute_the_same(name: str) -> None:
    study = Library([]).study(name)
    counts = Counter(computed(study, point) for point in expand(study))
    assert [cell for cell, count in counts.items() if count > 1] == []


def values_of(name: str) -> list[dict[str, Any]]:
    """Return the hyperparameters of each configuration of a study."""
    study = Library([]).study(name)
    return [study.workload.hyperparameters | point.config for point in expand(study) if point.config["seed"] == 1]


@pytest.mark.parametrize("environment", ["", "-lunar-lander", "-box-slider"])
def test_published_programs_over_mpi_move_the_target_once_for_each_episode(environment: str) -> None:
    for values in values_of(f"mpi-dqn-published{environment}"):
        moves = values["updates"] / values["target_interval"]
        assert moves == values["train_interval"], values


def test_both_published_programs_of_the_box_slider_have_one_agent() -> None:
    one, other = values_of("mpi-dqn-published-box-slider")
    differing = {key for key in one | other if one.get(key) != other.get(key)}
    # The program of one process waits for more than a batch.
    assert differing == {"topology", "actors", "train_interval", "updates", "learning_starts"}


@pytest.mark.parametrize("environment", ["", "-lunar-lander", "-box-slider", "-latency"])
def test_topologies_at_equal_work_differ_in_nothing_else(environment: str) -> None:
    every = values_of(f"mpi-dqn{environment}")
    own = {"topology", "actors", "seed", "step_latency"}
    assert len({json.dumps({key: each[key] for key in each if key not in own}, sort_keys=True) for each in every}) == 1
    for values in every:  # otherwise actors take a few steps more, or are evaluated later
        assert values["train_interval"] % values.get("actors", 1) == 0, values
    if environment != "-box-slider":
        assert values["total_steps"] % values["evaluation_interval"] == 0, values
        assert values["evaluation_interval"] % values["train_interval"] == 0, values


@pytest.mark.parametrize(
    "name", ["mpi-dqn-latency", *(f"mpi-dqn{each}" for each in ("-box-slider", "-lunar-lander", ""))]
)
def test_two_cores_have_a_place_for_every_cell_of_the_studies_over_mpi(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    settings = () if name == "mpi-dqn-latency" else ("resources.overcommit=true", "resources.cpus=2")
    plan = make_plan(Library([]), "workstation", name, UserChoices(settings=settings)).plan
    assert plan.unplaced == []


def test_lunar_lander_over_mpi_has_five_seeds_where_learning_is_judged() -> None:
    points = expand(Library([]).study("mpi-dqn-lunar-lander"))
    seeds = Counter((point.config["topology"], point.config.get("actors", 1)) for point in points)
    assert {seeds["sequential", 1], seeds["asynchronous", 2]} == {5}
    assert [seeds["pairwise", 1], *(seeds["collective", actors] for actors in (1, 2, 3, 4))] == [3] * 5
