"""How hpcrl's runs are found again in MLflow, and what its store accepts in one call.

Source: MLflow's REST API, https://mlflow.org/docs/latest/api_reference/rest-api.html
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hpcrl.formats.events import EPISODE

ADDRESS = "MLFLOW_TRACKING_URI"
KEY = "hpcrl.run"  # tag: which attempt a run is, or which plan or search of a study a parent run is of
BEST_TAG = "best."  # begins the tags of a search's run with the values of its best trial
CONTENT = "hpcrl.content"  # tag: the digest of what was exported; a run without it is not complete
PARENT = "mlflow.parentRunId"  # MLflow's own tag of a nested run
METRICS_AT_ONCE, PARAMETERS_AT_ONCE = 1_000, 100
LENGTH, ENDED = "length/episode", "count/episode"
_LONGEST = 6_000  # characters of a parameter's value
_ODD = re.compile(r"[^\w\-. /:]", re.ASCII)  # what names cannot have
_LONGEST_NAME = 250  # characters of a name


def key_of_parent(study: str, attempt: str, search: str = "") -> str:
    """Return the key of the parent of an attempt's run, from the study's name and the attempt's key: each plan of a study has one.

    Args:
        search: the name of the journal, for a cell of a search: each search of a plan has one.
    """
    return f"study {study} {attempt.partition('/')[0]}{search and f' search {search}'}"


def name_of_parent(study: str, search: str = "") -> str:
    return f"{study} search {search}" if search else study


def key_of_attempt(plan: str, cell: str, attempt: str) -> str:
    return f"{plan}/{cell}/{attempt}"


def metrics_of_step(returns: Sequence[float], lengths: Sequence[float]) -> dict[str, float]:
    """Return the metrics of the episodes that ended at one environment step: mean return, mean length in steps, and their number.

    Environments that step together end many episodes at one step. The store keeps only one of two points with equal metric, step, value and
    time in milliseconds, so that a point for each episode would lose some.

    Source: MLflow's tracking store, ``SqlMetric``, whose primary key they are.
    """
    count = len(returns)
    return {EPISODE: sum(returns) / count, LENGTH: sum(lengths) / count, ENDED: float(count)}


def plain(name: str) -> str:
    """Return a metric's or a parameter's name as the store takes it: no odd characters, and only a path in its shortest form."""
    kept = _ODD.sub("_", name)[:_LONGEST_NAME]
    return kept if posixpath.normpath(kept) == kept else kept.replace("/", "_")


def parameters(columns: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of a run: columns of its attempt, and every axis.

    An axis that is also a column is that column, or `axis_...` if it is another value: `environment` is the software there.
    """
    axes = {}
    for name, value in config.items():
        if value is not None:
            is_other = name in columns and columns[name] != value
            axes[f"axis_{name}" if is_other else plain(name)] = value
    return {name: str(value)[:_LONGEST] for name, value in {**axes, **columns}.items()}
