"""Profiled cells in the report, from records written by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import hpcrl
from hpcrl.catalogue.registry import frameworks
from hpcrl.formats.profiles import is_update
from hpcrl.report.baseline import compare
from hpcrl.report.figures import figures, updates
from hpcrl.report.groups import with_groups
from hpcrl.report.profiles import compared, profiles_of
from hpcrl.report.write import read_cells, write_report
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import gathered

PROFILE = {
    "profiler": "cprofile", "file": "x.pstats", "size": 2048, "seconds": 0.5, "unit": "s", "total": 3.0,
    "functions": "train (rl/train.py:1)\t1\t3\t1\nstep <b>\t2\t2\t500", "stacks": "train (rl/train.py:1) 1\ntrain (rl/train.py:1);step <b> 2",
}  # fmt: skip
HARDWARE = {"cpu": "C", "threads": 2, "memory": 1024**3, "gpus": [], "kernel": "6"}


def collected(place: Path, training_time: Any, **study: Any) -> Path:
    """Collect a study; `training_time` says it for each cell's configuration."""
    plan = planned(place / "p", dqn_study(**study))
    for cell in cells_of(plan):
        profiler = cell["config"].get("profile")
        own = {**PROFILE, "profiler": profiler, "file": f"{cell['id']}.pstats"} if profiler else None
        header = {"profile": profiler, "hardware": HARDWARE}
        write_record(
            plan,
            cell,
            f"local-{cell['config']['seed']}",
            header=header,
            training_time=training_time(cell["config"]),
            **({"profile": own} if own else {}),
        )
    done = gathered(place / "d", plan)
    assert not done.quarantined
    return place / "d"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    seconds = {("numpy", None): 10.0, ("numpy", "cprofile"): 20.0, ("torch", None): 10.0, ("torch", "cprofile"): 30.0}
    axes = {"framework": ["numpy", "torch"], "profile": ["none", "cprofile"]}
    return collected(tmp_path, lambda config: seconds[config["framework"], config.get("profile")], axes=axes, seeds=3)


def test_the_cost_of_a_profiler_is_the_ratio_of_cells_that_differ_in_nothing_else(dataset: Path) -> None:
    cells, profiles = hpcrl.load(dataset), hpcrl.load(dataset, "profiles")
    counted, cost = profiles_of(cells, read_cells(dataset, None), profiles).sentences
    assert counted.startswith("6 attempts ran under a profiler (cProfile). A profiler changes times")
    assert re.search(r"\b2(\.00)? times \(95 % interval 2(\.00)? to 2(\.00)?\) with NumPy eager, from 3 pairs", cost), (
        cost
    )
    assert re.search(r"\b3(\.00)? times \(95 % interval 2\.99 to 3\.01\) with PyTorch eager, from 3 pairs", cost), cost
    elsewhere = cells.assign(
        hardware=[
            text if pd.isna(name) else text.replace('"C"', '"D"')
            for text, name in zip(cells["hardware"], cells["profile"], strict=True)
        ]
    )
    _, cost = profiles_of(elsewhere, read_cells(dataset, None), profiles).sentences
    assert cost == "The cost of cProfile itself was not measured: no cell ran with and without it on the same machine."


def test_an_attempt_whose_profiler_failed_does_not_tell_its_cost(dataset: Path) -> None:
    cells, profiles, rows = hpcrl.load(dataset), hpcrl.load(dataset, "profiles"), read_cells(dataset, None)
    total = profiles["total"].copy()
    total.iloc[0] = float("nan")
    _, cost = profiles_of(cells, rows, profiles.assign(total=total)).sentences
    assert "from 2 pairs" in cost and "from 3 pairs" in cost
    cell = profiles["cell"].iloc[0]
    assert cost.endswith(
        f" Left out: 1 attempt in which cProfile failed (cell {cell}). The table of profiles says why."
    )  # fmt: skip
    none = profiles.assign(total=float("nan"), file=None, functions=None, stacks=None, note="cprofile cannot start")
    found = profiles_of(cells, rows, none)
    assert found.sentences[1].startswith(
        "The cost of cProfile itself was not measured: no cell ran with and without it on the same machine. Left out: 6 attempts in which cProfile failed (cells "
    )
    assert {row[-1] for row in found.rows} == {"cprofile cannot start"}
    assert found.drawn == []
    _, cost = profiles_of(cells, rows, profiles[profiles["cell"] != cell]).sentences
    assert cost.endswith(
        f" Left out: 1 attempt without a row in the dataset's table of profiles (cell {cell}). The dataset is not whole: collect again."
    )


