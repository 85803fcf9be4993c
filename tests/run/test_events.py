"""TensorBoard events of real cells, read by TensorBoard."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hpcrl as package
from hpcrl.collect.merge import collect
from hpcrl.report.groups import with_groups
from hpcrl.run.events import DURING
from hpcrl.slurm.client import Slurm
from tests.builders import cells_of, dqn_study, planned, run_task
from tests.run.test_cell import JOB, only_record


def events_of(plan: Path, cell: str) -> dict[str, list[Any]]:
    opened = EventAccumulator(str(plan / "cells" / cell))
    opened.Reload()
    return {tag: opened.Scalars(tag) for tag in opened.Tags()["scalars"]}


@pytest.mark.parametrize("when", ["during", "after"])
def test_events_are_what_the_record_has(tmp_path: Path, when: str) -> None:
    plan = planned(tmp_path / "p", dqn_study(tensorboard=when))
    done = run_task(plan, JOB)
    assert done.returncode == 0, done.stderr
    data = only_record(plan)
    (cell,) = cells_of(plan)
    found = events_of(plan, cell["id"])
    for tag, table in (("return/episode", "episodes"), ("return/evaluation", "evaluations")):
        assert [each.step for each in found[tag]] == list(data.column(table, "step"))
        np.testing.assert_allclose([each.value for each in found[tag]], data.column(table, "value"))
        since = np.array([each.wall_time for each in found[tag]]) - data.header["started"]
        np.testing.assert_allclose(since, data.column(table, "time"), atol=1e-3)
    for name in ("cpu", "memory"):
        measured = data.column("samples", f"machine_{name}_percent")
        shown = [each.value for each in found[f"machine/{name}_percent"]]
        np.testing.assert_allclose(shown, measured[np.isfinite(measured)], rtol=1e-5)
    assert {tag for tag in found if tag.startswith("phase/")} == {f"phase/{name}" for name in data.phases or {}}
    last = found["phase/update"][0]
    assert last.value == pytest.approx((data.phases or {})["update"][0], rel=1e-5)
    assert ("tensorboard" in (data.phases or {}), DURING in data.events) == ((when == "during"),) * 2
    assert data.header["tensorboard"] == when


def test_phases_still_sum_to_the_wall_time_and_training_includes_the_writing(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(tensorboard="during"))
    assert run_task(plan, JOB).returncode == 0
    data = only_record(plan)
    assert data.phases is not None and data.footer is not None
    seconds = {name: each for name, (each, _) in data.phases.items()}
    count = data.phases["tensorboard"][1]
    assert count == len(data.column("episodes", "step")) + len(data.column("evaluations", "step"))
    assert data.phases["evaluate"][1] == len(data.column("evaluations", "step"))
    assert sum(seconds.values()) == pytest.approx(data.footer["wall_time"], rel=0.02)
    loop = sum(each for name, each in seconds.items() if name not in ("setup", "compile", "evaluate", "other"))
    assert loop <= data.footer["training_time"] <= loop + seconds["other"]


def test_cells_with_and_without_events_during_the_measurement_are_two_configurations(tmp_path: Path) -> None:
    plans = []
    for when in ("none", "after", "during"):
        plans.append(planned(tmp_path / when, dqn_study(tensorboard=when)))
        assert run_task(plans[-1], JOB).returncode == 0
    ids = [cells_of(plan)[0]["id"] for plan in plans]
    assert ids[0] == ids[1] != ids[2]
    collect(plans, tmp_path / "d", Slurm())
    rows = package.load(tmp_path / "d").sort_values("started")
    assert list(rows["tensorboard"]) == ["none", "after", "during"]
    assert [DURING in str(note) for note in rows["notes"]] == [False, False, True]
    assert set(with_groups(rows)["what"]) == {"NumPy eager", "NumPy eager tensorboard during"}
    runs = package.load(tmp_path / "d", "runs")
    assert sorted(runs["tensorboard"]) == ["after", "during"]
    assert "axis_tensorboard" not in runs


def test_an_axis_compares_them(tmp_path: Path) -> None:
    study = dqn_study(axes={"framework": ["numpy"], "tensorboard": ["none", "during"]}, tensorboard="after")
    plan = planned(tmp_path / "p", study)
    for index, cell in enumerate(cells_of(plan)):
        assert run_task(plan, JOB, index).returncode == 0
        assert bool(list((plan / "cells").glob(f"{cell['id']}/events*"))) == (cell["config"]["tensorboard"] == "during")


def test_a_directory_that_leads_elsewhere_gets_no_events(tmp_path: Path) -> None:
    for when in ("during", "after"):
        plan = planned(tmp_path / when, dqn_study(tensorboard=when))
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        (plan / "cells").symlink_to(tmp_path / "elsewhere")
        done = run_task(plan, JOB)
        assert done.returncode == 1
        assert "is a symbolic link" in done.stderr
        data = only_record(plan)
        assert data.footer is not None and data.footer["outcome"] == "failed"
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("when", ["during", "after"])
def test_events_that_cannot_be_written_do_not_harm_the_cell(tmp_path: Path, when: str) -> None:
    """The disk is full for the events only: the record has its place."""
    plan = planned(tmp_path / "p", dqn_study(tensorboard=when))
    (cell,) = cells_of(plan)
    place = plan / "cells" / cell["id"]
    place.mkdir(parents=True)
    program = (
        "import builtins, errno, pathlib, runpy, sys\n"
        "open_ = pathlib.Path.open\n"
        "def full(path, *words, **named):\n"
        "    if 'tfevents' in path.name: raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "    return open_(path, *words, **named)\n"
        "pathlib.Path.open = full\n"
        "sys.argv = ['run', sys.argv[1], '--cell', sys.argv[2]]\n"
        "runpy.run_module('hpcrl.run', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(plan), cell["id"]], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the TensorBoard events cannot be written: [Errno 28] No space left on device") == 1
    data = only_record(plan)
    assert data.footer is not None and data.footer["outcome"] == "completed"


def test_tensorboard_shows_the_cells_of_a_plan(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(tensorboard="after", seeds=2))
    for index in range(2):
        assert run_task(plan, JOB, index).returncode == 0
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", "cells", "--host", "127.0.0.1", "--port", "0"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--load_fast=false", "--reload_interval=1"],
            cwd=plan,
            stderr=subprocess.PIPE,
            stdout=log,
            text=True,
        )
    try:
        assert server.stderr is not None
        url = next(line.split()[3] for line in server.stderr if line.startswith("TensorBoard ") and " at http" in line)
        browser = build_opener(ProxyHandler({}))

        def ask(path: str) -> Any:
            with browser.open(f"{url}data/plugin/scalars/{path}", timeout=60) as answer:
                return json.loads(answer.read())

        ids = [cell["id"] for cell in cells_of(plan)]
        tags = ask("tags")
        while set(tags) != set(ids):  # it loads the runs one by one
            assert server.poll() is None
            tags = ask("tags")
        assert {"return/episode", "return/evaluation", "machine/memory_percent", "phase/update"} <= set(tags[ids[0]])
        points = ask(f"scalars?run={ids[1]}&tag=return%2Fevaluation")
        assert [step for _, step, _ in points] == [500, 1000, 1500]
    finally:
        server.terminate()
        server.wait(timeout=60)
