"""Which use of more cores pays: what is compared, and what the sentences say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.report.core_uses import fastest, in_words
from hpcrl.report.groups import with_groups
from hpcrl.report.write import write_report
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm

NOISE = (0.99, 1.0, 1.01)
ONE = {"cpus": 1, "tasks": 1, "stepping": "sync"}
USES = {
    "threads": {"cpus": 2, "tasks": 1, "stepping": "sync"},
    "processes": {"cpus": 2, "tasks": 1, "stepping": "processes"},
    "each": {"cpus": 2, "tasks": 1, "stepping": "processes", "workers": "environments"},
    "ranks": {"cpus": 1, "tasks": 2, "stepping": "sync", "parallelism": "native"},
    "nodes": {"cpus": 1, "tasks": 2, "stepping": "sync", "parallelism": "native", "nodes": 2},
    "shared": {"cpus": 2, "tasks": 2, "stepping": "sync", "parallelism": "native", "overcommit": True},
}
WORKLOAD: dict[str, Any] = {
    "algorithm": "ppo",
    "environment": "CartPole-v1",
    "hyperparameters": {"total_steps": 2048, "evaluation_interval": 2048, "environments": 4, "rollout_steps": 32, "minibatch_size": 64},
}  # fmt: skip


def use_of(cell: dict[str, Any]) -> str:
    asked = cell["resources"]
    if asked["tasks"] == 1:
        if cell["config"].get("workers") == "environments":
            return "each"
        return "processes" if cell["config"]["stepping"] == "processes" else "threads"
    return "shared" if asked.get("overcommit") else "nodes" if asked["nodes"] == 2 else "ranks"


def measured(
    tmp_path: Path,
    seconds: dict[str, float],
    alone: float | None = 10.0,
    elsewhere: tuple[str, ...] = (),
    **changes: Any,
) -> Path:
    """Collect runs on 2 cores that take so long, and runs on 1 core; those with some uses ran on nodes with another CPU."""
    sizes = [*([ONE] if alone else []), *(USES[name] for name in seconds)]
    axes = {"framework": [{"framework": "torch", "execution": "eager"}], "size": sizes}
    plan = planned(tmp_path / "p", dqn_study(workload=WORKLOAD, axes=axes, **{"seeds": 3} | changes), "sol")
    for cell in cells_of(plan):
        asked, config = cell["resources"], cell["config"]
        use = use_of(cell)
        time = seconds[use] if asked["cpus"] * asked["tasks"] > 1 else alone or 0.0
        header = {
            "hardware": {
                "cpu": "D" if use in elsewhere else "C",
                "threads": 2,
                "memory": 1024**3,
                "gpus": [],
                "kernel": "6",
            }
        }
        write_record(plan, cell, training_time=time * NOISE[config["seed"] - 1], wall_time=time + 2, header=header)
    collect([plan], tmp_path / "d", no_slurm())
    return tmp_path / "d"


def sentences(*arguments: Any, **changes: Any) -> list[str]:
    return in_words(with_groups(hpcrl.load(measured(*arguments, **changes))))


def test_the_fastest_use_is_named_with_its_lead_and_its_gain(tmp_path: Path) -> None:
    (text,) = sentences(tmp_path, {"threads": 8.0, "processes": 5.0, "ranks": 7.0})
    assert text.startswith(
        "Use of cores, PyTorch eager: of 2 cores, environments in processes train fastest, 1.40 (95 % interval 1.3"
    )
    assert ") times as fast as 2 ranks (native), and 2.00 (95 % interval 1.9" in text
    # Three pairs of uses, and any of the three could have been compared with 1 core.
    assert text.endswith(") times as fast as 1 core. The intervals hold for all 6 comparisons at once.")


def test_a_process_for_each_environment_is_a_use_of_its_own(tmp_path: Path) -> None:
    (text,) = sentences(tmp_path, {"each": 8.0, "processes": 5.0})
    assert "environments in processes train fastest, 1.60 (95 % interval 1.5" in text
    assert ") times as fast as environments in processes, one each, and 2.00 (95 % interval 1.9" in text


def test_a_use_that_is_not_shown_to_be_the_fastest_is_not_called_so(tmp_path: Path) -> None:
    (text,) = sentences(tmp_path, {"threads": 7.0, "processes": 7.03})
    assert "no use is shown to be the fastest: threads of one process are 1.00 (95 % interval 0.9" in text


@pytest.mark.parametrize(
    ("alone", "said"), [(4.0, ": more cores do not pay."), (7.0, ": it is not shown that more cores pay.")]
)
def test_more_cores_that_gain_nothing(tmp_path: Path, alone: float, said: str) -> None:
    (text,) = sentences(tmp_path, {"threads": 7.0, "ranks": 9.0}, alone)
    assert said in text


def test_one_run_of_each_shows_nothing(tmp_path: Path) -> None:
    (text,) = sentences(tmp_path, {"threads": 7.0, "ranks": 9.0}, seeds=1)
    assert "no use is shown to be the fastest: threads of one process are 1.29 (one run)" in text


def test_cores_that_are_used_in_one_way_are_not_compared(tmp_path: Path) -> None:
    assert sentences(tmp_path, {"processes": 7.0}) == []


def test_uses_on_two_kinds_of_machines_are_not_compared(tmp_path: Path) -> None:
    """Otherwise the CPU would be the fastest use of cores."""
    assert sentences(tmp_path, {"threads": 8.0, "processes": 5.0}, elsewhere=("processes",)) == []


def test_a_seed_that_ran_on_two_kinds_of_machines_is_one_on_each(tmp_path: Path) -> None:
    rows = with_groups(hpcrl.load(measured(tmp_path, {"threads": 8.0, "processes": 5.0})))
    there = rows.assign(machine="D, 2 threads", training_time=rows["training_time"] / 2)
    first, second = in_words(pd.concat([rows, there], ignore_index=True))
    assert first.startswith("Use of cores, PyTorch eager machine C, 2 threads: of 2 cores, environments in processes")
    assert second.startswith("Use of cores, PyTorch eager machine D, 2 threads: of 2 cores, environments in processes")
    assert first.partition(": of")[2] == second.partition(": of")[2]


def test_ranks_on_two_nodes_and_ranks_that_share_cores_are_uses_of_their_own(tmp_path: Path) -> None:
    (text,) = sentences(tmp_path, {"ranks": 7.0, "nodes": 6.0, "shared": 9.0})
    assert ": of 2 cores, 2 ranks (native) on 2 nodes train fastest, 1.17 (95 % interval " in text
    assert ") times as fast as 2 ranks (native), and 1.67 (95 % interval " in text
    (tmp_path / "b").mkdir()
    (text,) = sentences(tmp_path / "b", {"ranks": 7.0, "shared": 6.0})
    assert ": of 2 cores, 2 ranks (native) that share them train fastest, 1.17 (95 % interval " in text


def test_all_uses_of_the_fewest_cores_could_have_been_compared() -> None:
    times = np.array([9.0, 10.0, 11.0])
    one_way, two_ways = {"a": times}, {"a": times, "b": times}
    assert fastest({1: one_way, 2: two_ways})[1] == 1 + 2
    assert fastest({1: two_ways, 2: two_ways})[1] == 1 + 1 + 2 * 2


def test_the_report_says_it_also_of_a_single_number_of_cores(tmp_path: Path) -> None:
    dataset = measured(tmp_path, {"threads": 8.0, "processes": 5.0}, None)
    page = write_report(dataset, None, tmp_path / "r", ()).html.read_text()
    assert "of 2 cores, environments in processes train fastest, 1.6" in page
    assert "All values are in scaling.csv" not in page


def test_cores_that_the_machine_does_not_have_are_of_no_use(tmp_path: Path) -> None:
    rows = with_groups(hpcrl.load(measured(tmp_path, {"threads": 8.0, "processes": 5.0})))
    assert in_words(rows.assign(crowded=rows["cpus"] > 1)) == []