def test_the_cost_of_a_profiler_that_looks_at_one_second_is_not_that_of_the_training(dataset: Path) -> None:
    cells = hpcrl.load(dataset)
    cells["profile"] = [name if pd.isna(name) else "framework" for name in cells["profile"]]
    _, cost = profiles_of(cells, read_cells(dataset, None), hpcrl.load(dataset, "profiles")).sentences
    assert cost == (
        "The cost of the framework's profiler itself was not measured: it ran in the first second of a training only, and times are those of whole trainings."
    )


def test_pairs_that_ran_beside_other_cells_are_named(dataset: Path) -> None:
    cells, profiles = hpcrl.load(dataset), hpcrl.load(dataset, "profiles")
    beside = cells["profile"].isna() & (cells["framework"] == "torch")
    _, cost = profiles_of(cells.assign(shared=beside), read_cells(dataset, None), profiles).sentences
    assert cost.endswith(" 3 pairs ran beside other cells on the same machine, which changes times, too.")


def test_nothing_of_a_profiled_cell_is_in_a_table_or_a_baseline(dataset: Path, tmp_path: Path) -> None:
    rows = read_cells(dataset, None)
    assert set(rows["training_time"]) == {10.0}
    assert set(rows["what"]) == {"NumPy eager", "PyTorch eager"}
    plain = collected(tmp_path / "plain", lambda config: 10.0, axes={"framework": ["numpy"]}, seeds=3)
    under = collected(
        tmp_path / "under", lambda config: 40.0, axes={"framework": ["numpy"]}, seeds=3, profile="cprofile"
    )
    (gone,) = compare(read_cells(under, None), with_groups(hpcrl.load(plain)))
    assert (gone.measure, gone.why) == ("completed runs", "the new dataset has no run of this name")
    (same,) = write_report(under, None, tmp_path / "r", (), baseline=plain).changes
    assert str(same) == str(gone)
    assert len(compare(rows, read_cells(plain, None))) > 0


def test_the_profiler_is_named_even_where_the_algorithm_settles_the_rest(tmp_path: Path) -> None:
    axes = {"algorithm": ["dqn"], "framework": ["numpy"]}
    study = {
        "workload": {"environment": "CartPole-v1", "hyperparameters": {"total_steps": 100, "hidden": [16]}},
        "goal": None,
    }
    under = collected(tmp_path, lambda config: 40.0, axes=axes, profile="cprofile", **study)
    assert set(read_cells(under, None)["what"]) == {"DQN NumPy eager profile cprofile"}


def test_of_a_study_under_several_profilers_one_is_compared(dataset: Path) -> None:
    cells = hpcrl.load(dataset)
    only = cells[cells["profile"].notna()].copy()
    only.loc[only.index[:2], "profile"] = "memray"
    assert set(compared(only)["profile"]) == {"cprofile"}
    text = profiles_of(only, with_groups(compared(only)), hpcrl.load(dataset, "profiles")).sentences[0]
    assert text.startswith("Every cell of this study ran under a profiler (cProfile and memray): its times include")
    assert text.endswith("The comparison has the cells under cProfile only, and leaves out 2 attempts.")


def test_the_page_draws_one_profile_of_each_configuration_and_trusts_no_name(dataset: Path, tmp_path: Path) -> None:
    page = write_report(dataset, None, tmp_path / "r", ()).html.read_text()
    assert page.count("<svg xmlns=") == 2
    assert "cProfile of NumPy eager on 1 core, seed 1" in page
    assert "step &lt;b&gt;: 2 s, 66.7 %; own 2 s" in page
    assert "step <b>" not in page
    assert "<td>500</td>" in page


