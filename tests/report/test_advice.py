from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from hpcrl.report.advice import advice

GIB = 1024**3


def cells(**changes: Any) -> pd.DataFrame:
    """Two cells that use well what they have."""
    row = {
        "cluster": "c", "what": "torch eager", "where": "2 cores", "outcome": "completed", "cpus": 2, "tasks": 1, "overcommit": False, "nodes": 1, "hosts": float("nan"), "gpus": 0,
        "cpu_utilisation": 0.9, "gpu_percent": float("nan"), "memory_mib": 4096, "memory": 2.0 * GIB, "time_limit": 3600,
        "wall_time": 2000.0, "machine_cpu_percent": 50.0, "cpu_seconds": 3600.0, "sampler_cpu_seconds": 2.0, "threads": 4.0, "crowded": False, "setup_time": 3.0,
        "compile_time": 1.0, "resumed_step": float("nan"),
    }  # fmt: skip
    return pd.DataFrame([row | changes] * 2)


def test_nothing_is_said_of_what_is_used_well() -> None:
    assert advice(cells()) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cpu_utilisation": 0.3}, "30% of the 2 cores in use"),
        ({"gpus": 1, "gpu_percent": 4.0}, "the GPUs are busy 4% of the time"),
        ({"memory": 0.5 * GIB}, "at most 0.5 of the 4 GiB of requested memory of a node in use"),
        (
            {"memory": 0.5 * GIB, "nodes": 2, "tasks": 2, "cpu_seconds": 7200.0},
            "at most 0.5 of the 4 GiB of requested memory of a node",
        ),
        ({"wall_time": 300.0, "cpu_seconds": 540.0}, "ended after 5.0 of the 60 minutes requested"),
        ({"machine_cpu_percent": 95.0}, "other jobs used 50% of the machine"),
        ({"setup_time": 1500.0}, "75% of the time is before the first step"),
    ],
)
def test_what_is_wasted_is_named(changes: dict[str, Any], text: str) -> None:
    (said,) = advice(cells(**changes))
    assert said.startswith("torch eager (2 cores): ")
    assert text in said


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu_utilisation": 0.3, "cpus": 1},
        {"memory": 0.1 * GIB, "memory_mib": 1024},
        {"wall_time": 10.0, "time_limit": 600, "cpu_seconds": 18.0},
        {"outcome": "failed", "cpu_utilisation": 0.1},
        {"memory": 1.0 * GIB, "nodes": 2, "tasks": 2, "cpu_seconds": 7200.0},  # a quarter of what one of two nodes has
        {"nodes": 2, "tasks": 2, "cpu_seconds": 7200.0, "machine_cpu_percent": 50.0},  # of both nodes
        {"nodes": 2, "hosts": 1, "tasks": 2},  # which are one machine
        {"machine_cpu_percent": 95.0, "sampler_cpu_seconds": 3200.0},  # hpcrl's own
        {
            "machine_cpu_percent": 95.0,
            "wall_time": 0.5,
            "time_limit": 600,
            "cpu_seconds": 0.9,
            "setup_time": 0.1,
            "compile_time": 0.0,
        },
    ],
)
def test_small_things_are_left_alone(changes: dict[str, Any]) -> None:
    assert advice(cells(**changes)) == []


@pytest.mark.parametrize(
    ("less", "seed"),
    [
        ({"memory": 0.5 * GIB}, {"outcome": "oom"}),
        ({"wall_time": 300.0, "cpu_seconds": 540.0}, {"outcome": "timeout"}),
        ({"wall_time": 300.0, "cpu_seconds": 540.0}, {"wall_time": float("nan"), "resumed_step": 100.0}),
    ],
)
def test_a_limit_that_one_seed_reached_is_not_too_high(less: dict[str, Any], seed: dict[str, Any]) -> None:
    used_little = cells(**less)
    assert len(advice(used_little)) == 1
    assert advice(pd.concat([used_little, cells(**less | seed).head(1)])) == []
    assert len(advice(pd.concat([used_little, cells(**less | seed, what="another")]))) == 1


def test_each_cluster_has_its_own_advice() -> None:
    """The mean of a node that is in use and of one that is not says nothing of either."""
    both = pd.concat([cells(cpu_utilisation=0.9), cells(cpu_utilisation=0.4, cluster="d (host b)")])
    assert advice(both) == ["torch eager (2 cores, d (host b)): 40% of the 2 cores in use: request fewer cores."]


def test_the_same_advice_is_given_once() -> None:
    several = [cells(cpu_utilisation=0.3 + 0.01 * number, what=f"jax {number}") for number in range(4)]
    assert advice(pd.concat(several[:2])) == [
        "jax 0 (2 cores) and jax 1 (2 cores): 30% to 31% of the 2 cores in use: request fewer cores."
    ]
    assert advice(pd.concat(several)) == [
        "All 4 configurations: 30% to 33% of the 2 cores in use: request fewer cores."
    ]
    assert advice(pd.concat([*several, cells()])) == [
        "4 of 5 configurations: 30% to 33% of the 2 cores in use: request fewer cores."
    ]


def test_cores_that_the_machine_does_not_have_are_no_waste() -> None:
    assert advice(cells(cpu_utilisation=0.3, crowded=True)) == []
