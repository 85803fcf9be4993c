"""Builders, so that a test reads as a scenario."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from hpcrl.environments.build import Built, build_all
from hpcrl.formats.plan import MANIFEST, read_plan
from hpcrl.formats.record import FORMAT, SAMPLE_COLUMNS, TABLES, RecordWriter, record_name
from hpcrl.formats.submission import Submission
from hpcrl.plan.directory import PlanFiles, write_plan
from hpcrl.plan.environments import render_environment
from hpcrl.plan.make import UserChoices, make_plan
from hpcrl.spec.library import Library
from hpcrl.spec.rendering import Renderer

# Shared with the user's own: environments are named by their content.
ENVIRONMENTS = Path.home() / ".cache/hpcrl/environments"

# torch's own default. A cell has a new one, and each of its ranks compiles for half a minute: for tests of something else than that.
SHARED_CACHE = {"TORCHINDUCTOR_CACHE_DIR": f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"}


def write_yaml(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    yaml = YAML(typ="safe")
    yaml.allow_unicode = False  # ruamel writes U+0085 and U+2028 as line breaks, which are read as spaces
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(content, file)
    return path


def command_study(command: list[str], **changes: Any) -> dict[str, Any]:
    """A study of one cell that runs a command."""
    study: dict[str, Any] = {
        "name": "mine",
        "title": "A command",
        "workload": {"command": command},
        "axes": {"variant": ["a"]},
        "chain": "parallel",
        "resources": {"memory": "1G", "time": "00:10:00"},
        "calibration_seconds": 0,
        "idle_seconds": 0,
    }
    return study | changes


def dqn_study(**changes: Any) -> dict[str, Any]:
    """A study of one short NumPy training run."""
    study: dict[str, Any] = {
        "name": "short",
        "title": "A short training",
        "workload": {
            "algorithm": "dqn",
            "environment": "CartPole-v1",
            "hyperparameters": {
                "total_steps": 1500,
                "hidden": [16],
                "evaluation_interval": 500,
                "evaluation_episodes": 2,
            },
        },
        "axes": {"framework": ["numpy"]},
        "goal": 5,
        "calibration_seconds": 0,
        "idle_seconds": 0,
        "chain": "parallel",
        "resources": {"memory": "1G", "time": "00:10:00"},
    }
    return study | changes


def ranks_study(ranks: int, **resources: Any) -> dict[str, Any]:
    """A study of one training on several ranks, which average their gradients."""
    asked = {"tasks": ranks, "parallelism": "native", "memory": "1G", **resources}
    study = dqn_study(axes={"framework": ["torch"]}, resources=asked)
    study["workload"]["hyperparameters"]["batch_size"] = 16 * ranks
    return study


def planned_script(plan: Path, script: Path, text: str) -> None:
    """Give a plan another script, as if it had been planned with it: `submit` refuses one that was edited."""
    script.write_text(text)
    manifest = json.loads((plan / MANIFEST).read_text())
    manifest["digests"][f"scripts/{script.name}"] = hashlib.sha256(text.encode()).hexdigest()
    (plan / MANIFEST).write_text(json.dumps(manifest))


def planned(
    directory: Path, study: dict[str, Any] | str, cluster: str = "workstation", path: Path | None = None, **choices: Any
) -> Path:
    """Plan a study (its content, or a packaged one's name) and return the plan directory."""
    name = study
    if isinstance(study, dict):
        name = str(write_yaml(directory.parent / f"{directory.name}-study" / "study.yaml", study))
    choices = {"account": "lab", **choices}
    files: PlanFiles = make_plan(Library([path] if path else []), cluster, str(name), UserChoices(**choices))
    write_plan(files, directory)
    return directory


def run_task(plan: Path, job: str, task: int = 0, *extra: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a task of a plan as its script would, in the environment of the tests (which has all that NumPy cells need)."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.run(
        [sys.executable, "-m", "hpcrl.run", str(plan), "--job", job, "--index", str(task), "--interval", "0.1", *extra],
        env=environment | {"PYTHONPATH": str(plan / "worker.zip")} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def run_cell(
    plan: Path, cell: str, *extra: str, python: Path | str = sys.executable, seconds: float = 300, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a cell by its id, with the Python of any environment."""
    return subprocess.run(
        [python, "-m", "hpcrl.run", str(plan), "--cell", cell, "--interval", "0.1", *extra],
        cwd=plan.parent,
        env=os.environ | {"PYTHONPATH": str(plan / "worker.zip")} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def write_record(
    plan: Path,
    cell: dict[str, Any],
    attempt: str = "byhand-1",
    *,
    rank: int = 0,
    ranks: int = 1,
    node: str = "n1",
    outcome: str | None = "completed",
    returns: tuple[float, ...] = (10.0, 20.0),
    samples: dict[str, Any] | None = None,
    phases: dict[str, float] | None = None,
    header: dict[str, Any] | None = None,
    evaluations: Sequence[tuple[float, ...]] = (),
    reported: Sequence[dict[str, Any]] = (),
    **footer: Any,
) -> Path:
    """Write a small record of a cell by hand.

    `samples` are columns of the samples that differ from the usual ones, `evaluations` rows of step, time and value, also with their
    begin and the seconds of those before, `reported` the entries of a command.
    """
    manifest = json.loads((plan / "plan.json").read_text())
    path = plan / "records" / record_name(cell["id"], attempt, node, rank)
    writer = RecordWriter(path)
    writer.write(
        "header",
        {
            "format": FORMAT, "plan": manifest["id"], "study": manifest["study"]["name"], "cluster": manifest["cluster"]["name"],
            "cell": cell["id"], "attempt": attempt, "node": node, "rank": rank, "ranks": ranks, "restarts": 0,
            "started": 1.0, "config": cell["config"], "resources": cell["resources"], "workload": "dqn",
            "environment": cell["environment"], "software": {"python": "3.11"},
            "variables": {},
            "hardware": {"cpu": "C", "threads": 2, "memory": 1024**3, "gpus": [], "kernel": "6"},
            **(header or {}),
        },
    )  # fmt: skip
    count = np.arange(1.0, len(returns) + 1)
    writer.write("episodes", {"table": np.column_stack([10 * count, count, returns, 0 * count + 10])})
    read = {
        "time": count,
        "unix_time": count,
        "machine_cpu_percent": 50,
        "cpu_seconds": count,
        "rss": 1e8,
        "pss": 9e7,
        "memory_peak": 9e7,
        "processes": 1,
    }
    table = np.full((len(returns), len(SAMPLE_COLUMNS)), np.nan)
    for name, values in (read | (samples or {})).items():
        table[:, SAMPLE_COLUMNS.index(name)] = values
    writer.write("samples", {"table": table})
    if len(evaluations):
        known = np.array(evaluations, float)
        lacking = np.full((len(known), len(TABLES["evaluations"]) - known.shape[1]), np.nan)
        writer.write("evaluations", {"table": np.hstack([known, lacking])})
    if len(reported):
        writer.write("values", {"entries": list(reported)})
    if phases:
        writer.write("phases", {"seconds": phases, "counts": dict.fromkeys(phases, 1)})
    if outcome:
        facts = {"outcome": outcome, "reason": None, "wall_time": 4.0, "training_time": 3.0, "setup_time": 1.0}
        writer.write("footer", facts | {"steps": 20, "episodes": 2, "final_score": 20.0} | footer)
    writer.close()
    return path


def granted(plan: Path, tasks: str, attempt: int = 1, **changes: Any) -> Submission:
    """What `hpcrl submit` intends: some tasks of the plan's first job of cells, for Slurm."""
    opened = read_plan(plan)
    job = opened.cell_jobs()[0]
    given: dict[str, Any] = {"job": job.name, "executor": "slurm", "granted": {attempt: tasks}, "host": "elsewhere"}
    return Submission("", 0, opened.id, **given | changes)


def cells_of(plan: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (plan / "cells.jsonl").read_text().splitlines()]


def cells_by_key(plan: Path, *keys: str) -> list[dict[str, Any]]:
    """Return the plan's cells with those beside each other that have the same values of `keys`, each as the plan has it."""
    cells = cells_of(plan)
    values = [[each["config"].get(key) for key in keys] for each in cells]
    return sorted(cells, key=lambda cell: values.index([cell["config"].get(key) for key in keys]))


@cache
def built_environment(name: str, horovod: bool = False) -> Built:
    """Return one of the packaged environments for CPUs, built as for any user, where a user's own would be."""
    library = Library()
    profile = library.cluster("workstation")
    wanted = render_environment(
        Renderer(library), profile, library.environment(name), "cpu", horovod, library.hashes(name)
    )
    site = profile.environments.model_dump(mode="json", exclude_none=True) | {"root": str(ENVIRONMENTS)}
    (built,) = build_all([wanted], site, lambda key, text: None)
    return built
