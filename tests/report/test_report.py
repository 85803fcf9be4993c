from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.errors import UsageError
from hpcrl.formats.outcomes import NOT_BY_ITSELF
from hpcrl.report.axes import axes
from hpcrl.report.comparison import for_page, for_terminal
from hpcrl.report.curves import returns
from hpcrl.report.groups import lines, with_groups
from hpcrl.report.score import Score
from hpcrl.report.sections import failed
from hpcrl.report.write import write_report
from tests.builders import cells_of, command_study, dqn_study, planned, ranks_study, write_record
from tests.collect.gathering import no_slurm, rewritten


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    study = dqn_study(axes={"framework": ["numpy", "torch"]}, seeds=2)
    plan = planned(tmp_path / "p", study)
    for number, cell in enumerate(cells_of(plan)):
        write_record(
            plan, cell, returns=(10.0, 20.0, 30.0), final_score=100.0 * number, goal_step=20 if number else None
        )
    collect([plan], tmp_path / "d", no_slurm())
    return tmp_path / "d"


def test_a_cell_of_several_plans_is_one_seed(tmp_path: Path) -> None:
    plans = [planned(tmp_path / name, dqn_study(seeds=2, title=name)) for name in ("monday", "tuesday")]
    for plan, score in zip(plans, (100.0, 200.0), strict=True):
        for cell in cells_of(plan):
            write_record(plan, cell, final_score=score)
    collect(plans, tmp_path / "d", no_slurm())
    cells = hpcrl.load(tmp_path / "d")
    cells["started"] = cells["final_score"]  # the order of plans is that of their ids
    (line,) = lines(with_groups(cells))
    assert line.final is not None
    assert (line.cells, line.final.value) == (2, 200.0)
    page = write_report(tmp_path / "d", None, tmp_path / "r", ()).html.read_text()
    assert "run in several plans or software environments; the latest run counts (2 cells)" in page


