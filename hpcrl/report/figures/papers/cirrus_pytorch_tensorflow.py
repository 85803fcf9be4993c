"""Figures 5.1 to 5.39 of "A Comparison of PyTorch and TensorFlow for Reinforcement Learning" (M. Liu, 2022).

The tables at the top describe them: their numbers, their quantities, and where the paper's captions are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pandas as pd

from hpcrl.errors import count
from hpcrl.formats.runs import cores
from hpcrl.report.design import colours, display
from hpcrl.report.figures.drawing import Figure
from hpcrl.report.figures.papers.data import Empty, PaperData, at_home, of_one_kind, with_text
from hpcrl.report.figures.papers.panels import Quantity, Value, against_number, not_run, over_training
from hpcrl.report.integrals import with_integrals
from hpcrl.report.training_clock import Clocks, clocks, in_training, of_clocks

_HOME = "cirrus"
_MODES = {"torch": "eager", "tensorflow": "lazy"}  # PyTorch 1.4 was eager, TensorFlow 1.15 a static graph
_ALGORITHMS = {"ppo": "PPO", "rainbow": "Rainbow"}
_RETURN, _CPU, _RAM = "return (mean of 20 episodes)", "CPU of the machine (%)", "RAM of the machine (%)"
_QUANTITIES = (
    Quantity("Return against episode", _RETURN, by_episode=True),
    Quantity("Return against time", _RETURN),
    Quantity("CPU against time", _CPU, "machine_cpu_percent"),
    Quantity("Memory against time", _RAM, "machine_memory_percent"),
)
# Each quantity has two figures of frameworks (PPO, Rainbow) from 5.1 on, and four of platforms (PPO and Rainbow with
# PyTorch, then with TensorFlow) from 5.9 on.
_FRAMEWORKS_FROM, _FRAMEWORKS_CORES = 1, 32
_PLATFORMS_FROM, _PLATFORMS_CORES = 9, 2
_TWICE = (
    "The captions of Figures 5.{0} and 5.{2}, and of 5.{1} and 5.{3}, are the same, without framework and platform. By the "
    "text, 5.{0} and 5.{1} are of PyTorch, 5.{2} and 5.{3} of TensorFlow."
)
_VIRTUAL = "What the paper calls virtual memory is psutil.virtual_memory().percent: the RAM in use."

# The paper's value of a figure, and the one beside it.
_VALUES = {
    "return": (Value("return_integral", "return × s", "integral of the return over time"),
               Value("return_mean", "return", "mean of the return over time")),
    "cpu": (Value("machine_cpu_integral", "% × s", "integral of the machine's CPU over time"),
            Value("machine_cpu_mean", _CPU, "mean of the machine's CPU over time")),
    "memory": (Value("machine_memory_integral", "% × s", "integral of the machine's RAM over time"),
               Value("machine_memory_mean", _RAM, "mean of the machine's RAM over time")),
    "cpu per step": (Value("machine_cpu_per_step", "% × s per step", "CPU of the machine per step"),
                     Value("own_ms", "ms per step", "the job's own CPU time per step")),
    "memory per step": (Value("machine_memory_per_step", "% × s per step", "RAM of the machine per step"),
                        Value("step_ms", "ms per step", "training time per step")),
}  # fmt: skip
_INTEGRAL = (
    "An integral over time grows with the length of the run, so a slow run has a large one. The paper reads a large integral of "
    "the return as good. The mean over time, beside it, does not depend on the length; the integral is this mean, times the training time."
)
_PER_STEP = (
    "Memory is not used up by steps: memory per step is the RAM in use, times the time per step, which is beside it. The machine is the first "
    "node of a run; the job's own CPU time is that of all its nodes."
)
_CORES_MEANT = "The captions of Figures 5.30 to 5.34 say CPU cores where the number of GPUs is meant."


@dataclass(frozen=True)
class _Numbers:
    """Figures of one algorithm against a number of cores or GPUs: `values` in the order of the figures from `first` on."""

    first: int
    algorithm: str
    of_gpus: bool
    title: str
    values: tuple[str, ...]
    text: str
    slip: str = ""


_PER, _STEPS = "Integrals over time", ("cpu per step", "memory per step")
_NUMBERS = (
    _Numbers(25, "ppo", False, _PER, ("return", "cpu", "memory"), _INTEGRAL,
             "The caption of Figure 5.26 says GPU, but these are cells without a GPU: CPU is meant. The text reads Figures 5.25 to "
             "5.27 as CPU, memory and return, but the captions say return, GPU and memory: the order here is theirs."),
    _Numbers(28, "ppo", False, "Use per step", _STEPS, _PER_STEP),
    _Numbers(30, "ppo", True, _PER, ("return", "cpu", "memory"), _INTEGRAL,
             f"{_CORES_MEANT} That of Figure 5.31 says GPU where the text speaks of the CPU."),
    _Numbers(33, "ppo", True, "Use per step", _STEPS, _PER_STEP, _CORES_MEANT),
    _Numbers(35, "rainbow", True, _PER, ("cpu", "memory", "return"), _INTEGRAL),
    _Numbers(38, "rainbow", True, "Use per step", _STEPS, _PER_STEP),
)  # fmt: skip


def figures(data: PaperData) -> Iterator[Figure | Empty]:
    """Draw the figures, in panels that name the paper's numbers; for those without values: the title, and the reason."""
    rows, left = of_one_kind(data.rows)
    yield from with_text(_figures(replace(data, rows=rows)), left)


