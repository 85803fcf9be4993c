"""Group the cells that differ only in their seed, as one line of the comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hpcrl.catalogue.registry import algorithms
from hpcrl.formats.outcomes import NOT_BY_ITSELF
from hpcrl.formats.runs import OF_ONE_ATTEMPT, cores, goal_wall_time, hosts, machines
from hpcrl.profilers import is_extra
from hpcrl.report.design import colours, counted, digits_of, display, natural
from hpcrl.report.names import names_of
from hpcrl.report.statistics import Estimate, geometric_mean, median

# Columns that name a line of the comparison.
KEYS = ("study", "cluster", "what", "where")
_LENGTHS = ("total_steps", "total_episodes")  # of a training
_RESOURCES = ("tasks", "cpus", "gpus", "gpu_type", "parallelism", "overcommit")
_MOST_COLOURS = 8  # values of an axis that colours can distinguish
_MOST_APART = 6  # configurations of a framework and mode that have panels of their own


def with_groups(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the latest attempt of each cell with `what` (configuration), `where` (resources), `colour`, `hex`, `dash`.

    A cell that several plans have run is one seed, not several, and its latest run counts; one that was ended from outside does not, if
    another completed. The same holds for cells of a line
    that have one seed: their software environments differ. Machines of two kinds are never
    one line: `cluster` distinguishes hosts without Slurm, `where` distinguishes kinds of nodes. `where` also has the Gymnasium environment of a
    study with several, because scores of two environments are not compared. `task` is the algorithm where algorithms train for different
    numbers of steps or episodes, and else nothing: only configurations of one task are compared.
    `colour` is the display name that a colour stands for (the framework; else an axis), `hex` that colour, the same for
    any subset of the rows. `apart` names what colour and dash do not tell, and so needs a panel of its own. Also `repeats` (how
    often it ran), `threads` (of the whole machine), `crowded` (it had more cores to use than its machine has, as on a simulated
    cluster; `where` says how many are real) and `memory`: the peak of the job's own in bytes, shared pages counted once (of
    records up to format 3 as far as samples saw it).
    Scores are finite and of completed cells.
    """
    cells = cells.assign(machine=machines(cells))
    latest = _latest(cells)
    rows = cells[latest | _elsewhere(cells, latest)]
    rows = _by_machine(rows[~_has_completed(rows)])
    configs = _configs(rows)
    given: dict[int, str] = {}
    for _, places in _places(rows["study"]):
        given |= dict(zip(places, names_of([configs[place] for place in places]), strict=True))
    rows["what"] = [given[place] for place in range(len(rows))]
    threads = {text: json.loads(text).get("threads") for text in rows["hardware"].dropna().unique()}
    rows["threads"] = rows["hardware"].map(threads).astype(float)
    real = rows["threads"] * hosts(rows)
    rows["crowded"] = cores(rows) > real
    rows["where"] = _environments(rows) + pd.Series(resources(rows), rows.index, dtype=str)
    rows["where"] += _real(rows, real)
    rows["where"] += kinds(rows, ["study", "cluster", "where"])
    rows["task"] = _tasks(rows)
    rows = _newest(rows)
    configs = _configs(rows)
    rows["dash"] = [str(config.get("execution") or "") for config in configs]
    named: dict[int, tuple[str, str, str]] = {}
    for _, places in _places(rows["study"]):
        own = [configs[place] for place in places]
        names = _colour_names(own, [str(rows["what"].iloc[place]) for place in places])
        hues = colours(names)
        apart = _apart(own, rows.iloc[places].assign(colour=names))
        named |= {place: (name, hues[name], rest) for place, name, rest in zip(places, names, apart, strict=True)}
    for part, column in enumerate(("colour", "hex", "apart")):
        rows[column] = [named[place][part] for place in range(len(rows))]
    rows[OF_ONE_ATTEMPT] = rows[OF_ONE_ATTEMPT].mask(rows["resumed_step"].notna())
    # A value that a cell reported before it failed is not a score, and neither is an infinite one.
    score = rows["final_score"].astype(float)
    rows["final_score"] = score.where((rows["outcome"] == "completed") & np.isfinite(score))
    rows["memory"] = rows["memory_peak"].fillna(rows["pss_peak"])
    return rows


