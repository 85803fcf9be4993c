"""Values of cells in a real server of MLflow while they train, and after the export."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest

import hpcrl as package
from tests.builders import cells_of, dqn_study, planned, run_cell, run_task
from tests.conftest import Shown
from tests.run.test_cell import JOB

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[str]:
    """A real server, installed with the project's own installer."""
    place = tmp_path / "mlflow"
    place.mkdir()
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, place / "v"], check=True)
    install = [*uv, "pip", "install", "-q", "--python", place / "v/bin/python", "mlflow==3.17.2"]
    subprocess.run(install, check=True, timeout=900)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--backend-store-uri", f"sqlite:///{place}/mlflow.db", "--default-artifact-root", str(place / "artifacts")]
    words += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    log = (place / "log").open("w")
    process = subprocess.Popen(
        [place / "v/bin/python", "-m", "mlflow", "server", *words],
        stdout=log, stderr=log, cwd=place, start_new_session=True, env=os.environ | {"PATH": f"{place}/v/bin:{os.environ['PATH']}"},
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    opener = build_opener(ProxyHandler({}))

    def is_up() -> bool:
        assert process.poll() is None, (place / "log").read_text()[-3000:]
        with suppress(OSError), opener.open(f"{address}/health", timeout=5):
            return True
        return False

    try:
        _until(is_up, 300)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _client(address: str) -> Any:
    mlflow = pytest.importorskip("mlflow")
    return mlflow.MlflowClient(tracking_uri=address)


def _runs(client: Any, study: str) -> tuple[Any, list[Any]]:
    """Return the parent run of a study, and the runs in it."""
    experiment = client.get_experiment_by_name(study)
    found = client.search_runs([experiment.experiment_id])
    (parent,) = [each for each in found if "mlflow.parentRunId" not in each.data.tags]
    nested = [each for each in found if each.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(nested) == len(found) - 1
    return parent, nested


@pytest.mark.slow
def test_a_real_server(tmp_path: Path, mlflow_server: str, hpcrl: Callable[..., Shown]) -> None:
    for how in ("mlflow", "mlflow-inline"):
        _has_what_the_record_has_and_the_export_completes_it(tmp_path / how, mlflow_server, how, hpcrl)
    _has_a_killed_cell_as_killed(tmp_path / "killed", mlflow_server)
    _has_the_trials_of_a_search_in_one_run(tmp_path / "search", mlflow_server, hpcrl)


def _has_what_the_record_has_and_the_export_completes_it(
    tmp_path: Path, mlflow_server: str, how: str, hpcrl: Callable[..., Shown]
) -> None:
    study = dqn_study(name=f"tracked-{how}", tracking=how, axes={"framework": ["numpy"], "gamma": [0.9, 0.99]})
    study["resources"] = {"cpus": 1, "gpus": 0}
    # With 64 environments many episodes end at one step within a millisecond, many of them with the same return.
    settings = {"total_steps": 4096, "evaluation_interval": 2048, "environments": 64, "updates": 1}
    study["workload"]["hyperparameters"] |= settings
    plan = planned(tmp_path / "p", study)
    for task in range(2):
        done = run_task(plan, JOB.replace("short", study["name"]), task, MLFLOW_TRACKING_URI=mlflow_server)
        assert done.returncode == 0, done.stderr
    client = _client(mlflow_server)
    parent, nested = _runs(client, study["name"])
    assert parent.info.run_name == study["name"]
    assert {each.info.status for each in nested} == {"FINISHED"}
    assert {each.data.params["gamma"] for each in nested} == {"0.9", "0.99"}
    hpcrl("collect", plan, "-o", tmp_path / "d")
    episodes = package.load(tmp_path / "d", "episodes")
    cells = package.load(tmp_path / "d").set_index("cell")
    for run in nested:
        own = episodes[episodes["cell"] == run.data.params["cell"]]
        for kind, tag in (("train", "return/episode"), ("evaluation", "return/evaluation")):
            means = own[own["kind"] == kind].groupby("step")["value"].mean()
            sent = sorted((each.step, each.value) for each in client.get_metric_history(run.info.run_id, tag))
            assert [step for step, _ in sent] == means.index.tolist() and sent
            assert [value for _, value in sent] == pytest.approx(means.tolist())
        ended = [each.value for each in client.get_metric_history(run.info.run_id, "count/episode")]
        assert sum(ended) == (own["kind"] == "train").sum() > len(ended)
        assert run.data.metrics["training_time"] == cells.loc[run.data.params["cell"], "training_time"]
    # The whole runs replace those that were sent live; a second export has nothing to do.
    first = hpcrl("export", tmp_path / "d", "--to", "mlflow", "-o", mlflow_server)
    assert (first.code, "2 runs written" in first.out) == (0, True), first.err
    again, complete = _runs(client, study["name"])
    assert again.info.run_id == parent.info.run_id
    assert len(complete) == 2
    assert all("hpcrl.content" in each.data.tags for each in complete)
    assert "0 runs written" in hpcrl("export", tmp_path / "d", "--to", "mlflow", "-o", mlflow_server).out


def _has_the_trials_of_a_search_in_one_run(tmp_path: Path, mlflow_server: str, hpcrl: Callable[..., Shown]) -> None:
    search = {"trials": 3, "space": {"gamma": {"low": 0.8, "high": 0.99}}}
    plan = planned(tmp_path / "p", dqn_study(name="searched", tracking="mlflow", search=search, seeds=[1]))
    for cell in cells_of(plan):
        done = run_cell(plan, cell["id"], MLFLOW_TRACKING_URI=mlflow_server)
        assert done.returncode == 0, done.stderr
    client = _client(mlflow_server)
    parent, nested = _runs(client, "searched")
    assert parent.info.run_name.startswith("searched search ")
    assert [each.data.params["search"] for each in nested].count("trial") == 3
    drawn = {each.data.params["gamma"] for each in nested if each.data.params["search"] == "trial"}
    assert len(drawn) == 3
    hpcrl("collect", plan, "-o", tmp_path / "d")
    first = hpcrl("export", tmp_path / "d", "--to", "mlflow", "-o", mlflow_server)
    assert first.code == 0, first.err
    again, complete = _runs(client, "searched")
    assert (again.info.run_id, len(complete)) == (parent.info.run_id, 4)
    assert again.data.tags["best.gamma"] in drawn


def _has_a_killed_cell_as_killed(tmp_path: Path, mlflow_server: str) -> None:
    study = dqn_study(name="killed", tracking="mlflow")
    study["workload"]["hyperparameters"]["total_steps"] = 2_000_000
    plan = planned(tmp_path / "p", study)
    (cell,) = cells_of(plan)
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcrl.run", plan, "--cell", cell["id"]],
        env=os.environ | {"PYTHONPATH": str(plan / "worker.zip"), "MLFLOW_TRACKING_URI": mlflow_server},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    client = _client(mlflow_server)

    def state() -> tuple[str, int]:
        experiment = client.get_experiment_by_name("killed")
        found = client.search_runs([experiment.experiment_id]) if experiment else []
        for run in found:
            if "mlflow.parentRunId" in run.data.tags:
                return run.info.status, len(client.get_metric_history(run.info.run_id, "return/episode"))
        return "", 0

    _until(lambda: state()[1] > 0)
    assert state()[0] == "RUNNING"
    process.kill()
    process.wait()
    _until(lambda: state()[0] == "KILLED")


def _until(true: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.5)
