from __future__ import annotations

from typing import Any

import pytest

from hpcrl.formats.facts import Asked, read_asked, read_cluster, read_study
from hpcrl.surroundings import Surroundings

SITE: dict[str, Any] = {"name": "sol", "title": "Sol", "scheduler": {"kind": "slurm"}, "environments": {"root": "/e"}}


def test_what_a_cell_asks_for() -> None:
    given = {"cpus": 2, "memory": 1000, "time": 60, "nodes": 2, "tasks": 4, "gpus": 3, "gpu_type": "a100"}
    asked = read_asked(given | {"parallelism": None})
    assert asked == Asked(2, 1000, 60, 2, 4, 3)
    assert (asked.cores, asked.gpus_per_node) == (8, 2)
    assert (asked.memory_per_node(), asked.memory_per_node(1500)) == (2000, 3000)
    assert read_asked({"cpus": 1, "memory": 1, "time": 1}) == Asked(
        1, 1, 1, nodes=1, tasks=1, gpus=0, parallelism="none"
    )


@pytest.mark.parametrize(
    ("given", "wrong"),
    [({"cpus": 1, "memory": 1}, "'time': expected a whole number, got 'None'"), ({"cpus": "2"}, "'cpus': .*got '2'")],
)
def test_resources_that_are_wrong(given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=f"resources: {wrong}"):
        read_asked(given)


def test_a_study_has_its_defaults_and_keeps_what_was_given() -> None:
    given = {"name": "mine", "paper": "p", "goal": 475, "environment": "none", "seeds": [1, 2]}
    study = read_study(given)
    assert (study.name, study.goal, study.tensorboard, study.sample_interval) == ("mine", 475, "none", 1.0)
    assert (study.retry, study.notify, study.surroundings, study.given) == ({}, None, Surroundings(), given)
    assert read_study({"name": "mine", "environment": "torch"}).surroundings is None


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ([], "study: expected a mapping"),
        ({}, "study: 'name': expected text"),
        ({"name": "x", "goal": "far"}, "study: 'goal': expected a number, got 'far'"),
        ({"name": "x", "notify": 3}, "study: 'notify': expected a URL or a command"),
    ],
)
def test_a_study_that_is_wrong(given: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        read_study(given)


def test_a_cluster() -> None:
    here = SITE | {"scheduler": {"kind": "local", "poll_interval": 30}}
    there = SITE | {"scheduler": {"kind": "slurm", "poll_interval": 60, "max_array_size": 11, "max_requeues": 0}}
    assert [read_cluster(each).poll_seconds for each in (here, there, SITE)] == [1.0, 60, 30.0]
    cluster = read_cluster(there)
    assert (cluster.max_array_size, cluster.max_requeues, cluster.scheduler.command) == (11, 0, "sbatch")
    assert (read_cluster(SITE).max_array_size, read_cluster(SITE).max_requeues) == (1001, 3)


@pytest.mark.parametrize(
    ("scheduler", "wrong"),
    [
        ({}, "scheduler: 'kind': expected text"),
        ({"kind": "slum"}, "no scheduler 'slum'; did you mean 'slurm'"),
        ({"kind": "slurm", "max_requeues": "many"}, "scheduler: 'max_requeues': expected a whole number"),
        (None, "cluster: 'scheduler': expected a mapping"),
    ],
)
def test_a_cluster_that_is_wrong(scheduler: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        read_cluster(SITE | {"scheduler": scheduler})
