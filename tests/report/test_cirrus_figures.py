"""Figures 5.1 to 5.39 of the Cirrus paper: what they hold is what the dataset says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.formats.tables import read_index
from hpcrl.report.figures import papers
from hpcrl.report.figures.drawing import Figure, Panel, for_paper
from hpcrl.report.figures.papers.data import PaperData, PaperFigures, asked_of
from hpcrl.report.write import read_cells
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm

CONFIGURATION = {"cirrus": 1.0, "workstation": 2.0, "torch": 1.0, "tensorflow": 1.5, "ppo": 1.0, "rainbow": 4.0}
COUNT = 30


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two platforms, both algorithms and frameworks, 1 and 2 cores, 3 seeds; training starts after 1.5 s."""
    directory = tmp_path_factory.mktemp("cirrus")
    study = dqn_study(
        paper="cirrus-pytorch-tensorflow", goal=100, seeds=3, workload={"environment": "CartPole-v0"},
        axes={
            "algorithm": ["ppo", "rainbow"], "size": [{"cpus": 1}, {"cpus": 2}, {"cpus": 4096}],
            "framework": [{"framework": "torch", "execution": "eager"}, {"framework": "tensorflow", "execution": "lazy"}],
        },
    )  # fmt: skip
    plans = [planned(directory / name, study, name) for name in ("workstation", "cirrus")]
    generator = np.random.default_rng(0)
    started = 0.0
    for plan, cluster in zip(plans, ("workstation", "cirrus"), strict=True):
        for cell in cells_of(plan):
            slow = np.prod(
                [CONFIGURATION[each] for each in (cluster, cell["config"]["framework"], cell["config"]["algorithm"])]
            )
            time = np.linspace(0.5, 1.5 + 10 * slow, COUNT)
            write_record(
                plan, cell, node=f"n{int(started)}", returns=tuple(generator.uniform(10, 100, COUNT)), setup_time=1.0, compile_time=0.5,
                training_time=10 * slow, wall_time=2 + 10 * slow, steps=1000,
                samples={"time": time, "machine_cpu_percent": generator.uniform(20, 90, COUNT), "cpu_seconds": 0.8 * time,
                         "machine_memory_percent": 12.0, "pss": 1e8},
            )  # fmt: skip
            started += 1
    collect(plans, directory / "d", no_slurm())
    return directory / "d"


def data_of(dataset: Path, rows: pd.DataFrame | None = None, asked: tuple[tuple[int, int], ...] = ()) -> PaperData:
    rows = read_cells(dataset, None).assign(shared=False) if rows is None else rows
    return PaperData(rows, hpcrl.load(dataset, "episodes"), hpcrl.load(dataset, "samples"), 100.0, asked=asked)


@pytest.fixture(scope="module")
def drawn(dataset: Path) -> PaperFigures:
    return papers.figures("cirrus-pytorch-tensorflow", data_of(dataset))


def panel(drawn: PaperFigures, name: str, start: str) -> Panel:
    (figure,) = [each for each in drawn.drawn if each.name == name]
    (found,) = [each for each in figure.panels if each.title.startswith(start)]
    return found


def runs(dataset: Path, **wanted: Any) -> pd.DataFrame:
    cells = hpcrl.load(dataset)
    for name, value in wanted.items():
        cells = cells[cells[name] == value]
    return cells


def table(dataset: Path, name: str, cell: Any) -> pd.DataFrame:
    """Return what was recorded in the training of one run, by hand: time counts from 1.5 s."""
    found = hpcrl.load(dataset, name)
    found = found[(found["plan"] == cell["plan"]) & (found["cell"] == cell["cell"]) & (found["time"] >= 1.5)]
    return found.sort_values("time")


def test_runs_on_another_kind_of_machine_are_left_out(dataset: Path, drawn: PaperFigures) -> None:
    rows = read_cells(dataset, None).assign(shared=False)
    other = rows[rows["seed"] == 1].assign(machine="D, 2 threads", training_time=1.0)
    found = papers.figures("cirrus-pytorch-tensorflow", data_of(dataset, pd.concat([rows, other], ignore_index=True)))
    for place, figure in enumerate(drawn.drawn):
        same = found.drawn[place]
        assert same.text == f"{figure.text} Left out: {len(other)} runs on other kinds of machines."
        for panel, again in zip(figure.panels, same.panels, strict=True):
            pd.testing.assert_frame_equal(panel.values, again.values)


