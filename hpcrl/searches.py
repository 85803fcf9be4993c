"""A search for hyperparameters as the plan has it: its settings, and the keys of its cells.

A search has one cell for each trial, whose hyperparameters are drawn when it starts, and then one cell for each seed of the study with
the best trial's hyperparameters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The key of a cell that says what it is, and its values.
ROLE, TRIAL, BEST = "search", "trial", "best"
TRIALS = "trials"  # the number of trials that the best one was chosen from
KEYS = (ROLE, TRIAL, TRIALS)
ID = "search_id"  # in datasets: which search a cell belongs to, the name of its journal
# The directory of a plan with the journals of its searches: one file for each combination of the other axes.
FOLDER = "searches"
# What the trials of built-in training are compared by, and the usual direction.
OBJECTIVES = {
    "final_score": "maximize",
    "best_score": "maximize",
    "mean_score": "maximize",
    "training_time": "minimize",
}


# The options of each of Optuna's pruners, all whole numbers, with their least values. A resource or step is an evaluation.
PRUNERS: dict[str, dict[str, int]] = {
    "none": {},
    "median": {"n_startup_trials": 0, "n_warmup_steps": 0, "interval_steps": 1, "n_min_trials": 1},
    "hyperband": {"min_resource": 1, "max_resource": 1, "reduction_factor": 2},
    "halving": {"min_resource": 1, "reduction_factor": 2, "min_early_stopping_rate": 0},
}


def first_pruning(pruner: str, options: Mapping[str, int]) -> int:
    """Return the number of evaluations after which a pruner of Optuna ends a trial at the earliest."""
    if pruner == "median":
        return max(1, options.get("n_warmup_steps", 0))
    least = options.get("min_resource", 1)
    if pruner == "halving":
        least *= options.get("reduction_factor", 4) ** options.get("min_early_stopping_rate", 0)
    return least


@dataclass(frozen=True)
class SearchFacts:
    """What a cell and the report need of a search. `space`: name -> the values, or `low`, `high`, `log` and `step`."""

    trials: int
    space: Mapping[str, Any]
    directions: Mapping[str, str]
    sampler: str = "tpe"
    pruner: str = "none"
    pruner_options: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0


def setting_of(config: Mapping[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the study's own axes set in a cell: all cells of one search have the same."""
    return {name: value for name, value in config.items() if name not in (*KEYS, ID, "seed", *space)}


def journal_name(what_is_computed: Mapping[str, Any], search: SearchFacts) -> str:
    """Return the name of the file with the trials of a search: another one if something else is computed, the same for more trials."""
    facts = vars(search) | {"trials": None}
    if not search.pruner_options:  # as before there were any
        del facts["pruner_options"]
    what = [dict(what_is_computed), facts]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12] + ".journal"
