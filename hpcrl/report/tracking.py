"""Write a dataset into MLflow: one experiment for each study, one parent run for each of its plans or searches, and in it a run for each attempt."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.mlflow import (
    BEST_TAG,
    CONTENT,
    KEY,
    METRICS_AT_ONCE,
    PARAMETERS_AT_ONCE,
    PARENT,
    key_of_attempt,
    key_of_parent,
    name_of_parent,
    plain,
)
from hpcrl.formats.mlflow import parameters as parameters_of
from hpcrl.formats.plan import AGENTS, read_plan
from hpcrl.searches import BEST, ID, ROLE, TRIALS, setting_of
from hpcrl.secrets import without_password

# Names of parameters that are columns of an attempt, in addition to its axes.
PARAMETERS = (
    "study", "cluster", "workload", "framework", "execution", "parallelism", "seed", "nodes", "tasks", "cpus", "gpus",
    "gpu_type", "partition", "environment", "outcome", "plan", "cell", "attempt",
)  # fmt: skip
_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks")
_LONGEST_REASON = 300  # characters of what a server says
# Variables of MLflow and hpcrl's defaults: a server that does not answer is given up after half a minute, not after many, and no addresses are printed.
_VARIABLES = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def parameters(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of an attempt: its columns, and every axis. An axis that is also a column is that column."""
    return parameters_of({name: row[name] for name in PARAMETERS if not pd.isna(row[name])}, json.loads(row["config"]))


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _digest_of(files: Sequence[Path]) -> str:
    """Return a digest of names and sizes; "" without files."""
    return _digest([[file.name, file.stat().st_size] for file in files]) if files else ""


class Tracking:
    """An MLflow store. A run that it already has is not written again; one that was interrupted, or has changed since, is replaced.

    Args:
        where: an address (``http://...``, ``sqlite:///...``).
        artifacts: a directory for the files of runs; None: the server's own place.
    """

    def __init__(self, where: str, artifacts: Path | None = None) -> None:
        for name, value in _VARIABLES.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=where)
        self._artifacts = artifacts
        self._experiments: dict[str, str] = {}
        self._parents: dict[str, str] = {}  # by key
        self.reported: set[str] = set()  # parents that have the report
        self._known: dict[str, tuple[str, str, str]] = {}  # by key: the run's id, the digest of its content, its status

    def parent(self, study: str, plan: str, search: str = "") -> str:
        """Return the parent run of a plan of a study, or of a search; make the study's experiment and the run if there is none."""
        key = key_of_parent(study, plan, search)
        if key in self._parents:
            return self._parents[key]
        client = self._client
        if study not in self._experiments:
            known = client.get_experiment_by_name(study)
            place = None if self._artifacts is None else (self._artifacts / study).resolve().as_uri()
            self._experiments[study] = known.experiment_id if known else client.create_experiment(study, place)
            self._read(self._experiments[study])
        known = key in self._known
        if known:
            run = self._known[key][0]
        else:
            tags = {KEY: key, CONTENT: "-"}
            run = client.create_run(
                self._experiments[study], run_name=name_of_parent(study, search), tags=tags
            ).info.run_id
        # A run that a cell made while it trained has none of these.
        for name, value in {"study": study, "plan": plan, **({ID: search} if search else {})}.items():
            client.log_param(run, name, value)
        if not known:
            client.set_terminated(run)
        self._parents[key] = run
        return run

    def _parent_of(self, row: Mapping[str, Any]) -> str:
        return self.parent(row["study"], row["plan"], str(json.loads(row["config"]).get(ID, "")))

    def _read(self, experiment: str) -> None:
        token = None
        while True:
            page = self._client.search_runs([experiment], page_token=token)
            for run in page:
                if key := run.data.tags.get(KEY):
                    self._known[key] = (run.info.run_id, run.data.tags.get(CONTENT, ""), run.info.status)
            token = page.token
            if not token:
                return

    def write(
        self,
        row: Mapping[str, Any],
        name: str,
        metrics: Mapping[str, float],
        curves: Iterable[tuple[str, float, float, int]],
        files: Iterable[Path] = (),
    ) -> bool:
        """Write the run of an attempt; return False if the store has it already, or if the attempt may still be sending to it.

        Args:
            curves: name, value, seconds since the start, step of each point.
            files: its agents.
        """
        client, parent = self._client, self._parent_of(row)
        points, files = list(curves), list(files)
        settings = parameters(row)
        key = key_of_attempt(row["plan"], row["cell"], row["attempt"])
        digest = _digest([settings, dict(metrics), points])
        of_files = _digest_of(files)
        with TemporaryDirectory() as folder:
            if key in self._known:
                known, before, status = self._known[key]
                values, _, earlier = before.partition(" ")
                if values == digest and of_files in ("", earlier):
                    return False
                if row["outcome"] == "lost" and not before and status == "RUNNING":  # nobody knows whether it has ended
                    return False
                if not files:  # those of an earlier export
                    files = self._agents_of(known, Path(folder))
                    of_files = _digest_of(files)
                client.delete_run(known)
            run, status = self._written(row, name, key, parent, settings, metrics, points, files)
        config = json.loads(row["config"])
        if config.get(ROLE) == BEST:
            self._tell_best(parent, config)
        content = f"{digest} {of_files}"
        client.set_tag(run, CONTENT, content)  # last: a run without it was interrupted
        self._known[key] = (run, content, status)
        return True

    def _agents_of(self, run: str, folder: Path) -> list[Path]:
        """Return copies of the agents that a run has."""
        if not self._client.list_artifacts(run, AGENTS):
            return []
        return sorted(Path(self._client.download_artifacts(run, AGENTS, str(folder))).iterdir())

    def _written(
        self,
        row: Mapping[str, Any],
        name: str,
        key: str,
        parent: str,
        settings: Mapping[str, str],
        metrics: Mapping[str, float],
        points: Sequence[tuple[str, float, float, int]],
        files: Iterable[Path],
    ) -> tuple[str, str]:
        """Write a new run; return its id and its status."""
        from mlflow.entities import Metric, Param

        client = self._client
        started = 0 if pd.isna(row["started"]) else int(row["started"] * 1000)
        run = client.create_run(
            self._experiments[row["study"]], start_time=started, run_name=name, tags={KEY: key, PARENT: parent}
        ).info.run_id
        given = [Param(*setting) for setting in settings.items()]
        for first in range(0, len(given), PARAMETERS_AT_ONCE):
            client.log_batch(run, params=given[first : first + PARAMETERS_AT_ONCE])
        measured = [Metric(metric, value, started, 0) for metric, value in metrics.items()]
        measured += [Metric(tag, value, started + int(time * 1000), step) for tag, value, time, step in points]
        for first in range(0, len(measured), METRICS_AT_ONCE):
            client.log_batch(run, metrics=measured[first : first + METRICS_AT_ONCE])
        for file in files:
            client.log_artifact(run, str(file), AGENTS)
        wall = 0.0 if pd.isna(row["wall_time"]) else float(row["wall_time"])
        status = "FINISHED" if row["outcome"] in ("completed", "pruned") else "FAILED"
        client.set_terminated(run, status, end_time=started + int(wall * 1000))
        return run, status

    def _tell_best(self, parent: str, config: Mapping[str, Any]) -> None:
        """Give the run of a search the values of its best trial, unless it has those of a best one of more trials."""
        told = self._client.get_run(parent).data.tags.get(BEST_TAG + TRIALS, "0")
        if int(told) <= config[TRIALS]:
            for name, value in (setting_of(config, {}) | {TRIALS: config[TRIALS]}).items():
                self._client.set_tag(parent, BEST_TAG + plain(name), str(value))

    def add_report(self, row: Mapping[str, Any], report: Path, studies: Collection[str] = ()) -> None:
        """Add the page, the tables and the figures of a study's report to the parent run of an attempt, once.

        Args:
            studies: the studies of the report. The name of one may begin with that of another.
        """
        parent = self._parent_of(row)
        if parent in self.reported:
            return
        self.reported.add(parent)
        for file in sorted(report.glob("*")):
            if file.is_file() and not file.is_symlink():
                self._client.log_artifact(parent, str(file), "report")
        for file in figures_of(report, row["study"], studies):
            self._client.log_artifact(parent, str(file), "report/figures")