def test_two_configurations_are_not_one_line(dataset: Path, drawn: PaperFigures) -> None:
    """A study that extends the paper's has another axis: PyTorch's PPO is then no longer one thing."""
    rows = read_cells(dataset, None).assign(shared=False)
    some = rows[(rows["framework"] == "torch") & (rows["workload"] == "ppo")]
    both = pd.concat([rows, some.assign(what=some["what"] + " rate 0.1")], ignore_index=True)
    found = papers.figures("cirrus-pytorch-tensorflow", data_of(dataset, both))
    for name, start in (("cirrus-5-01", "Figure 5.1:"), ("cirrus-5-25", "Figure 5.26")):
        assert set(panel(drawn, name, start).values["configuration"]) == {"PyTorch", "TensorFlow"}
        assert set(panel(found, name, start).values["configuration"]) == {"TensorFlow"}
        (text,) = [figure.text for figure in found.drawn if figure.name == name]
        assert "because a name of the paper means several configurations of this study." in text
        assert "Not run: PyTorch" not in text


def test_the_main_figures_have_every_configuration_on_cores_that_exist(dataset: Path, drawn: PaperFigures) -> None:
    """The paper has 32 cores. Of those here, 4,096 are more than the machine has, so 2 are the nearest, unless one of their configurations failed."""
    (figure,) = [each for each in drawn.drawn if each.name == "cirrus-5-01"]
    assert "With 2 cores, where the paper has 32." in figure.text
    rows = read_cells(dataset, None).assign(shared=False, crowded=False)
    failed = (rows["cpus"] == 2) & (rows["framework"] == "torch") & (rows["workload"] == "ppo")
    rows.loc[failed, "outcome"] = "failed"
    (figure,) = [each for each in papers.figures(
        "cirrus-pytorch-tensorflow", data_of(dataset, rows[rows["cpus"] < 4096])
    ).drawn if each.name == "cirrus-5-01"]  # fmt: skip
    assert (
        "With 1 core, where the paper has 32. With 2 the machine had fewer cores than that, or fewer configurations completed."
        in figure.text
    )
    assert set(panel(drawn, "cirrus-5-01", "Figure 5.1:").values["configuration"]) == {"PyTorch", "TensorFlow"}


def test_every_number_of_the_paper_is_named_once(drawn: PaperFigures) -> None:
    titles = [each.title for figure in drawn.drawn for each in figure.panels if each.title.startswith("Figure 5.")]
    assert [int(title.removeprefix("Figure 5.").partition(":")[0]) for title in titles] == list(range(1, 30))
    assert [title for title, _ in drawn.empty] == ["Figures 5.30 to 5.39: PPO and Rainbow against the number of GPUs"]
    assert drawn.empty[0][1].startswith("not run on a GPU.")


def test_integrals_are_those_of_the_records(dataset: Path, drawn: PaperFigures) -> None:
    figure, beside = panel(drawn, "cirrus-5-25", "Figure 5.26"), panel(drawn, "cirrus-5-25", "Beside 5.26")
    for framework, name in (("torch", "PyTorch"), ("tensorflow", "TensorFlow")):
        for cpus in (1, 2):
            integrals, means = [], []
            for cell in runs(dataset, cluster="cirrus", framework=framework, workload="ppo", cpus=cpus).to_dict(
                "records"
            ):
                samples = table(dataset, "samples", cell)
                time, cpu = samples["time"].tolist(), samples["machine_cpu_percent"].tolist()
                # Each value is over the time since the one before; the first in training has imports in it.
                areas = [(time[i] - time[i - 1]) * cpu[i] for i in range(1, len(time))]
                means.append(sum(areas) / (time[-1] - time[0]))
                integrals.append(means[-1] * cell["training_time"])
            assert len(integrals) == 3
            for each, expected in ((figure, integrals), (beside, means)):
                values = each.values[(each.values["configuration"] == name) & (each.values["CPU cores"] == cpus)]
                assert values.iloc[:, 2:5].to_numpy().tolist() == [pytest.approx([sorted(expected)[1], min(expected), max(expected)])]  # fmt: skip
                data = [row for rows in each.chart.to_dict()["datasets"].values() for row in rows if "seed" in row]
                dots = sorted(row["value"] for row in data if row["what"] == name and row["x"] == cpus)
                assert dots == pytest.approx(sorted(expected), rel=1e-4)