def test_a_seed_in_another_software_environment_is_no_further_seed(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    for cell in cells_of(plan):
        write_record(plan, cell)
    collect([plan], tmp_path / "d", no_slurm())
    cells = hpcrl.load(tmp_path / "d").assign(started=1.0, final_score=1.0)
    other = cells.assign(plan="other", cell="other " + cells["cell"], environment="newer", started=2.0, final_score=2.0)
    both = pd.concat([cells, other], ignore_index=True)
    rows = with_groups(both)
    assert rows[["seed", "final_score", "repeats"]].to_numpy().tolist() == [[1, 2, 2], [2, 2, 2]]
    assert len(with_groups(both.assign(seed=None))) == 4  # nothing tells which of them are one


def test_memory_and_time_as_axes_are_lines_of_their_own(tmp_path: Path) -> None:
    axes = {"framework": ["numpy"], "memory": ["1G", "2560M"], "time": ["00:05:00", "00:10:00"]}
    plan = planned(tmp_path / "p", dqn_study(axes=axes, seeds=2))
    for cell in cells_of(plan):
        write_record(plan, cell)
    collect([plan], tmp_path / "d", no_slurm())
    told = lines(with_groups(hpcrl.load(tmp_path / "d")))
    assert [(line.where, line.cells) for line in told] == [
        (f"1 core, {memory} GiB, at most {seconds} s", 2) for memory in ("1", "2.5") for seconds in (300, 600)
    ]


def hardware(cpu: str, host: str) -> str:
    return json.dumps({"cpu": cpu, "threads": 2, "gpus": [], "host": host})


@pytest.mark.parametrize("slurm", [False, True])
def test_two_kinds_of_machine_are_two_lines(tmp_path: Path, slurm: bool) -> None:
    """The same plan on two machines: one seed each time, and not two; where nothing is known of a machine, that is said."""
    plan = planned(tmp_path / "p", dqn_study(seeds=3))
    for cell in cells_of(plan):
        for job in ("4_0", "5_0"):
            write_record(plan, cell, job if slurm else f"local-{job}")
    collect([plan], tmp_path / "d", no_slurm())
    cells = hpcrl.load(tmp_path / "d")
    second = cells["attempt"].str.contains("5_")
    cells["latest"] = second  # the second machine's runs are newer
    cells["hardware"] = [hardware("X", "b") if each else hardware("X", "a") for each in second]
    alike = lines(with_groups(cells))
    if slurm:  # two nodes of one kind
        assert [line.cells for line in alike] == [3]
        cells["hardware"] = [hardware("Y" if each else "X", "a") for each in second]
        apart = lines(with_groups(cells))
        assert [(line.cluster, line.where, line.cells) for line in apart] == [
            ("workstation", "1 core (X)", 3),
            ("workstation", "1 core (Y)", 3),
        ]
        cells.loc[cells.index[second][0], ["hardware", "outcome"]] = [None, "failed"]
        assert "1 core (unknown machine)" in {line.where for line in lines(with_groups(cells))}
    else:
        assert [(line.cluster, line.cells) for line in alike] == [
            ("workstation (host a)", 3),
            ("workstation (host b)", 3),
        ]


@pytest.mark.parametrize(
    ("outcome", "counts"), [("cancelled", False), ("node_fail", False), ("timeout", True), ("oom", True)]
)
def test_a_cell_that_was_ended_from_outside_and_completed_elsewhere(tmp_path: Path, outcome: str, counts: bool) -> None:
    """Of two plans and two machines: a time limit or too little memory is a result of the cell on its machine."""
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    for cell in cells_of(plan):
        write_record(plan, cell, "4_0")
    collect([plan], tmp_path / "d", no_slurm())
    here = hpcrl.load(tmp_path / "d").assign(hardware=hardware("X", "a"), started=1.0, outcome=outcome)
    there = here.assign(plan="other", hardware=hardware("Y", "b"), started=2.0, outcome="completed")
    for started in (0.5, 3.0):  # before and after
        rows = with_groups(pd.concat([here.assign(started=started), there], ignore_index=True))
        assert list(rows["outcome"]) == [outcome] * 2 * counts + ["completed"] * 2
    assert list(with_groups(here)["outcome"]) == [outcome] * 2


@pytest.mark.parametrize(
    ("before", "now", "counts"),
    [
        ("completed", "cancelled", "completed"),
        ("completed", "running", "completed"),
        ("failed", "cancelled", "failed"),
        ("failed", "running", "running"),
        ("cancelled", "lost", "lost"),
        ("completed", "timeout", "timeout"),
    ],
)
def test_an_attempt_that_was_ended_from_outside_does_not_hide_an_earlier_one(
    tmp_path: Path, before: str, now: str, counts: str
) -> None:
    """All in one plan, on one machine. What is ended from outside may leave no record."""
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    for cell in cells_of(plan):
        write_record(plan, cell, "4_0")
    collect([plan], tmp_path / "d", no_slurm())
    first = hpcrl.load(tmp_path / "d").assign(outcome=before, latest=False)
    newer = first.assign(attempt="5_0", attempt_number=2, outcome=now, latest=True)
    without = newer.assign(hardware=None, started=None)
    for second in (newer, without) if now in NOT_BY_ITSELF else (newer,):
        assert list(with_groups(pd.concat([first, second], ignore_index=True))["outcome"]) == [counts] * 2
    profiled = first.assign(profile="cprofile")  # by hand: no result of the cell
    assert list(with_groups(pd.concat([profiled, newer], ignore_index=True))["outcome"]) == [now] * 2


def test_the_gpus_and_the_cores_of_a_workstation_are_of_one_cluster(tmp_path: Path) -> None:
    """A cell sees only the GPUs that it asked for, so the records of one host do not name the same hardware."""
    plan = planned(tmp_path / "p", dqn_study(seeds=4))
    for cell in cells_of(plan):
        write_record(plan, cell, "local-4_0")
    collect([plan], tmp_path / "d", no_slurm())
    cells = hpcrl.load(tmp_path / "d")
    cells["gpus"] = [0, 0, 1, 1]
    cells["hardware"] = [
        json.dumps({"cpu": "X", "threads": 2, "gpus": ["H"] * each, "host": "a"}) for each in cells["gpus"]
    ]
    told = lines(with_groups(cells))
    assert [(line.cluster, line.where, line.cells) for line in told] == [
        ("workstation", "1 core", 2),
        ("workstation", "1 core, 1 GPU", 2),
    ]


def test_ranks_on_one_node_and_on_two_are_two_lines(tmp_path: Path) -> None:
    sizes = [{"tasks": 2, "nodes": nodes, "parallelism": "native"} for nodes in (1, 2)]
    study = ranks_study(2)
    plan = planned(tmp_path / "p", study | {"axes": study["axes"] | {"size": sizes}, "seeds": 3}, "sol")
    for cell in cells_of(plan):
        write_record(plan, cell, training_time=float(cell["resources"]["nodes"]))
    collect([plan], tmp_path / "d", no_slurm())
    found = lines(with_groups(hpcrl.load(tmp_path / "d")))
    assert [(line.where, line.cells, line.training and line.training.value) for line in found] == [
        ("2 × 1 core, native, 1 node", 3, pytest.approx(1)),
        ("2 × 1 core, native, 2 nodes", 3, pytest.approx(2)),
    ]


def test_the_last_attempt_of_a_requeued_cell_is_not_all_of_its_wall_time(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=3))
    for cell, resumed in zip(cells_of(plan), (None, None, 10), strict=True):
        write_record(plan, cell, resumed_step=resumed)
    collect([plan], tmp_path / "d", no_slurm())
    (line,) = lines(with_groups(hpcrl.load(tmp_path / "d")))
    assert (line.cells, line.wall and line.wall.value, line.training and line.training.value) == (
        3,
        4.0,
        pytest.approx(3),
    )
    rows = with_groups(hpcrl.load(tmp_path / "d"))
    assert sorted(rows["wall_time"].isna()) == [False, False, True]