def _configs(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return what the cells set, without the environment that agents are trained in."""
    read = (json.loads(text) for text in rows["config"])
    trained = rows["workload"] != "command"
    return [
        {name: value for name, value in config.items() if name != "environment" or not trains}
        for config, trains in zip(read, trained, strict=True)
    ]


def _environments(rows: pd.DataFrame) -> pd.Series[str]:
    """Return the Gymnasium environment of each cell and a comma, for the studies that train in several; else nothing."""
    named = rows["config"].map(lambda text: json.loads(text).get("environment", ""))
    several = named.groupby(rows["study"], observed=True).transform("nunique") > 1
    return (named.astype(str) + ", ").where(several & (named != "") & (rows["workload"] != "command"), "")


def _tasks(rows: pd.DataFrame) -> pd.Series[str]:
    """Return the algorithm of each cell of the studies whose algorithms train for different numbers of steps or episodes; else nothing.

    Times and scores of such algorithms would compare two things at once.
    """
    trains = rows[rows["workload"] != "command"]
    settings = trains["settings"] if "settings" in trains else pd.Series("{}", trains.index)
    lengths = []
    for workload, config, common in zip(trains["workload"], trains["config"], settings.fillna("{}"), strict=True):
        given = json.loads(common) | json.loads(config)
        defaults = algorithms()[workload].settings() if workload in algorithms() else None
        lengths.append(str([given.get(name, getattr(defaults, name, 0)) for name in _LENGTHS]))
    names = pd.Series("", rows.index)
    for _, study in trains.assign(length=lengths).groupby("study", observed=True):
        if len({frozenset(own["length"]) for _, own in study.groupby("workload", observed=True)}) > 1:
            names[study.index] = study["workload"].map(display).astype(str)
    return names


def _newest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the run of each seed of a line that started last, and in `repeats` the number of all; without a seed of each cell."""
    keys = [*KEYS, "run"]
    rows = rows.assign(run=rows["seed"].astype(object).where(rows["seed"].notna(), rows["cell"]))
    rows = rows.assign(repeats=rows.groupby(keys, observed=True)["cell"].transform("size"))
    ordered = rows.sort_values("started", kind="stable", na_position="first")
    return ordered.drop_duplicates(keys, keep="last").sort_index().drop(columns="run")


def _real(rows: pd.DataFrame, real: pd.Series[float]) -> pd.Series[str]:
    """Return how many cores are real, in brackets, where they are fewer; of a cell without a record as the others of its place."""
    told = [f" ({number:.0f} real)" if more else "" for number, more in zip(real, rows["crowded"], strict=True)]
    words = pd.Series(told, rows.index, dtype=object).mask(real.isna())
    of_others = words.groupby([rows["study"], rows["cluster"], rows["where"]]).transform("first")
    return words.fillna(of_others).fillna("").astype(str)


def _latest(cells: pd.DataFrame) -> pd.Series[bool]:
    """Mark the attempt of each cell of a plan that counts: the latest, or, if that was ended from outside, the latest that ended by itself.

    A cell that runs again runs, unless it has completed before.
    """
    newest, outside = cells["latest"].astype(bool), cells["outcome"].isin(NOT_BY_ITSELF)
    if not (newest & outside).any():
        return newest

    def in_cell(flags: pd.Series[bool]) -> pd.Series[bool]:
        """Tell for each attempt whether any attempt of its cell has a flag."""
        return flags.groupby([cells["plan"], cells["cell"]], observed=True).transform("any").astype(bool)

    by_hand = map(is_extra, cells["profile"], cells["config"])
    ended = ~outside & ~np.fromiter(by_hand, dtype=bool, count=len(cells)) & in_cell(newest & outside)
    ended &= (cells["outcome"] == "completed") | ~in_cell(newest & (cells["outcome"] == "running"))
    numbers = cells["attempt_number"].astype(float).where(ended)
    chosen = numbers == numbers.groupby([cells["plan"], cells["cell"]], observed=True).transform("max")
    return (newest & ~in_cell(chosen)) | chosen


def _elsewhere(cells: pd.DataFrame, latest: pd.Series[bool]) -> pd.Series[bool]:
    """Tell for older attempts whether they completed on another kind of machine than that of the latest one."""
    keys = ["study", "cluster", "cell", "machine"]
    newest = pd.MultiIndex.from_frame(cells.loc[latest, keys])
    there = pd.MultiIndex.from_frame(cells[keys]).isin(newest)
    return (cells["outcome"] == "completed") & ~there & (cells["machine"] != "")


def _has_completed(rows: pd.DataFrame) -> pd.Series[bool]:
    """Tell for each attempt that was ended from outside whether another one of its cell completed, perhaps on another machine."""
    keys = ["study", "cluster", "cell"]
    completed = pd.MultiIndex.from_frame(rows.loc[rows["outcome"] == "completed", keys])
    return rows["outcome"].isin(NOT_BY_ITSELF) & pd.MultiIndex.from_frame(rows[keys]).isin(completed)


def _by_machine(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the host to the name of the cluster if there are several hosts without Slurm.

    The cells on a host's GPUs and those on its cores are of one cluster.
    """
    local = rows["attempt"].str.startswith("local-")
    names = rows["cluster"].astype(str)
    told = kinds(rows.assign(machine=machines(rows, with_gpus=False)), ["study", "cluster"])
    return rows.assign(cluster=names + told.where(local, ""))


def kinds(rows: pd.DataFrame, keys: list[str]) -> pd.Series[str]:
    """Return the difference between the machines of each group, in brackets after a space; nothing if they are of one kind.

    Args:
        rows: attempts with `machine`, and the columns `keys`, which group them.
    """
    told: dict[Any, str] = {}
    for _, group in rows.groupby(keys, sort=False, observed=True):
        known = [kind for kind in group["machine"].unique() if kind]
        if len(known) < 2:
            continue
        common = set.intersection(*(set(kind.split(", ")) for kind in known))
        short = {kind: ", ".join(part for part in kind.split(", ") if part not in common) for kind in known}
        # The machine of an attempt without a record is not known.
        words = {kind: f" ({rest})" if rest else "" for kind, rest in short.items()} | {"": " (unknown machine)"}
        told |= dict(zip(group.index, group["machine"].map(words), strict=True))
    return pd.Series([told.get(index, "") for index in rows.index], rows.index, dtype=str)


def _places(column: pd.Series[str]) -> list[tuple[str, list[int]]]:
    """Return the positions of the rows of each value."""
    places: dict[str, list[int]] = {}
    for place, value in enumerate(column):
        places.setdefault(value, []).append(place)
    return list(places.items())


def _colour_names(configs: list[dict[str, Any]], whats: list[str]) -> list[str]:
    """Return the value that the colour of each cell shows: its framework, otherwise the first axis with few values.

    Of one framework topologies have a colour each, and so have a few configurations.
    """
    frameworks, topologies = ({config.get(name) for config in configs} for name in ("framework", "topology"))
    if len(frameworks) == 1 and len(topologies) > 1:
        return [display(config.get("topology") or "sequential") for config in configs]
    if None not in frameworks:
        rest = _rest(configs)
        if len(frameworks) == 1 < len(set(rest)) <= _MOST_COLOURS:
            return rest
        return [display(config["framework"]) for config in configs]
    if len(set(whats)) <= _MOST_COLOURS:
        return whats
    for axis in dict.fromkeys(key for config in configs for key in config if key != "seed"):
        values = {str(config.get(axis)) for config in configs}
        if 1 < len(values) <= _MOST_COLOURS:
            digits = digits_of(config.get(axis) for config in configs)
            return [f"{axis} {display(config.get(axis), digits)}" for config in configs]
    return ["all"] * len(configs)


def _rest(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the configurations without framework and mode."""
    return names_of(
        [{key: config[key] for key in config if key not in ("framework", "execution")} for config in configs]
    )


def _apart(configs: Sequence[Mapping[str, Any]], rows: pd.DataFrame) -> list[str]:
    """Name the configurations without framework and mode if a place has two with the same colour and dash, but not very many."""
    rest = _rest(configs)
    alike = rows.groupby(["cluster", "where", "colour", "dash"])["what"].nunique().max() > 1
    several_frameworks = len({config.get("framework") for config in configs}) > 1
    return rest if alike and several_frameworks and len(set(rest)) <= _MOST_APART else [""] * len(rest)


def resources(rows: pd.DataFrame) -> list[str]:
    """Return the names of the resources of attempts, with the number of nodes, and memory or time as axes, where these distinguish them."""
    asked = rows[list(_RESOURCES)].to_dict("records")
    told = [_where(row, "topology" in json.loads(text)) for row, text in zip(asked, rows["config"], strict=True)]
    names = pd.Series(told, rows.index, dtype=str)
    nodes = rows["nodes"].fillna(1).astype(int)
    several = nodes.groupby([rows["study"], rows["cluster"], names]).transform("nunique") > 1
    names += pd.Series([f", {counted(number, 'node')}" for number in nodes], rows.index).where(several, "")
    alike = rows.groupby([rows["plan"], rows["config"], names], dropna=False, observed=True)
    twins = alike["cell"].transform("nunique") > 1
    limits = {
        "memory_mib": [f", {size / 1024:g} GiB" for size in rows["memory_mib"].astype(float)],
        "time_limit": [f", at most {seconds:g} s" for seconds in rows["time_limit"].astype(float)],
    }
    for column, words in limits.items():
        names += pd.Series(words, rows.index).where(twins & (alike[column].transform("nunique") > 1), "")
    return list(names)


def _where(row: Mapping[Any, Any], has_topology: bool) -> str:
    """Name the resources of a cell. Of ranks that share cores only the cores are resources, where the topology tells their number."""
    tasks = int(row["tasks"]) if not pd.isna(row["tasks"]) else 1
    cores = f"{int(row['cpus'])} core{'s' if row['cpus'] > 1 else ''}"
    text = f"{tasks} × {cores}" if tasks > 1 else cores
    if tasks > 1 and not pd.isna(row["overcommit"]) and row["overcommit"]:
        text = cores if has_topology else f"{tasks} ranks on {cores}"
    if row["gpus"]:
        kind = row["gpu_type"] if isinstance(row["gpu_type"], str) else f"GPU{'s' if row['gpus'] > 1 else ''}"
        text += f", {int(row['gpus'])} {kind}"
    if row["parallelism"] not in (None, "none") and isinstance(row["parallelism"], str):
        text += f", {display(row['parallelism'])}"
    return text


@dataclass(frozen=True)
class Line:
    """One line of the comparison, over seeds: geometric means of times, medians of everything else.

    Args:
        final: the median score; its interval contains the median of all seeds with probability `level`.
        training, wall: geometric means over completed cells in seconds, with 95 % intervals of t on logarithms.
        setup_time, compile_time, goal_time, goal_wall_time: medians, in seconds.
        cpu, gpu: medians, in percent. memory: median of the peaks, in bytes.
        cpu_above, memory_above: medians of the whole machine minus the same machine when it was idle, in percent, without cells
            that shared a machine.
    """

    study: str
    cluster: str
    what: str
    where: str
    cells: int
    completed: int
    final: Estimate | None
    at_goal: int
    goal_step: float | None
    goal_time: float | None
    goal_wall_time: float | None
    training: Estimate | None
    wall: Estimate | None
    setup_time: float | None
    compile_time: float | None
    cpu: float | None
    memory: float | None
    gpu: float | None
    cpu_above: float | None = None
    memory_above: float | None = None


def lines(rows: pd.DataFrame) -> list[Line]:
    """Summarise each group; times and steps to the goal are medians over the seeds that reached it.

    `training` (from the first step) and `wall` (from the record's start) are of completed cells only, because the time of
    an incomplete training would look like a fast one.

    Args:
        rows: attempts with the columns of `with_groups`, and `shared` if it is known.
    """
    rows = rows.assign(goal_wall_time=goal_wall_time(rows), cpu=rows["cpu_utilisation"] * 100)
    rows = rows.assign(**{f"{name}_above": _above_idle(rows, name) for name in ("cpu", "memory")})
    middle = (
        "goal_step",
        "goal_time",
        "goal_wall_time",
        "setup_time",
        "compile_time",
        "cpu",
        "memory",
        "gpu_percent",
        "cpu_above",
        "memory_above",
    )
    keys = list(KEYS)
    rows = rows[
        [*keys, *middle, "outcome", "final_score", "training_time", "wall_time"]
    ]  # groups of few columns are made fast
    numbers = rows.assign(**{name: rows[name].astype(float) for name in middle})
    medians: dict[Any, dict[str, float]] = numbers.groupby(keys)[list(middle)].median().to_dict("index")  # type: ignore[assignment]
    out = []
    for key, group in rows.groupby(keys, sort=True):
        study, cluster, what, where = (str(name) for name in key)
        final = group["final_score"].dropna().to_numpy(float)
        whole = group[group["outcome"] == "completed"]
        half = {name: None if pd.isna(value) else float(value) for name, value in medians[key].items()}
        out.append(
            Line(
                study=study,
                cluster=cluster,
                what=what,
                where=where,
                cells=len(group),
                completed=len(whole),
                final=median(final) if len(final) else None,
                at_goal=int(group["goal_step"].notna().sum()),
                goal_step=half["goal_step"],
                goal_time=half["goal_time"],
                goal_wall_time=half["goal_wall_time"],
                training=_time(whole["training_time"]),
                wall=_time(whole["wall_time"]),
                setup_time=half["setup_time"],
                compile_time=half["compile_time"],
                cpu=half["cpu"],
                memory=half["memory"],
                gpu=half["gpu_percent"],
                cpu_above=half["cpu_above"],
                memory_above=half["memory_above"],
            )
        )
    return sorted(out, key=lambda line: tuple(map(natural, (line.study, line.cluster, line.what, line.where))))


def _above_idle(rows: pd.DataFrame, name: str) -> pd.Series[float]:
    above = rows[f"machine_{name}_percent"].astype(float) - rows[f"idle_{name}_percent"].astype(float)
    return above.mask(rows["shared"].astype(bool)) if "shared" in rows else above


def _time(column: pd.Series[Any]) -> Estimate | None:
    values = np.asarray(column.dropna().to_numpy(float))
    if not len(values):
        return None
    return geometric_mean(values) if values.min() > 0 else median(values)