def test_updates_are_drawn_three_ways_where_cprofile_counted_them(tmp_path: Path) -> None:
    """JAX returns after 1 s of dispatch, and its updates take 4 s of the 8 s of the training, beside which there are evaluations."""
    plan = planned(tmp_path / "p", dqn_study(axes={"framework": ["jax", "torch"], "profile": ["none", "cprofile"]}))
    for cell in cells_of(plan):
        jax, profiler = cell["config"]["framework"] == "jax", cell["config"].get("profile")
        functions = f"update (hpcrl/rl/frameworks/{cell['config']['framework']}/core.py:9)\t0.1\t{1.0 if jax else 3.0}\t5\nupdate (x.py:1)\t9\t9\t9\nwhole_update (hpcrl/rl/frameworks/jax/core.py:4)\t0.1\t0.9\t5"
        own = {"profile": {**PROFILE, "functions": functions}} if profiler else {}
        phases = {"update": 4.0 if jax else 3.0, "other": 1.0}
        write_record(
            plan,
            cell,
            header={"profile": profiler, "hardware": HARDWARE},
            phases=phases,
            steps=1000,
            training_time=8.0,
            wall_time=20.0,
            precise_phases=True,
            **own,
        )
    gathered(tmp_path / "d", plan)
    rows = read_cells(tmp_path / "d", None)
    cells, tables = (
        hpcrl.load(tmp_path / "d"),
        {name: hpcrl.load(tmp_path / "d", name) for name in ("episodes", "samples", "phases")},
    )
    found = profiles_of(cells, rows, hpcrl.load(tmp_path / "d", "profiles"))
    drawn = {each.name: each for each in figures(rows, **tables, study={}, dispatched=found.updates).own}
    panels = [dict(panel.values.iloc[:, :2].itertuples(index=False)) for panel in drawn["updates"].panels]
    jax, torch = "JAX lazy · 1 core", "PyTorch eager · 1 core"
    names = sorted(panels[0])
    assert [[round(panel[name]) for name in names] for panel in panels] == [[1000, 3000], [4000, 3000], [50, 38]], (
        jax,
        torch,
    )
    assert drawn["updates"].panels[1].title == "synchronised after every update"
    without = figures(rows, **tables, study={}, dispatched=found.updates.iloc[:0]).own
    assert "updates" not in [each.name for each in without]


def test_updates_are_means_over_the_seeds_that_ran_both_ways_and_those_that_do_not_wait_have_no_synchronised_time(
    tmp_path: Path,
) -> None:
    axes = {
        "framework": ["jax"],
        "way": [{"unsynchronized": False}, {"unsynchronized": True}],
        "profile": ["none", "cprofile", {"profile": "cprofile", "profile_steps": 1}],
    }
    workload = {"algorithm": "td3", "environment": "Pendulum-v1", "hyperparameters": {"total_steps": 2000}}
    plan = planned(
        tmp_path / "p", dqn_study(axes=axes, workload=workload, seeds=2, exclude=[{"profile": "cprofile", "seed": 2}])
    )
    for cell in cells_of(plan):
        config = cell["config"]
        profiler, first = config.get("profile"), config["seed"] == 1
        seconds = 1.0 if config["unsynchronized"] else 3.0
        functions = f"update (hpcrl/rl/frameworks/jax/core.py:9)\t0.1\t{seconds}\t5"
        if config.get("profile_steps"):
            functions = "step (x.py:1)\t1\t1\t1"
        own = {"profile": {**PROFILE, "functions": functions}} if profiler else {}
        phases = {"update": 4.0 if first else 400.0}  # nothing of the second seed is drawn
        header = {"profile": profiler, "hardware": HARDWARE, "workload": "td3"}
        write_record(plan, cell, header=header, phases=phases, steps=1000, training_time=8.0, **own)
    gathered(tmp_path / "d", plan)
    rows, cells = read_cells(tmp_path / "d", None), hpcrl.load(tmp_path / "d")
    found = profiles_of(cells, rows, hpcrl.load(tmp_path / "d", "profiles"))
    drawn = updates.figure(rows, hpcrl.load(tmp_path / "d", "phases"), found.updates)
    assert drawn is not None
    published, waited, _ = (
        {("true" in name): round(value) for name, value, *_ in panel.values.itertuples(index=False)}
        for panel in drawn.panels
    )
    assert published == {False: 3000, True: 1000}
    assert waited == {False: 4000}
    (blind,) = (text for text in found.sentences if "no update" in text)
    assert blind.count("(steps 0 to 1)") == 2


