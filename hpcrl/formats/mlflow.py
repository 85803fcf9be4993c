"""How hpcrl's runs are found again in MLflow, and what its store accepts in one call.

Source: MLflow's REST API, https://mlflow.org/docs/latest/api_reference/rest-api.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ADDRESS = "MLFLOW_TRACKING_URI"
KEY = "hpcrl.run"  # tag: which attempt a run is, or which study a parent run is of
CONTENT = "hpcrl.content"  # tag: the digest of what was exported; a run without it is not complete
PARENT = "mlflow.parentRunId"  # MLflow's own tag of a nested run
METRICS_AT_ONCE, PARAMETERS_AT_ONCE = 1_000, 100
_LONGEST = 6_000  # characters of a parameter's value
_ODD = re.compile(r"[^\w\-. /:]", re.ASCII)  # what names cannot have


def key_of_study(study: str) -> str:
    return f"study {study}"


def key_of_attempt(plan: str, cell: str, attempt: str) -> str:
    return f"{plan}/{cell}/{attempt}"


def parameters(columns: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of a run: columns of its attempt, and every axis. An axis that is also a column is that column."""
    axes = {_ODD.sub("_", name): value for name, value in config.items() if value is not None}
    return {name: str(value)[:_LONGEST] for name, value in {**axes, **columns}.items()}
