from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from hpcrl.report.integrals import with_integrals, with_last_returns, with_shares, with_stepping, with_updates
from hpcrl.report.training_clock import clocks, in_training, of_clocks

KEYS = {"plan": "p", "attempt": "a"}
NAN = float("nan")
SAMPLES = [
    "plan",
    "attempt",
    "cell",
    "rank",
    "time",
    "unix_time",
    "machine_cpu_percent",
    "machine_memory_percent",
    "cpu_seconds",
    "pss",
]
EPISODES = ["plan", "attempt", "cell", "name", "kind", "time", "value", "began", "seconds"]


def tables(**cells: dict[str, Any]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return attempts, episodes and samples. Training starts after 3 s and takes 10 s, unless a cell has other values.

    `returns` are (time, value), `evaluations` (begin, seconds), `samples` (time, CPU of the machine, its memory) and optionally the job's CPU seconds.
    """
    rows, episodes, samples = [], [], []
    for cell, of in cells.items():
        key = KEYS | {"cell": cell}
        evaluations = of.get("evaluations", ())
        facts = {
            "setup_time": 2.0, "compile_time": 1.0, "training_time": 10.0, "evaluation_time": float(np.nansum([length for _, length in evaluations])),
            "steps": 100.0, "resumed_step": NAN, "outcome": "completed", "workload": "dqn", "tasks": 1.0, "records": 1,
        }  # fmt: skip
        rows.append(key | facts | {name: value for name, value in of.items() if name in facts})
        for time, value in of.get("returns", ()):
            episodes.append(key | {"name": "return", "kind": "train", "time": time, "value": value})
        for begin, length in evaluations:
            episodes.append(
                key | {"name": "return", "kind": "evaluation", "time": begin + length / 2, "value": 1.0, "began": begin, "seconds": length}
            )  # fmt: skip
        for time, cpu, memory, *own in of.get("samples", ()):
            samples.append(
                key | {"rank": 0, "time": time, "unix_time": 1000 + time, "machine_cpu_percent": cpu, "machine_memory_percent": memory,
                       "cpu_seconds": own[0] if own else time / 2, "pss": 10 * memory}
            )  # fmt: skip
    return pd.DataFrame(rows), pd.DataFrame(episodes, columns=EPISODES), pd.DataFrame(samples, columns=SAMPLES)


def one(**of: Any) -> dict[str, Any]:
    """Return the row of one cell."""
    (row,) = with_integrals(*tables(one=of)).to_dict("records")
    return {str(name): value for name, value in row.items()}


def test_an_integral_is_over_the_whole_training() -> None:
    """Two samples in a training of 2 s, which they do not span."""
    found = one(training_time=2.0, samples=[(3.5, 50.0, 10.0), (4.5, 50.0, 10.0)], returns=[(4.0, 20.0)])
    assert (found["machine_cpu_integral"], found["machine_cpu_mean"]) == (100.0, 50.0)
    assert (found["machine_memory_integral"], found["machine_memory_mean"]) == (20.0, 10.0)
    assert (found["return_integral"], found["return_mean"]) == (40.0, 20.0)


# Training is from 3 to 7 s and from 9 to 15 s. The job uses half a core in training, and ten cores otherwise.
EVALUATED: dict[str, Any] = {
    "evaluations": [(7.0, 2.0), (15.0, 1.0)],
    "returns": [(5.0, 10.0), (11.0, 30.0)],
    "samples": [
        (3.0, 900.0, 10.0, 30.0), (5.0, 50.0, 10.0, 31.0), (7.0, 50.0, 10.5, 32.0), (8.0, 900.0, 90.0, 42.0), (9.0, 900.0, 10.0, 52.0),
        (12.0, 100.0, 10.0, 53.5), (15.0, 100.0, 10.0, 55.0), (16.0, 900.0, 90.0, 65.0), (17.0, 900.0, 90.0, 75.0),
    ],
}  # fmt: skip


def test_only_training_counts() -> None:
    """Neither what is before the first step, nor evaluations, nor what follows the last step."""
    found = one(**EVALUATED)
    assert found["machine_cpu_mean"] == pytest.approx((4 * 50 + 6 * 100) / 10)
    assert found["machine_cpu_integral"] == pytest.approx(800)
    assert found["machine_cpu_per_step"] == pytest.approx(80 * 10 / 100)
    assert (found["own_cores"], found["cpu_per_step"]) == pytest.approx((0.5, 0.5 * 10 / 100))
    assert found["time_per_step"] == 0.1
    assert found["machine_memory_mean"] == pytest.approx((2 * 10 + 2 * 10.5 + 6 * 10) / 10)
    assert found["machine_memory_range"] == found["memory_range"] == pytest.approx(1.05)
    # The returns at 2 s and at 6 s of training; the first and the last one are held.
    assert found["return_mean"] == pytest.approx((2 * 10 + 4 * 20 + 4 * 30) / 10)


def test_an_interval_of_which_a_part_was_no_training_says_nothing_of_cpu_use() -> None:
    samples = [(3.0, 900.0, 10.0), (6.0, 50.0, 10.0), (8.0, 400.0, 10.0), (11.0, 300.0, 10.0), (13.1, 60.0, 10.0)]
    found = one(evaluations=[(7.0, 2.0), (15.0, 1.0)], samples=samples)
    assert found["machine_cpu_mean"] == pytest.approx((3 * 50 + 2.1 * 60) / 5.1)


def test_a_run_without_the_times_of_its_evaluations_has_them_in_its_values() -> None:
    old = EVALUATED | {"evaluations": [(NAN, 2.0), (NAN, 1.0)]}
    rows, episodes, samples = tables(old=old, new=EVALUATED)
    found = with_integrals(rows, episodes, samples).set_index("cell")["machine_cpu_mean"]
    # From 3 s to 16 s, the end of the last evaluation.
    assert found["old"] == pytest.approx((4 * 50 + 2 * 900 + 6 * 100 + 900) / 13)
    assert found["new"] == pytest.approx(80)
    known = clocks(rows, episodes)
    assert of_clocks(rows, known).startswith(" 1 of 2 runs have evaluations in these values")
    assert of_clocks(rows[:1], known).startswith(" The runs have")
    assert not of_clocks(rows[1:], known)


def test_a_requeued_run_ends_with_its_last_evaluation() -> None:
    """Its training time includes the earlier attempts."""
    found = one(**EVALUATED, resumed_step=50.0, training_time=100.0)
    assert found["machine_cpu_mean"] == pytest.approx(80)
    assert found["machine_cpu_integral"] == pytest.approx(8000)


def test_a_command_is_measured_from_its_start_to_its_end() -> None:
    samples = [(1.0, 10.0, 10.0), (4.0, 50.0, 10.0)]
    found = one(
        workload="command", setup_time=NAN, compile_time=NAN, evaluation_time=NAN, training_time=4.0, samples=samples
    )
    assert found["machine_cpu_mean"] == pytest.approx((1 * 10 + 3 * 50) / 4)


def on_two_nodes(later: float = 0.0, **changes: Any) -> pd.DataFrame:
    """Return the row of a run on two nodes with equal use: half a core in training, twenty after it. The second node's record begins later."""
    samples = [(3.0, 50.0, 10.0, 1.5), (8.0, 50.0, 10.0, 4.0), (13.0, 50.0, 10.0, 6.5), (18.0, 50.0, 10.0, 106.5)]
    rows, episodes, first = tables(one={"samples": samples, "tasks": 2.0, "records": 2})
    second = first.assign(rank=1, machine_cpu_percent=90.0, time=first["time"] - later, **changes)
    return with_integrals(rows, episodes, pd.concat([first, second], ignore_index=True))


@pytest.mark.parametrize("later", [0.0, 4.5])
def test_the_job_s_cpu_time_is_that_of_all_nodes(later: float) -> None:
    found = on_two_nodes(later)
    alone = with_integrals(*tables(one={"samples": [(3.0, 50.0, 10.0), (13.0, 50.0, 10.0)]}))
    assert found["cpu_per_step"].tolist() == pytest.approx([2 * alone["cpu_per_step"][0]])
    assert found["machine_cpu_mean"].tolist() == [50.0]  # the machine is that of the first rank


def test_the_share_of_the_cores_is_of_those_of_all_ranks() -> None:
    rows = on_two_nodes().assign(cpus=2, nodes=2, overcommit=False)
    assert with_shares(rows)["own_share"].tolist() == pytest.approx([1.0 / 4])
    # The ranks of one node share its two cores.
    assert with_shares(rows.assign(nodes=1, overcommit=True))["own_share"].tolist() == pytest.approx([1.0 / 2])


def test_a_node_that_was_not_measured_is_not_one_that_used_nothing() -> None:
    assert on_two_nodes(cpu_seconds=NAN)["cpu_per_step"].isna().all()
    lost = with_integrals(*tables(one={"samples": [(3.0, 50.0, 10.0), (13.0, 50.0, 10.0)], "tasks": 2.0, "records": 1}))
    assert lost["cpu_per_step"].isna().all()


def test_twice_the_time_is_twice_the_integral_and_the_same_mean() -> None:
    short = [(3.0 + number, 40.0, 10.0) for number in range(5)]
    long = [(3.0 + 2 * number, 40.0, 10.0) for number in range(5)]
    rows = with_integrals(
        *tables(short={"samples": short, "training_time": 4.0}, long={"samples": long, "training_time": 8.0})
    )
    assert rows["machine_cpu_integral"].tolist() == [160.0, 320.0]
    assert rows["machine_cpu_mean"].tolist() == [40.0, 40.0]


def test_a_run_without_a_point_in_training_has_no_value() -> None:
    rows = with_integrals(
        *tables(one={"returns": [(2.0, 10.0)]}, two={"samples": [(1.0, 50.0, 1.0), (5.0, 50.0, 1.0)]}, three={"setup_time": NAN})
    )  # fmt: skip
    assert rows[["return_integral", "machine_cpu_mean", "memory_range", "cpu_per_step"]].isna().all().all()


def test_time_is_counted_from_the_start_of_training_without_evaluations() -> None:
    rows, episodes, _ = tables(
        one={"returns": [(2.0, 1.0), (3.5, 2.0), (8.0, 3.0), (10.0, 4.0), (15.5, 5.0)], "evaluations": [(7.0, 2.0), (15.0, 1.0)]}
    )  # fmt: skip
    returns = episodes[episodes["kind"] == "train"]
    found = in_training(clocks(rows, episodes), returns)
    assert found[["time", "value"]].to_numpy().tolist() == [[0.5, 2.0], [5.0, 4.0]]


def test_the_last_return_is_of_training_episodes_in_the_last_tenth_of_the_steps() -> None:
    returns = [(4.0, -300.0), (5.0, -60.0), (6.0, -40.0), (7.0, 5.0)]
    rows, episodes, _ = tables(one={"returns": returns}, two={"returns": [(4.0, 1.0)]})
    episodes = episodes.assign(step=[90, 91, 100, 95, 50], kind=["train", "train", "train", "evaluation", "train"])
    first, second = with_last_returns(rows, episodes)["last_return"]
    assert first == -50.0
    assert np.isnan(second)


def test_updates_of_the_first_rank_with_their_transfers_are_counted_by_step() -> None:
    rows, _, _ = tables(one={}, resumed={}, fused={})
    rows = rows.assign(resumed_step=[np.nan, 50.0, np.nan])
    phases = pd.DataFrame(
        [
            KEYS | {"cell": cell, "rank": rank, "phase": phase, "seconds": seconds}
            for cell, rank, phase, seconds in (
                ("one", 0, "update", 2.0), ("one", 0, "transfer", 1.0), ("one", 0, "act", 9.0), ("one", 1, "update", 50.0),
                ("resumed", 0, "update", 4.0), ("fused", 0, "fused", 8.0),
            )
        ]
    )  # fmt: skip
    first, *others = with_updates(rows, phases)["update_per_step"]
    assert first == pytest.approx(0.03)
    assert np.isnan(others).all()
    assert with_updates(rows, phases.iloc[:0])["update_per_step"].isna().all()


def test_stepping_is_that_of_environments_alone() -> None:
    rows, _, _ = tables(one={}, resumed={}, steps={}, learns={})
    rows = rows.assign(
        resumed_step=[np.nan, 50.0, np.nan, np.nan],
        execution=["eager", "eager", "fused", "fused"],
        workload=["random_policy", "random_policy", "random_policy", "dqn"],
    )
    phases = pd.DataFrame(
        [
            KEYS | {"cell": cell, "rank": rank, "phase": phase, "seconds": seconds}
            for cell, rank, phase, seconds in (
                ("one", 0, "env_step", 2.0), ("one", 0, "act", 9.0), ("one", 1, "env_step", 50.0), ("resumed", 0, "env_step", 4.0),
                ("steps", 0, "fused", 0.5), ("steps", 0, "evaluate", 3.0), ("learns", 0, "fused", 8.0),
            )
        ]
    )  # fmt: skip
    assert with_stepping(rows, phases)["stepping_time"].tolist() == pytest.approx(
        [2.0, np.nan, 0.5, np.nan], nan_ok=True
    )
    assert with_stepping(rows, phases.iloc[:0])["stepping_time"].isna().all()