def figures_of(report: Path, study: str, studies: Collection[str]) -> list[Path]:
    """Return the files of a study's figures in the report of some studies."""
    others = tuple(f"{name}-" for name in studies if name.startswith(f"{study}-"))
    return [file for file in sorted((report / "figures").glob(f"{study}-*")) if not file.name.startswith(others)]


def _reason(error: BaseException) -> str:
    """Return the system's own words for the first cause if there are any, as of a server that is not there; else the error's text."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    said = " ".join(str(error).split()).rstrip(".")
    return said if len(said) <= _LONGEST_REASON else f"{said[:_LONGEST_REASON]}..."


def check_address(where: str) -> None:
    """Check that MLflow knows this kind of address.

    Raises:
        UsageError: it does not.
    """
    scheme = where.partition("://")[0].partition("+")[0]
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        raise UsageError(
            f"{without_password(where)}: MLflow has no such kind of address: expected a directory, or one of {known}"
        )


@contextmanager
def refusals(where: str) -> Iterator[None]:
    """Say in one sentence what MLflow or its server refuses in this context.

    Raises:
        HpcrlError: the server does not answer, or it or the store refuses something.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        text = f"{where}: MLflow did not take everything: {_reason(error)}. Runs that it has are kept: export again when this is mended"
        raise HpcrlError(without_password(text)) from None


def agents_of(plans: Iterable[Path]) -> dict[tuple[str, str], list[Path]]:
    """Return the files of agents in some plans, by the plan's id and the cell's.

    Raises:
        UsageError: a directory is no plan.
    """
    files: dict[tuple[str, str], list[Path]] = {}
    for directory in plans:
        plan = read_plan(directory)
        for file in sorted((directory / AGENTS).glob("*-*")):
            if file.is_file() and not file.is_symlink():
                files.setdefault((plan.id, file.name.partition("-")[0]), []).append(file)
    return files