def _figures(data: PaperData) -> Iterator[Figure | Empty]:
    rows = data.rows
    of_paper = rows["framework"].map(_MODES).eq(rows["execution"]) & rows["workload"].isin(list(_ALGORITHMS))
    rows = rows[of_paper].assign(cores=cores(rows), configuration=rows["what"] + ", " + rows["where"])
    on_cpu, on_gpu = rows[rows["gpus"] == 0], rows[rows["gpus"] > 0]
    known = clocks(rows, data.episodes)
    told = replace(data, episodes=in_training(known, data.episodes), samples=in_training(known, data.samples))
    for place, quantity in enumerate(_QUANTITIES):
        yield _frameworks(_FRAMEWORKS_FROM + 2 * place, quantity, on_cpu, told, known)
    if on_cpu["cluster"].nunique() > 1:
        for place, quantity in enumerate(_QUANTITIES):
            yield _platforms(_PLATFORMS_FROM + 4 * place, quantity, on_cpu, told, known)
    else:
        yield "Figures 5.9 to 5.24: Return, CPU and memory by platform", "not run on two platforms"
    for group in _NUMBERS:
        if not group.of_gpus or not on_gpu.empty:
            yield _numbers(group, on_gpu if group.of_gpus else on_cpu, data, known)
    if on_gpu.empty:
        slip = _CORES_MEANT.removesuffix(".")
        yield "Figures 5.30 to 5.39: PPO and Rainbow against the number of GPUs", f"not run on a GPU. {slip}"


def _frameworks(first: int, quantity: Quantity, rows: pd.DataFrame, data: PaperData, known: Clocks) -> Figure | Empty:
    """Draw both frameworks on one platform, with a panel for each algorithm."""
    rows, text = _of_size(at_home(rows, _HOME), _FRAMEWORKS_CORES)
    panels = {name: f"Figure 5.{first + place}: {title}" for place, (name, title) in enumerate(_ALGORITHMS.items())}
    rows = rows.assign(what=rows["framework"].map(display), panel=rows["workload"].map(panels).astype(object))
    heading, lines = _heading(first, 2, quantity.title), [display(name) for name in _MODES]
    mixed = of_clocks(rows, known)
    return over_training(_name(first), heading, quantity, rows, [*panels.values()], lines, text, data, mixed)


