from __future__ import annotations

import json
from typing import Any

import pandas as pd

from hpcrl.report.machines import in_one_line, side_by_side


def attempts(*spans: tuple[str, float, float], cluster: str = "c") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Attempts and their samples: the node, the start and the end of each."""
    keys = [{"plan": "p", "cell": str(number), "attempt": "a"} for number in range(len(spans))]
    cells = [
        {**key, "cluster": cluster, "started": start, "wall_time": end - start}
        for key, (_, start, end) in zip(keys, spans, strict=True)
    ]
    samples = [{**key, "node": node} for key, (node, _, _) in zip(keys, spans, strict=True)]
    return pd.DataFrame(cells), pd.DataFrame(samples * 3)


def test_cells_that_ran_at_once_on_one_machine_are_found() -> None:
    cells, samples = attempts(("n1", 0, 100), ("n1", 50, 150), ("n2", 0, 150), ("n1", 200, 300))
    assert side_by_side(cells, samples).tolist() == [True, True, False, False]


def test_a_long_cell_is_beside_all_short_ones() -> None:
    cells, samples = attempts(("n1", 0, 100), ("n1", 10, 20), ("n1", 30, 40), ("n1", 100, 110))
    assert side_by_side(cells, samples).tolist() == [True, True, True, False]


def test_one_s_end_and_the_next_one_s_start_are_not_side_by_side() -> None:
    cells, samples = attempts(("n1", 0, 100), ("n1", 99, 200))
    assert not side_by_side(cells, samples).any()


def test_machines_without_a_name_and_equal_names_of_two_clusters() -> None:
    cells, samples = attempts(("n1", 0, 100), ("n1", 0, 100))
    cells["cluster"] = ["a", "b"]
    assert not side_by_side(cells, samples).any()
    assert not side_by_side(cells, samples.iloc[:0]).any()


def test_the_machines_in_one_line() -> None:
    hardware: dict[str, Any] = {"cpu": "EPYC", "threads": 2, "memory": 24 * 1024**3, "gpus": []}
    rows = pd.DataFrame({"cluster": ["w", "w"], "hardware": [json.dumps(hardware), None]})
    assert in_one_line(rows) == "w: EPYC, 2 threads, 24 GiB, no GPU"
