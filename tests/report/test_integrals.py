from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from hpcrl.report.integrals import integral, since_training, with_integrals, with_last_returns, with_updates

KEYS = {"plan": "p", "attempt": "a"}


def tables(**cells: dict[str, Any]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return attempts, episodes and samples. Training starts after 3 s."""
    rows, episodes, samples = [], [], []
    for cell, of in cells.items():
        key = KEYS | {"cell": cell}
        rows.append(key | {"setup_time": 2.0, "compile_time": 1.0, "training_time": 10.0, "steps": 100.0})
        for time, value in of.get("returns", ()):
            episodes.append(key | {"name": "return", "kind": "train", "time": time, "value": value})
        for time, cpu, memory in of.get("samples", ()):
            samples.append(
                key | {"rank": 0, "time": time, "machine_cpu_percent": cpu, "machine_memory_percent": memory,
                       "cpu_seconds": time / 2, "pss": 10 * memory}
            )  # fmt: skip
    names = [*KEYS, "cell", "rank", "time", "machine_cpu_percent", "machine_memory_percent", "cpu_seconds", "pss"]
    columns = [*KEYS, "cell", "name", "kind", "time", "value"]
    return pd.DataFrame(rows), pd.DataFrame(episodes, columns=columns), pd.DataFrame(samples, columns=names)


def test_an_integral_is_that_of_trapezoids_and_the_mean_is_over_time() -> None:
    assert integral(np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0, 2.0])) == pytest.approx((5.0, 5 / 3))
    assert np.isnan(integral(np.array([1.0]), np.array([2.0]))).all()
    assert np.isnan(integral(np.array([1.0, 1.0]), np.array([2.0, 3.0]))).all()


def test_only_training_counts() -> None:
    samples = [(1.0, 900.0, 90.0), (4.0, 50.0, 10.0), (8.0, 50.0, 10.5), (6.0, 100.0, 10.0)]
    rows = with_integrals(*tables(one={"returns": [(4.0, 10.0), (6.0, 30.0)], "samples": samples}))
    (found,) = rows.to_dict("records")
    assert (found["return_integral"], found["return_mean"]) == (40.0, 20.0)
    assert (found["machine_cpu_integral"], found["machine_cpu_mean"]) == (300.0, 75.0)
    assert found["machine_cpu_per_step"] == pytest.approx(75 * 10 / 100)
    assert found["cpu_per_step"] == pytest.approx(0.5 * 10 / 100)
    assert found["time_per_step"] == 0.1
    assert found["machine_memory_range"] == found["memory_range"] == pytest.approx(1.05)


def test_the_machine_is_that_of_the_first_rank() -> None:
    rows, episodes, samples = tables(one={"samples": [(4.0, 50.0, 10.0), (8.0, 50.0, 10.0)]})
    other = samples.assign(rank=1, machine_cpu_percent=90.0, time=samples["time"] + 1)
    found = with_integrals(rows, episodes, pd.concat([samples, other]))
    assert found["machine_cpu_integral"].tolist() == [200.0]


def test_twice_the_time_is_twice_the_integral_and_the_same_mean() -> None:
    short = [(3.0 + each, 40.0, 10.0) for each in range(5)]
    long = [(3.0 + 2 * each, 40.0, 10.0) for each in range(5)]
    rows = with_integrals(*tables(short={"samples": short}, long={"samples": long}))
    assert rows["machine_cpu_integral"].tolist() == [160.0, 320.0]
    assert rows["machine_cpu_mean"].tolist() == [40.0, 40.0]


def test_a_run_without_two_points_has_no_value() -> None:
    rows = with_integrals(
        *tables(one={"returns": [(4.0, 10.0)]}, two={"samples": [(1.0, 50.0, 1.0), (5.0, 50.0, 1.0)]})
    )
    assert rows[["return_integral", "machine_cpu_mean", "memory_range", "cpu_per_step"]].isna().all().all()


def test_time_is_counted_from_the_start_of_training() -> None:
    rows, episodes, _ = tables(one={"returns": [(2.0, 1.0), (3.5, 2.0)]})
    assert since_training(rows, episodes)[["time", "value"]].to_numpy().tolist() == [[0.5, 2.0]]


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