def test_a_line_is_over_seeds(dataset: Path) -> None:
    first, second = lines(with_groups(hpcrl.load(dataset)))
    assert first.final is not None
    assert second.final is not None
    assert (first.what, first.cells, first.final.value, first.at_goal) == ("NumPy eager", 2, 50, 1)
    assert (first.final.low, first.final.high) == (0, 100)
    assert (second.what, second.final.value, second.at_goal, second.goal_step) == ("PyTorch eager", 250, 2, 20)


def test_a_goal_that_no_seed_reached_is_told_from_no_goal(dataset: Path) -> None:
    rows = with_groups(hpcrl.load(dataset).assign(goal_step=None))
    compared = lines(rows)
    for has_goal in (True, False):
        table = for_page(compared, rows, axes(rows), Score(), has_goal)
        heads, texts = for_terminal(compared, True, {"short"} if has_goal else ())
        assert ("at goal" in table.columns) == ("at goal" in heads) == has_goal
        if has_goal:
            assert [row[table.columns.index("at goal")] for row in table.rows] == ["0 of 2"] * 2
            assert [row[heads.index("at goal")] for row in texts] == ["0 of 2"] * 2


def test_curves_are_cut_where_the_shortest_seed_ends() -> None:
    keys = {
        "plan": "p", "attempt": "a", "study": "s", "cluster": "c", "what": "w", "where": "h", "colour": "w", "dash": "", "apart": "",
        "hex": "#000000", "line": "w", "setup_time": 2.0, "compile_time": float("nan"), "workload": "dqn", "resumed_step": None,
    }  # fmt: skip
    rows = pd.DataFrame([{**keys, "cell": "1"}, {**keys, "cell": "2"}, {**keys, "cell": "3"}])
    episodes = pd.DataFrame(
        {
            "plan": "p", "attempt": "a", "rank": 0, "kind": "train", "name": "return",
            "cell": ["1"] * 3 + ["2"] * 5 + ["3"] * 4, "time": [1.0, 2, 3, 1, 2, 3, 4, 5, 1, 2, 3, 4],
            "value": [1.0, 1, 1, 3, 3, 3, 3, 3, 11, 11, 11, 11],
        }
    )  # fmt: skip
    found = returns(rows, episodes, "time", points=5)
    assert (found["x"].min(), found["x"].max()) == (1, 3)
    np.testing.assert_allclose(found["median"], 3)
    np.testing.assert_allclose(found["low"], 1)
    np.testing.assert_allclose(found["high"], 11)
    assert set(found["seeds"]) == {3}
    assert set(found["level"]) == {0.75}
    command = returns(rows.assign(workload="command"), episodes, "time", points=5)
    assert command["x"].min() == 1  # a command's times are from the start already


