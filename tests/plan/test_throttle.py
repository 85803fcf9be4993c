"""How many tasks of an array run at once, from the profile and the study to the script, and what a job asks for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpcrl.plan.make import UserChoices, make_plan
from hpcrl.spec.library import Library
from tests.builders import command_study, write_yaml


def script(tmp_path: Path, profile: dict[str, Any], **study: Any) -> dict[str, str]:
    """Return the #SBATCH options of the only job of cells."""
    site = str(write_yaml(tmp_path / "site.yaml", profile))
    name = str(write_yaml(tmp_path / "s.yaml", command_study(["true"], **study)))
    files = make_plan(Library(), site, name, UserChoices(account="lab"))
    (job,) = files.plan.cell_jobs()
    text = str(files.files[job.script])
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", text, re.MULTILINE))


SHORT = {"memory": "1G", "time": "00:10:00"}


@pytest.mark.parametrize(
    ("site", "qos", "study", "at_once"),
    [
        (None, 40, None, "%40"),
        (None, 40, 8, "%8"),
        (16, 40, 20, "%16"),
        (None, 3, 20, "%3"),
        (64, None, 5, "%5"),
        (None, 100, None, ""),  # all fifty may run at once
        (None, 100, 50, ""),
    ],
)
def test_the_least_of_study_site_and_qos(
    tmp_path: Path, site: int | None, qos: int | None, study: int | None, at_once: str
) -> None:
    standard = {"max_queued": 1000, **({"max_running": qos} if qos else {})}
    profile = {"extends": "cirrus", "scheduler": {"array_throttle": site or 1000}, "qos": {"standard": standard}}
    more = {"max_parallel": study} if study else {}
    assert script(tmp_path, profile, seeds=50, resources=SHORT, **more)["array"] == f"0-49{at_once}"


def test_memory_is_that_of_all_ranks_of_a_node(tmp_path: Path) -> None:
    found = script(tmp_path, {"extends": "sol"}, resources=SHORT | {"tasks": 3, "cpus": 2})
    assert (found["mem"], found["ntasks"], found["cpus-per-task"]) == ("3072M", "3", "2")