def test_updates_under_cprofile_are_compared_with_those_on_the_same_machine(tmp_path: Path) -> None:
    """Of two clusters, each has bars of its own; what ran under cProfile on another CPU alone is left out."""
    plans = []
    for cluster, seconds in (("workstation", 3.0), ("cirrus", 6.0)):
        plan = planned(
            tmp_path / cluster, dqn_study(axes={"framework": ["numpy"], "profile": ["none", "cprofile"]}), cluster
        )
        for cell in cells_of(plan):
            profiler = cell["config"].get("profile")
            functions = f"update (hpcrl/rl/frameworks/numpy/core.py:9)\t0.1\t{seconds}\t5"
            own = {"profile": {**PROFILE, "functions": functions}} if profiler else {}
            header = {"profile": profiler, "hardware": HARDWARE}
            write_record(plan, cell, header=header, phases={"update": seconds}, steps=1000, training_time=8.0, **own)
        plans.append(plan)
    gathered(tmp_path / "d", *plans)
    rows, cells = read_cells(tmp_path / "d", None), hpcrl.load(tmp_path / "d")
    phases, profiles = (hpcrl.load(tmp_path / "d", name) for name in ("phases", "profiles"))
    drawn = updates.figure(rows, phases, profiles_of(cells, rows, profiles).updates)
    assert drawn is not None
    for panel in drawn.panels[:2]:
        values = dict(panel.values.iloc[:, :2].itertuples(index=False))
        assert {name.rpartition(" · ")[2]: round(value) for name, value in values.items()} == {
            "workstation, C, 2 threads": 3000,
            "cirrus, C, 2 threads": 6000,
        }
    under = profiles_of(cells.assign(hardware=cells["hardware"].str.replace('"C"', '"D"')), rows, profiles).updates
    assert updates.figure(rows, phases, under) is None


@pytest.mark.parametrize("framework", sorted(frameworks()))
def test_only_a_learner_s_own_calls_have_the_names_of_updates(framework: str) -> None:
    """An inner function of that name would count its time twice."""
    source = Path(hpcrl.__file__).parent / f"rl/frameworks/{framework}/core.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    (learner,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Learner")

    def named(nodes: Iterable[ast.AST]) -> list[str]:
        names = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
        return sorted(name for name in names if is_update(f"{name} (hpcrl/rl/frameworks/{framework}/core.py:1)"))

    assert named(ast.walk(tree)) == named(learner.body)
    assert "update" in named(learner.body)


def test_a_dataset_of_an_older_hpcrl_has_no_profiles_and_is_extended(tmp_path: Path) -> None:
    import shutil

    dataset = collected(tmp_path, lambda config: 10.0, seeds=1)
    shutil.rmtree(dataset / "profiles")
    assert hpcrl.load(dataset, "profiles").empty
    plan = tmp_path / "p"
    (record,) = (plan / "records").iterdir()
    record.unlink()
    (cell,) = cells_of(plan)
    write_record(plan, cell, "local-1", returns=(1.0, 2.0, 3.0))  # it has grown
    assert gathered(dataset, plan).merged == 1


@pytest.mark.parametrize(
    "wrong",
    [{"profiler": 3}, {"file": "../../x"}, {"size": -1}, {"stacks": ["a"]}, {"profiler": ""}, {"note": "x" * 300_000}],
)
def test_a_record_with_a_wrong_profile_is_left_out(tmp_path: Path, wrong: dict[str, Any]) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=1))
    (cell,) = cells_of(plan)
    write_record(plan, cell, profile={**PROFILE, **wrong})
    done = gathered(tmp_path / "d", plan)
    assert [each.reason.startswith("has a wrong profile: ") for each in done.quarantined] == [True]
