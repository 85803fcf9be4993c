from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpcrl.collect.merge import collect
from hpcrl.report.axes import axes
from hpcrl.report.comparison import for_page, for_terminal
from hpcrl.report.groups import kinds, lines
from hpcrl.report.machines import in_one_line, measuring, not_alone, not_idle, provenance, side_by_side, uneven
from hpcrl.report.score import Score
from hpcrl.report.write import read_cells
from tests.builders import cells_of, dqn_study, planned, ranks_study, write_record
from tests.collect.gathering import no_slurm


def attempts(*spans: tuple[str, float, float], cluster: str = "c") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Attempts and their samples: the node, the start and the end of each."""
    keys = [{"plan": "p", "cell": str(number), "attempt": "a"} for number in range(len(spans))]
    cells = [
        {**key, "cluster": cluster, "started": start, "wall_time": end - start, "hardware": None}
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


def test_a_long_cell_is_beside_many_short_ones_of_which_none_is_long() -> None:
    short = [("n1", 60.0 * place, 60.0 * place + 60) for place in range(60)]
    cells, samples = attempts(("n1", 0, 3600), *short)
    assert side_by_side(cells, samples).all()
    # An end and a start on both sides are still none.
    cells, samples = attempts(("n1", 0, 100), ("n1", 98.5, 200), ("n1", 198.5, 300))
    assert not side_by_side(cells, samples).any()


@pytest.mark.parametrize("requeued", [False, True])
@pytest.mark.parametrize(("machine", "alone"), [(51.0, True), (90.0, False)])
def test_other_programs_are_noticed_also_beside_a_requeued_cell(requeued: bool, machine: float, alone: bool) -> None:
    """Its wall time and CPU seconds are not known as a whole."""
    row = {
        "cpus": 1,
        "tasks": 1,
        "nodes": 1,
        "hosts": 1,
        "overcommit": False,
        "threads": 2.0,
        "shared": False,
        "cpu_utilisation": 1.0,
    }
    times = {"wall_time": None, "cpu_seconds": None} if requeued else {"wall_time": 4.0, "cpu_seconds": 4.0}
    (note,) = not_alone(pd.DataFrame([row | times | {"machine_cpu_percent": machine}]))
    assert note == ("" if alone else "other programs ran on the machine at that time")


def test_the_cost_of_measuring_is_not_that_of_requeued_cells() -> None:
    """Their wall times are not known as a whole."""
    nan = float("nan")
    row = {"wall_time": 4.0, "nodes": 1, "sampler_cpu_seconds": 0.02, "sampler_memory": 2.0**20, "phase_time": 0.01, "clock_offset": nan}  # fmt: skip
    requeued, failed = row | {"wall_time": nan}, row | {"phase_time": nan}
    assert measuring(pd.DataFrame([requeued])) == "it is not known of requeued cells."
    assert "timing phases took 0.25% of the wall time" in measuring(pd.DataFrame([row, requeued]))
    assert "timing phases" not in measuring(pd.DataFrame([failed, requeued]))


def test_machines_of_which_one_has_all_that_the_other_has() -> None:
    """A cell by hand on the login node of the same kind names its host."""
    rows = pd.DataFrame({"cluster": "c", "machine": ["C, 2 threads", "C, 2 threads, host login1", ""]})
    assert kinds(rows, ["cluster"]).tolist() == ["", " (host login1)", " (unknown machine)"]


def test_machines_without_a_name_and_equal_names_of_two_clusters() -> None:
    cells, samples = attempts(("n1", 0, 100), ("n1", 0, 100))
    cells["cluster"] = ["a", "b"]
    assert not side_by_side(cells, samples).any()
    assert not side_by_side(cells, samples.iloc[:0]).any()


def test_nodes_of_one_host_are_one_machine() -> None:
    """As those of a private Slurm, and as a workstation beside it."""
    cells, samples = attempts(("n1", 0, 100), ("n2", 50, 150), ("w", 140, 240), ("n1", 300, 400))
    cells["cluster"] = ["a", "a", "b", "a"]
    machine = {"host": "lab", "cpu": "EPYC", "threads": 2, "memory": 1024**3, "kernel": "6.1"}
    cells["hardware"] = json.dumps(machine)
    assert side_by_side(cells, samples).tolist() == [True, True, True, False]
    # Another machine of the same name, and records without a host.
    others = [{**machine, "cpu": "Xeon"}, {**machine, "host": None}]
    for other in others:
        cells["hardware"] = [json.dumps(machine), json.dumps(other), json.dumps(machine), json.dumps(other)]
        assert not side_by_side(cells, samples).any()


@pytest.mark.parametrize(
    ("names", "hosts", "note"),
    [
        (("lab", "lab"), 1, ""),
        (("a", "b"), 2, "other programs ran on the machine at that time"),
        (("a", None), None, "other programs ran on the machine at that time"),
    ],
)
def test_two_nodes_of_one_host_are_not_two_machines(
    tmp_path: Path, names: tuple[str | None, ...], hosts: int | None, note: str
) -> None:
    """Both ranks of a cell keep a core busy: of one machine with two threads that is all, of two such machines it is a half."""
    plan = planned(tmp_path / "p", ranks_study(2, nodes=2), "sol")
    (cell,) = cells_of(plan)
    machine = {"cpu": "C", "threads": 2, "memory": 1024**3, "gpus": [], "kernel": "6.1"}
    for rank, name in enumerate(names):
        header = {"hardware": machine | ({"host": name} if name else {})}
        busy = {"machine_cpu_percent": 100.0}
        write_record(
            plan, cell, "7_0-0", rank=rank, ranks=2, node=f"n{rank}", samples=busy, header=header, own_cpu_seconds=4.0
        )
    collect([plan], tmp_path / "d", no_slurm())
    rows = read_cells(tmp_path / "d", None)
    (row,) = rows.to_dict("records")
    assert (row["nodes"], row["wall_time"], row["cpu_seconds"]) == (2, 4.0, 8.0)
    assert row["hosts"] == hosts or (hosts is None and pd.isna(row["hosts"]))
    assert not_alone(rows).tolist() == [note]


def test_the_machines_in_one_line() -> None:
    hardware: dict[str, Any] = {"cpu": "EPYC", "threads": 2, "memory": 24 * 1024**3, "gpus": []}
    rows = pd.DataFrame({"cluster": ["w", "w"], "hardware": [json.dumps(hardware), None]})
    assert in_one_line(rows) == "w: EPYC, 2 threads, 24 GiB, no GPU"


def of_two_platforms(tmp_path: Path) -> Path:
    """A workstation's and a cluster's cells in one dataset; two of the three seeds shared the workstation."""
    machine = {"cpu": "C", "threads": 2, "memory": 1024**3, "gpus": [], "kernel": "6.1"}
    own = {"os": "Ubuntu", "os_version": "20.04", "virtual": "virtual machine VMware, Inc."}
    there = {"os": "Red Hat Enterprise Linux", "os_version": "8.4", "virtual": "no"}
    plans = []
    for cluster, seeds, system, idle in (
        ("workstation", 3, own, {"idle_cpu_percent": 1.5, "idle_memory_percent": 13.69}),
        ("cirrus", 1, there, {"idle_cpu_percent": 0.0, "idle_memory_percent": 0.0}),
    ):
        plan = planned(tmp_path / cluster, dqn_study(seeds=seeds), cluster)
        for number, cell in enumerate(cells_of(plan)):
            header = {"hardware": machine | system, "started": 1.0 if number < 2 else 100.0, **idle}
            write_record(plan, cell, f"local-{number}" if cluster == "workstation" else f"{number}_0-0", header=header)
        plans.append(plan)
    collect(plans, tmp_path / "d", no_slurm())
    return tmp_path / "d"


def test_two_platforms_are_side_by_side_with_their_systems_and_their_idle_load(tmp_path: Path) -> None:
    dataset = of_two_platforms(tmp_path)
    found = {each["cluster"]: each for each in provenance(read_cells(dataset, None))}
    assert found["workstation"]["machine"].endswith("Ubuntu 20.04, Linux 6.1, virtual machine VMware, Inc.")
    assert found["cirrus"]["machine"].endswith("Red Hat Enterprise Linux 8.4, Linux 6.1")
    assert found["workstation"]["idle"] == "CPU 1.5 %, memory 13.7 %"
    assert found["cirrus"]["idle"] == "CPU 0.0 %, memory 0.0 %"


def test_the_machine_is_an_axis_where_slurm_has_chosen_among_several_kinds(tmp_path: Path) -> None:
    rows = read_cells(of_two_platforms(tmp_path), None)
    assert "machine" not in axes(rows)  # each cluster has one kind
    own = rows[rows["cluster"] == "workstation"].assign(machine="C, 2 threads")
    both = pd.concat([own, own.assign(machine="D, 2 threads")], ignore_index=True)
    assert set(axes(both)["machine"]) == {"C", "D"}
    assert "machine" not in axes(both.assign(gpus=[0] * len(own) + [1] * len(own)))  # the GPU is another machine anyway


def test_the_load_above_idle_is_of_cells_that_had_the_machine_alone(tmp_path: Path) -> None:
    rows = read_cells(of_two_platforms(tmp_path), None)
    rows["machine_cpu_percent"] = rows["machine_cpu_percent"].where(~rows["shared"], 99.0)
    rows["machine_memory_percent"] = 20.0
    above = {line.cluster: (line.cpu_above, round(line.memory_above or 0, 2)) for line in lines(rows)}
    assert above == {"cirrus": (50, 20), "workstation": (48.5, 6.31)}
    compared = lines(rows)
    table = for_page(compared, rows, axes(rows), Score())
    assert table.columns[-2:] == ["machine CPU above idle (%)", "machine memory above idle (%)"]
    assert [(row[0], *row[-2:]) for row in table.rows] == [("cirrus", "50", "20"), ("workstation", "48.5", "6.31")]
    assert not any("idle" in name for name in for_terminal(compared)[0])
    without = rows.assign(idle_cpu_percent=None, idle_memory_percent=None)
    assert not any("idle" in name for name in for_page(lines(without), without, axes(without), Score()).columns)


def test_a_machine_that_was_slower_at_one_time_is_told(tmp_path: Path) -> None:
    """A virtual machine of the same name may be another one: only the calibrations tell."""
    rows = read_cells(of_two_platforms(tmp_path), None)
    rows = rows[rows["cluster"] == "workstation"].reset_index(drop=True)
    quick = rows.assign(calibration_python=124.0)
    slow = rows.assign(calibration_python=67.0, environment="other")
    assert uneven(quick) == []
    assert uneven(rows.assign(calibration_python=None)) == []
    both = pd.concat([quick, slow], ignore_index=True)
    (sentence,) = uneven(both)
    assert "1.9 times as fast at one time as at another (67 to 124 M turns/s)" in sentence
    assert uneven(both.assign(machine=["C"] * len(rows) + ["D"] * len(rows))) == []
    versions = [json.dumps({"python": each}) for each in ("3.11.7", "3.7.9")]
    assert uneven(both.assign(versions=[versions[0]] * len(rows) + [versions[1]] * len(rows))) == []
    (told,) = provenance(both.assign(environment="one"))
    assert told["speed"].startswith("67 to 124 M turns/s")


def test_a_machine_that_was_not_idle_when_that_was_measured_is_told(tmp_path: Path) -> None:
    rows = read_cells(of_two_platforms(tmp_path), None)
    assert not_idle(rows) == []
    assert not_idle(rows.assign(idle_cpu_percent=None)) == []
    threads = float(rows["threads"].iloc[0])
    own = rows[rows["cluster"] == "workstation"]
    (sentence,) = not_idle(own.assign(idle_cpu_percent=[100 / threads, 60 / threads, 40 / threads]))
    assert sentence.startswith("workstation, ")
    assert f"up to 1.0 of its {threads:.0f} threads when the idle machine was measured, before 2 cells" in sentence


def test_two_nodes_of_one_name_are_not_one_at_two_times(tmp_path: Path) -> None:
    rows = read_cells(of_two_platforms(tmp_path), None)
    rows = rows[rows["cluster"] == "workstation"].assign(calibration_python=[70.0, 100.0, 100.0])
    hardware = json.loads(rows["hardware"].iloc[0])
    for hosts, text in (
        (["a", "b", "b"], "on one node or at one time as on another"),
        (["a"] * 3, "at one time as at another"),
    ):
        (said,) = uneven(rows.assign(hardware=[json.dumps(hardware | {"host": host}) for host in hosts]))
        assert f"the machine was 1.4 times as fast {text} (70 to 100 M turns/s)" in said


def test_every_version_of_the_software_and_whose_speed_it_is(tmp_path: Path) -> None:
    """A user's own environment keeps its key when it is updated, and the matrix product is on all cores of a cell."""
    rows = read_cells(of_two_platforms(tmp_path), None)
    rows = rows[rows["cluster"] == "workstation"]
    versions = [json.dumps({"torch": each}) for each in ("2.3", "2.4", "2.4")]
    (told,) = provenance(rows.assign(versions=versions, calibration_matrix=[55.0, 420.0, 420.0]))
    assert told["software"] == "torch 2.3 · or: torch 2.4"
    assert told["speed"] == "55 to 420 GFLOP/s on the cell's cores"