def test_use_per_step(dataset: Path, drawn: PaperFigures) -> None:
    own = panel(drawn, "cirrus-5-28", "Beside 5.28").values
    # 0.8 cores in use, 10 s and 15 s of training, 1,000 steps
    assert own.iloc[:, 2].tolist() == pytest.approx([8.0, 8.0, 12.0, 12.0])
    memory = panel(drawn, "cirrus-5-28", "Figure 5.29").values
    assert memory.iloc[:, 2].tolist() == pytest.approx([12 * 0.01, 12 * 0.01, 12 * 0.015, 12 * 0.015])


def test_curves_are_medians_of_the_records(dataset: Path, drawn: PaperFigures) -> None:
    values = panel(drawn, "cirrus-5-01", "Figure 5.2").values
    last = values[values["configuration"] == "TensorFlow"].iloc[-1]
    ends = []
    for cell in runs(dataset, cluster="cirrus", framework="tensorflow", workload="rainbow", cpus=2).to_dict("records"):
        ends.append(table(dataset, "episodes", cell)["value"].tail(20).mean())
    assert last["median"] == pytest.approx(np.median(ends), rel=1e-4)
    assert (last["from"], last["to"]) == pytest.approx((min(ends), max(ends)), rel=1e-4)


def test_platforms_are_the_clusters_of_the_dataset(dataset: Path, drawn: PaperFigures) -> None:
    values = panel(drawn, "cirrus-5-17", "Figure 5.20: TensorFlow, Rainbow").values
    assert set(values["configuration"]) == {"cirrus", "workstation"}
    at = values[values["configuration"] == "workstation"].iloc[-1]
    cells = runs(dataset, cluster="workstation", framework="tensorflow", workload="rainbow", cpus=2).to_dict("records")
    ends = [table(dataset, "samples", cell)["machine_cpu_percent"].iloc[-1] for cell in cells]
    assert at["median"] == pytest.approx(np.median(ends), rel=1e-4)
    assert at["training time (s)"] == pytest.approx(10 * 2 * 1.5 * 4, rel=1e-4)


def test_the_captions_say_what_misleads(drawn: PaperFigures) -> None:
    text = {figure.name: figure.text for figure in drawn.drawn}
    assert "From the runs on cirrus. With 2 cores, where the paper has 32." in text["cirrus-5-01"]
    assert "With 2 cores, as in the paper." in text["cirrus-5-09"]
    for name in ("cirrus-5-09", "cirrus-5-13", "cirrus-5-17", "cirrus-5-21"):
        assert "Not run: Windows 10, the first row of Table 3.6, because hpcrl does not run on Windows." in text[name]
    assert "one line covers the other" in text["cirrus-5-09"] and "covers the other" not in text["cirrus-5-13"]
    assert "5.13 and 5.14 are of PyTorch, 5.15 and 5.16 of TensorFlow" in text["cirrus-5-13"]
    assert "What the paper calls virtual memory" in text["cirrus-5-21"]
    assert "An integral over time grows with the length of the run" in text["cirrus-5-25"]
    assert "the integral is this mean, times the training time" in text["cirrus-5-25"]
    assert "Only training counts, without evaluations" in text["cirrus-5-25"]
    assert "Time is that of training, without evaluations." in text["cirrus-5-03"]
    assert not any("evaluations in these values" in each for each in text.values())
    assert "The caption of Figure 5.26 says GPU" in text["cirrus-5-25"]
    assert "memory per step is the RAM in use, times the time per step" in text["cirrus-5-28"]
    assert "say CPU cores where the number of GPUs is meant" in drawn.empty[0][1]


def test_cells_with_gpus_have_their_figures(dataset: Path) -> None:
    rows = read_cells(dataset, None).assign(shared=False)
    rows["gpus"] = rows["cpus"].where(rows["cluster"] == "cirrus", 0)
    found = papers.figures("cirrus-pytorch-tensorflow", data_of(dataset, rows))
    titles = [each.title.partition(":")[0] for figure in found.drawn for each in figure.panels]
    assert {f"Figure 5.{number}" for number in range(30, 40)} <= set(titles)
    assert panel(found, "cirrus-5-35", "Figure 5.37").title == "Figure 5.37: integral of the return over time"
    assert "That of Figure 5.31 says GPU" in next(each.text for each in found.drawn if each.name == "cirrus-5-30")