def test_the_report_is_whole_and_needs_no_network(dataset: Path, tmp_path: Path) -> None:
    done = write_report(dataset, None, tmp_path / "r")
    text = done.html.read_text()
    for title in (
        "Final score",
        "Training time",
        "CPU, RAM and GPU utilisation",
        "Return against environment steps",
        "Return against time",
    ):
        assert title in text
    assert "NumPy eager" in text
    markup = text.partition("<script>")[0]
    assert "http" not in markup
    assert 'src="' not in markup
    figures = sorted(path.name for path in (tmp_path / "r/figures").iterdir())
    stems = {name.partition(".")[0] for name in figures}
    assert figures == sorted(f"{stem}.{kind}" for stem in stems for kind in ("png", "svg", "pdf"))
    assert (tmp_path / "r/figures/short-final-score.pdf").read_bytes().startswith(b"%PDF")
    assert min((tmp_path / "r/figures" / name).stat().st_size for name in figures) > 4000
    latex = (tmp_path / "r/short.tex").read_text()
    assert r"\toprule" in latex and "NumPy eager &" in latex and r"CPU (\%)" in latex
    summary = pd.read_csv(tmp_path / "r/summary.csv")
    assert list(summary["score_median"]) == [50, 250]
    assert list(summary["score_low"]) == [0, 200]
    assert list(summary["training_seconds_geometric_mean"].round(6)) == [3, 3]
    words = {"study", "cluster", "configuration", "resources"}
    for column in set(summary.columns) - words:
        assert pd.api.types.is_numeric_dtype(summary[column]), column
    assert len(done.rows) == 2


