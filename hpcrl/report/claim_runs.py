"""The runs that a paper's claims compare: configurations by the paper's names, and the measures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hpcrl.formats.runs import goal_wall_time
from hpcrl.report.statistics import Values
from hpcrl.spec.claim_tests import SCORES, Measure, Names, Place
from hpcrl.spec.claims import Claims, Configuration

_MOST_TOLD = 8  # comparisons that have a sentence of their own
_OF_ANY_MACHINE: tuple[Measure, ...] = (*SCORES, "goal_step")  # do not depend on the machine
# Do not depend on how many of its cores are real.
OF_ANY_CORES: tuple[Measure, ...] = (
    *_OF_ANY_MACHINE, "memory", "memory_range", "machine_memory", "machine_memory_range", "gpu_memory",
)  # fmt: skip
# measure -> column, name, whether it is a value of the whole machine
MEASURES: dict[Measure, tuple[str, str, bool]] = {
    "training_time": ("training_time", "training time", False),
    "training_and_evaluation_time": ("training_and_evaluation_time", "training time with evaluations", False),
    "wall_time": ("wall_time", "wall time", False),
    "goal_time": ("goal_time", "training time to the goal", False),
    "goal_wall_time": ("goal_wall_time", "wall time to the goal", False),
    "final_score": ("final_score", "last policy's score", False),
    "last_return": ("last_return", "return of the training episodes in the last tenth of the steps", False),
    "cpu": ("own_cores", "the job's own cores in use in training", False),
    "cpu_share": ("own_share", "share of the cell's cores that the job uses in training", False),
    "memory": ("memory", "the job's own RAM", False),
    "machine_cpu": ("machine_cpu_mean", "CPU use of the machine in training", True),
    "machine_memory": ("machine_memory_mean", "RAM use of the machine in training", True),
    "gpu": ("gpu_percent", "GPU utilisation", False),
    "gpu_memory": ("gpu_memory_peak", "GPU memory", False),
    "energy": ("energy", "energy of the GPUs", False),
    "goal_step": ("goal_step", "environment steps to the goal", False),
    "cpu_per_step": ("cpu_per_step", "the job's own CPU time per step", False),
    "machine_cpu_per_step": ("machine_cpu_per_step", "CPU use of the machine, times the time per step", True),
    "machine_memory_per_step": ("machine_memory_per_step", "RAM use of the machine, times the time per step", True),
    "memory_range": ("memory_range", "maximum of the job's own RAM in training, divided by the minimum", False),
    "machine_memory_range": (
        "machine_memory_range",
        "maximum of the machine's RAM use in training, divided by the minimum",
        True,
    ),
    "update_per_step": ("update_per_step", "time of the updates per environment step", False),
    "stepping_time": ("stepping_time", "time in which the environments step", False),
}


@dataclass(frozen=True)
class Runs:
    """The runs of a study that a claim is about: those of one cluster, or of all if the claim names clusters.

    Args:
        busy: for each run, the other work on its machine, or an empty text.
        clusters: a platform of the paper: the names of clusters that it means.
    """

    claims: Claims
    rows: pd.DataFrame
    busy: pd.Series[str]
    places: Mapping[str, Place]
    clusters: Mapping[str, Names]

    def name(self, configuration: Configuration) -> str:
        """Return a configuration in the paper's words; a substituted platform has the name of its cluster."""
        words = [self.claims.frameworks.get(configuration.framework, configuration.framework)]
        if configuration.algorithm:
            words.append(self.claims.algorithms.get(configuration.algorithm, configuration.algorithm))
        text = f"{' '.join(words)} {configuration.execution} on {configuration.place}"
        if not configuration.cluster:
            return text
        meant = self.clusters[configuration.cluster]
        substituted = meant != self.claims.clusters[configuration.cluster]
        return f"{text} of {', '.join(meant) if substituted else configuration.cluster}"

    def of(self, configuration: Configuration) -> pd.DataFrame:
        """Return the runs of a configuration."""
        rows = self.rows[self.in_place(self.places[configuration.place]) & self.on(configuration.cluster)]
        if configuration.algorithm:
            rows = rows[rows["workload"] == configuration.algorithm]
        return rows[(rows["framework"] == configuration.framework) & (rows["execution"] == configuration.execution)]

    def on(self, platform: str | None) -> pd.Series[bool]:
        """Tell which runs are of a platform. A cluster's name may have a host in brackets."""
        if platform is None:
            return pd.Series(True, index=self.rows.index)
        return self.rows["cluster"].astype(str).str.partition(" (")[0].isin(self.clusters[platform])

    def in_place(self, place: Place) -> pd.Series[bool]:
        """Tell which runs had the resources of a place."""
        rows = self.rows
        fits = (rows["gpus"] > 0) == (place.device == "gpu")
        if place.parallelism is not None:
            fits &= rows["parallelism"].fillna("none") == place.parallelism
        for name in ("cpus", "gpus", "tasks", "nodes"):
            if (wanted := getattr(place, name)) is not None:
                fits &= rows[name].fillna(1) == wanted
        if place.study:
            fits &= rows["study"].isin(place.study)
        if place.settings:
            fits &= rows["config"].map(lambda text: place.has(json.loads(text))).astype(bool)
        return fits

    def only(self, configuration: Configuration) -> pd.DataFrame | str:
        """Return the runs of a configuration, or the reason why they cannot be compared."""
        name, rows = self.name(configuration), self.of(configuration)
        if rows.empty:
            for named, where in (
                (configuration.cluster, self.on(configuration.cluster)),
                (configuration.place, self.in_place(self.places[configuration.place])),
            ):
                if named and not where.any():
                    return f"no run on {named}{self._device_of(named)}"
            return f"{name} was not run"
        if (different := len(rows[["cluster", "what", "where"]].drop_duplicates())) > 1:
            return f"{name} means {different} configurations of this study"
        return rows

    def _device_of(self, place: str) -> str:
        """Return a GPU in words, if it belongs to a place whose name does not say it."""
        known = self.places.get(place)
        return ", on a GPU" if known and known.device == "gpu" and "GPU" not in place else ""

    def apart(self, one: Configuration, other: Configuration, measure: Measure) -> str:
        """Say that two configurations ran on different kinds of machines, so that a difference may be theirs; "" otherwise.

        Two platforms, and a CPU and a GPU, are different machines by the claim itself.
        """
        devices = {self.places[side.place].device for side in (one, other)}
        if measure in _OF_ANY_MACHINE or one.cluster != other.cluster or len(devices) > 1:
            return ""
        every = [self.of(side) for side in (one, other)]
        kinds = {str(kind) for rows in every for kind in rows.loc[rows["outcome"] == "completed", "machine"] if kind}
        if len(kinds) < 2:
            return ""
        told = "; ".join(sorted(kinds))
        return f"{self.name(one)} and {self.name(other)} ran on different kinds of machines ({told})"


def values_of(rows: pd.DataFrame, column: str) -> Values:
    """Return the known values of a measure's column."""
    if column == "goal_wall_time":
        values = goal_wall_time(rows)
    elif column == "training_and_evaluation_time":
        values = rows["training_time"] + rows["evaluation_time"].fillna(0.0)
    else:
        values = rows[column]
    return np.asarray(values.dropna().to_numpy(float))


def listed(texts: Iterable[str]) -> str:
    """Join comparisons in words, and count those beyond the first."""
    told = list(texts)
    more = len(told) - _MOST_TOLD
    return "; ".join(told[:_MOST_TOLD]) + (f"; and {more} more" if more > 0 else "")