def _platforms(first: int, quantity: Quantity, rows: pd.DataFrame, data: PaperData, known: Clocks) -> Figure | Empty:
    """Draw all platforms, with a panel for each framework and algorithm."""
    heading = _heading(first, 4, f"{quantity.title} by platform")
    rows = rows.assign(cluster=rows["cluster"].astype(str))
    platforms = sorted(rows["cluster"].unique())
    common = set.intersection(*(set(rows.loc[rows["cluster"] == name, "cores"]) for name in platforms))
    if not common:
        return heading, "not run on the same number of cores of all platforms"
    rows, text = _of_size(rows[rows["cores"].isin(common)], _PLATFORMS_CORES)
    kinds = [(framework, algorithm) for framework in _MODES for algorithm in _ALGORITHMS]
    panels = {
        kind: f"Figure 5.{first + place}: {display(kind[0])}, {_ALGORITHMS[kind[1]]}"
        for place, kind in enumerate(kinds)
    }
    panel = [panels[kind] for kind in zip(rows["framework"], rows["workload"], strict=True)]
    hues = rows["cluster"].map(colours(platforms))
    rows = rows.assign(what=rows["cluster"], colour=rows["cluster"], hex=hues, dash="", panel=panel)
    text += " The platforms are the clusters of this dataset, in place of Cirrus and Ubuntu 20.04."
    text += " Not run: Windows 10, the first row of Table 3.6, because hpcrl does not run on Windows."
    if quantity.by_episode:
        text += " A seed can give the same returns on every platform; then one line covers the other."
    slip = _TWICE if first < 21 else _VIRTUAL
    text += f" {slip.format(*range(first, first + 4))}"
    mixed = of_clocks(rows, known)
    return over_training(_name(first), heading, quantity, rows, [*panels.values()], platforms, text, data, mixed)


def _numbers(group: _Numbers, rows: pd.DataFrame, data: PaperData, known: Clocks) -> Figure | Empty:
    """Draw values of whole runs on one platform, each beside the quantity that does not mislead."""
    unit, column = ("GPUs", "gpus") if group.of_gpus else ("CPU cores", "cores")
    tried = at_home(rows[rows["workload"] == group.algorithm], _HOME)
    tried = tried.assign(x=tried[column], what=tried["framework"].map(display))
    rows = tried[tried["outcome"] == "completed"]
    values = []
    for number, name in enumerate(group.values, group.first):
        paper, ours = _VALUES[name]
        values += [(f"Figure 5.{number}", paper), (f"Beside 5.{number}", ours)]
    if len(rows):
        rows = with_integrals(_fewest_ranks(rows, column), data.episodes, data.samples)
        rows = rows.assign(own_ms=1e3 * rows["cpu_per_step"], step_ms=1e3 * rows["time_per_step"])
    heading = _heading(group.first, len(group.values), f"{group.title} of {_ALGORITHMS[group.algorithm]}, by {unit}")
    asked = {gpus if group.of_gpus else cores for cores, gpus in data.asked if (gpus > 0) == group.of_gpus}
    missing = not_run(tried, asked, [display(name) for name in _MODES], unit)
    text = f"{' '.join(filter(None, [_place(rows), group.text, group.slip]))}{missing}"
    return against_number(_name(group.first), heading, rows, values, unit, text, of_clocks(rows, known))


def _name(first: int) -> str:
    return f"cirrus-5-{first:02}"


def _heading(first: int, number: int, title: str) -> str:
    return f"Figures 5.{first} {'and' if number == 2 else 'to'} 5.{first + number - 1}: {title}"


def _of_size(rows: pd.DataFrame, wanted: int) -> tuple[pd.DataFrame, str]:
    """Return the rows with one number of cores, and how it compares with the paper's.

    It is the nearest one to the paper's of those that the machine has and with which most configurations completed.
    """
    if rows.empty:
        return rows, ""
    done = rows[(rows["outcome"] == "completed") & ~rows["crowded"]]
    able = done if len(done) else rows
    kinds = able.drop_duplicates(["cores", "framework", "workload"])["cores"].value_counts()

    def distance(cores: int) -> tuple[int, int]:
        return abs(cores - wanted), cores

    cores = min(kinds.index[kinds == kinds.max()], key=distance)
    nearer = sorted(other for other in set(rows["cores"]) if distance(other) < distance(cores))
    paper = "as in the paper" if cores == wanted else f"where the paper has {wanted}"
    text = f"With {count(int(cores), 'core')}, {paper}."
    if nearer:
        text += f" With {', '.join(map(str, nearer))} the machine had fewer cores than that, or fewer configurations completed."
    rows = _fewest_ranks(rows[rows["cores"] == cores], "cores")
    return rows, f"{_place(rows)} {text}"


def _fewest_ranks(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the layout with the fewest ranks for each number, because the paper's programs are single processes."""
    tasks = rows["tasks"].fillna(1)
    return rows[tasks == tasks.groupby(rows[column]).transform("min")]


def _place(rows: pd.DataFrame) -> str:
    return f"From the runs on {', '.join(sorted(rows['cluster'].astype(str).unique()))}."