def test_failed_cells_stay_in_the_report(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    write_record(plan, cells_of(plan)[0], outcome="timeout", reason="</script><b>late</b>", final_score=None)
    collect([plan], tmp_path / "d", no_slurm())
    text = write_report(tmp_path / "d", None, tmp_path / "r").html.read_text()
    assert "1 cells did not complete" in text
    assert "&lt;/script&gt;&lt;b&gt;late" in text
    assert "<b>late" not in text


@pytest.mark.parametrize(
    ("facts", "offset", "said"),
    [
        ({}, None, "no sampler ran."),
        (
            {"sampler_cpu": 0.02, "sampler_memory": 20.0 * 2**20, "phase_time": 0.01},
            -0.0021,
            "the sampler took 0.50% of one core of each node, including its start, and at most 20 MiB; timing phases took 0.25% of "
            "the wall time; the nodes' clocks differed by at most 2.1 ms, and the times of samples are corrected for it.",
        ),
    ],
)
def test_what_measuring_cost_is_said(facts: dict[str, float], offset: float | None, said: str, tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    for cell in cells_of(plan):
        with rewritten(write_record(plan, cell), clock_offset=offset) as writer:
            writer.write("footer", {"outcome": "completed", "wall_time": 4.0, **facts})
    collect([plan], tmp_path / "d", no_slurm())
    assert f"Cost of measuring: {said}" in html.unescape(
        write_report(tmp_path / "d", None, tmp_path / "r").html.read_text()
    )


def test_what_cannot_be_reported(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no study 'shrot'; did you mean 'short'"):
        write_report(dataset, "shrot", tmp_path / "r")
    collect([planned(tmp_path / "empty", dqn_study(seeds=5))], tmp_path / "none", no_slurm())
    with pytest.raises(UsageError, match="holds no attempt yet"):
        write_report(tmp_path / "none", None, tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_many_configurations(tmp_path: Path) -> None:
    """More rows than Altair allows by itself, more lines than a figure has room for."""
    study = dqn_study(axes={"framework": ["numpy"], "batch_size": list(range(1, 81))}, seeds=2)
    plan = planned(tmp_path / "p", study)
    for number, cell in enumerate(cells_of(plan)):
        write_record(plan, cell, returns=(10.0, 20.0, 30.0), final_score=float(number), training_time=1.0 + number)
    collect([plan], tmp_path / "d", no_slurm())
    done = write_report(tmp_path / "d", None, tmp_path / "r", formats=())
    assert len(done.rows) == 80
    text = done.html.read_text()
    assert "the 12 fastest of 80 configurations" in text
    assert "20 of 80 configurations are drawn" in text
    names = [row[0] for row in done.rows]
    assert names.index("NumPy eager batch_size 9") < names.index("NumPy eager batch_size 10")


def test_settings_that_an_algorithm_determines_are_no_part_of_a_name(tmp_path: Path) -> None:
    algorithms = [
        {"algorithm": "ppo", "environments": 4, "minibatch_size": 64},
        {"algorithm": "dqn", "batch_size": 32},
        {"algorithm": "dqn"},
    ]
    axes = {"algorithm": algorithms, "learning_rate": [0.1, 0.2], "framework": ["torch"], "execution": ["eager"]}
    study = dqn_study(axes=axes, seeds=1, workload={"environment": "CartPole-v1"})
    plan = planned(tmp_path / "p", study)
    for cell in cells_of(plan):
        write_record(plan, cell)
    collect([plan], tmp_path / "d", no_slurm())
    whats = {line.what for line in lines(with_groups(hpcrl.load(tmp_path / "d")))}
    names = ("DQN PyTorch eager", "DQN PyTorch eager batch_size 32", "PPO PyTorch eager")
    assert whats == {f"{name} learning_rate {rate}" for name in names for rate in ("0.1", "0.2")}
    page = write_report(tmp_path / "d", None, tmp_path / "r", ()).html.read_text()
    assert ". PPO with environments 4, minibatch size 64. " in page


@pytest.mark.parametrize(
    ("configs", "names"),
    [
        ([{"algorithm": "rainbow"}, {"algorithm": "rainbow", "n_step": 5}], ["Rainbow", "Rainbow n_step 5"]),
        (
            [{"topology": "collective", "actors": 4}, {"topology": "collective", "actors": 4, "overlap": False}],
            ["collective actors 4", "collective actors 4 overlap false"],
        ),
        ([{"frequency": 2400000.5}, {"frequency": 2400001.5}], ["frequency 2400000.5", "frequency 2400001.5"]),
        ([{"frequency": 2400000.5}, {"frequency": 0.1 + 0.2}], ["frequency 0.3", "frequency 2.4e+06"]),
    ],
)
def test_two_configurations_have_two_names(dataset: Path, configs: list[dict[str, Any]], names: list[str]) -> None:
    cells = hpcrl.load(dataset).head(2).assign(config=[json.dumps(each) for each in configs], seed=1)
    found = lines(with_groups(cells))
    assert [(line.what, line.cells) for line in found] == [(name, 1) for name in names]


def test_an_infinite_score_is_no_score(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_study(["true"], seeds=3, score="loss", better="higher"))
    for cell in cells_of(plan):
        losses = {1: [float("-inf"), float("inf")], 2: [2.0, 1.0, float("inf")], 3: [3.0]}[cell["config"]["seed"]]
        reported = [
            {"time": float(time), "step": None, "values": {"loss": loss}} for time, loss in enumerate(losses, start=1)
        ]
        write_record(plan, cell, returns=(), reported=reported, final_score=None)
    collect([plan], tmp_path / "d", no_slurm())
    cells = hpcrl.load(tmp_path / "d").set_index("seed", drop=False)
    assert cells["final_score"].dropna().to_dict() == {2: 1.0, 3: 3.0}
    assert cells["best_score"].dropna().to_dict() == {2: 2.0, 3: 3.0}
    older = cells.assign(final_score=cells["seed"].map({1: float("inf"), 2: float("-inf"), 3: 3.0}))
    assert with_groups(older)["final_score"].dropna().tolist() == [3.0]


def test_what_was_not_run_is_said(dataset: Path) -> None:
    rows = with_groups(hpcrl.load(dataset))
    study = {"asked": [{"cores": cores, "gpus": gpus} for cores, gpus in ((1, 0), (4, 0), (4, 1))]}
    empty = [
        ("Figure 1: Times", "not run on CPU cores"),
        ("Table 2: Training", "not all of its rows were run on one machine"),
    ]
    assert failed(rows, rows, study, empty) == (
        "All 4 cells completed. Not run: cells of 4 cores, 4 cores with 1 GPU. No runs for these parts of the paper: Figure 1. "
        "No values for these parts of the paper: Table 2."
    )
    assert (
        failed(rows, rows.assign(cpus=4), study, [])
        == "All 4 cells completed. Not run: cells of 1 core, 4 cores with 1 GPU."
    )


@pytest.mark.parametrize(("axis", "nodes", "said"), [([2, 3], 1, "1 cell had"), ([2], 1, ""), ([2], 2, "")])
def test_cores_that_a_machine_does_not_have_are_said(tmp_path: Path, axis: list[int], nodes: int, said: str) -> None:
    study = ranks_study(nodes, nodes=nodes)
    study["axes"]["cpus"] = axis
    plan = planned(tmp_path / "p", study, cluster="sol")
    for cell in cells_of(plan):
        write_record(plan, cell)
    collect([plan], tmp_path / "d", no_slurm())
    page = write_report(tmp_path / "d", None, tmp_path / "r", ()).html.read_text()
    assert (f"{said} more cores to use than the machine has (2 threads)" in page) == bool(said)
    assert ("3 cores, native (2 real)" in page) == bool(said)
    assert "real)" not in page.replace("3 cores, native (2 real)", "")
    assert said in page


def test_no_text_of_a_dataset_is_obeyed_by_the_page(dataset: Path, tmp_path: Path) -> None:
    index = json.loads((dataset / "dataset.json").read_text())
    for study in index["studies"].values():
        study["title"] = "\x1b[31m\u202e\ud800<!--<script>"
    (dataset / "dataset.json").write_text(json.dumps(index))
    page = write_report(dataset, None, tmp_path / "r", ()).html.read_text()
    assert r"\x1b[31m\u202e\ud800&lt;!--&lt;script&gt;" in page
    assert "\x1b" not in page


def test_a_cell_without_a_record_is_on_the_line_of_the_others(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(axes={"framework": ["numpy"], "cpus": [2, 3]}, seeds=3), cluster="sol")
    for cell in cells_of(plan):
        if cell["config"]["seed"] < 3:
            write_record(plan, cell)
    collect([plan], tmp_path / "d", no_slurm())
    cells = hpcrl.load(tmp_path / "d")
    without = cells.loc[cells["seed"] == 1].assign(
        cell=lambda each: each["cell"] + "x", seed=3, hardware=None, outcome="lost"
    )
    rows = with_groups(pd.concat([cells, without], ignore_index=True))
    assert set(rows["where"]) == {"2 cores", "3 cores (2 real)"}
    assert len(rows) == 6