def test_what_was_not_run_is_named(dataset: Path) -> None:
    rows = read_cells(dataset, None).assign(shared=False)
    rows = rows[(rows["cluster"] == "cirrus") & ((rows["framework"] == "torch") | (rows["workload"] == "ppo"))]
    found = papers.figures("cirrus-pytorch-tensorflow", data_of(dataset, rows))
    assert dict(found.empty)["Figures 5.9 to 5.24: Return, CPU and memory by platform"] == "not run on two platforms"
    (first, *_) = found.drawn
    assert first.text.endswith("Not run: TensorFlow in Figure 5.2.")
    nothing = papers.figures("cirrus-pytorch-tensorflow", data_of(dataset, rows[:0]))
    assert not nothing.drawn and all("not run on" in why for _, why in nothing.empty)


def test_numbers_of_cores_that_were_not_run_are_named(dataset: Path) -> None:
    asked = ((1, 0), (2, 0), (4, 0), (16, 0), (40, 2))
    (study,) = read_index(dataset)["studies"].values()
    assert asked_of(study) == ((1, 0), (2, 0), (4096, 0))  # also what has no place on the cluster

    def caption(rows: pd.DataFrame) -> str:
        found = papers.figures("cirrus-pytorch-tensorflow", data_of(dataset, rows, asked))
        return next(figure.text for figure in found.drawn if figure.name == "cirrus-5-25")

    rows = read_cells(dataset, None).assign(shared=False)
    assert " Not run: 4, 16 CPU cores. Only training counts" in caption(rows)
    rows = rows[(rows["cpus"] == 2) | (rows["framework"] == "torch")]
    assert " Not run: TensorFlow with 1 CPU cores; 4, 16 CPU cores. Only" in caption(rows)
    late = rows["outcome"].mask((rows["cpus"] == 2) & (rows["framework"] == "torch"), "timeout")
    assert " Not completed: PyTorch with 2 CPU cores. Only" in caption(rows.assign(outcome=late))
    # An older dataset does not have the numbers of its study.
    found = papers.figures("cirrus-pytorch-tensorflow", data_of(dataset))
    assert not any("Not run" in figure.text for figure in found.drawn if figure.name >= "cirrus-5-25")


def test_a_dataset_without_the_times_of_evaluations_says_so(dataset: Path) -> None:
    data = data_of(dataset)
    evaluations = data.episodes.drop_duplicates(["plan", "cell", "attempt"]).assign(kind="evaluation")
    assert evaluations["began"].isna().all()
    found = papers.figures("cirrus-pytorch-tensorflow", replace(data, episodes=pd.concat([data.episodes, evaluations])))
    text = {figure.name: figure.text for figure in found.drawn}
    for name in ("cirrus-5-03", "cirrus-5-17", "cirrus-5-25", "cirrus-5-28"):
        assert (
            " The runs have evaluations in these values, because their records do not tell when these began."
            in text[name]
        )


def test_a_shared_machine_has_no_values_of_its_own(dataset: Path) -> None:
    rows = read_cells(dataset, None).assign(shared=True)
    found = papers.figures("cirrus-pytorch-tensorflow", data_of(dataset, rows))
    names = [figure.name for figure in found.drawn]
    assert names == ["cirrus-5-01", "cirrus-5-03", "cirrus-5-09", "cirrus-5-13", "cirrus-5-25", "cirrus-5-28"]
    assert "CPU of the machine per step (cells shared the machine" in next(
        each.text for each in found.drawn if each.name == "cirrus-5-28"
    )


def test_specifications_are_valid(drawn: PaperFigures) -> None:
    figure: Figure
    for figure in drawn.drawn:
        for each in figure.panels:
            each.chart.to_dict()
        assert for_paper(figure)["columns"] == 2


def test_runs_with_more_cores_than_their_machine_are_said(dataset: Path) -> None:
    rows = read_cells(dataset, None).assign(shared=False)
    found = papers.figures("cirrus-pytorch-tensorflow", data_of(dataset, rows.assign(crowded=rows["cpus"] == 2)))
    texts = [figure.text for figure in found.drawn]
    assert any("In 6 of 12 runs the machine had only 2 of the cores: " in text for text in texts)
    assert not any(
        "the machine had only" in each.text
        for each in papers.figures("cirrus-pytorch-tensorflow", data_of(dataset, rows)).drawn
    )
