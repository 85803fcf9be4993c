from __future__ import annotations

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from hpcrl.collect.merge import collect
from hpcrl.formats.mlflow import key_of_attempt
from hpcrl.formats.plan import agent_file, read_plan
from hpcrl.formats.tables import SCHEMAS, load_table
from hpcrl.report import export
from hpcrl.report.export import _curves, _Point
from hpcrl.report.spreadsheet import to_csv
from hpcrl.report.tracking import figures_of
from hpcrl.report.write import _write_figures
from tests.builders import cells_of, command_study, dqn_study, planned, write_record, write_yaml
from tests.collect.gathering import no_slurm


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    for cell in cells_of(plan):
        write_record(plan, cell, returns=(10.0, 20.0, 30.0), phases={"update": 2.5})
    collect([plan], tmp_path / "d", no_slurm())
    return tmp_path / "d"


def test_csv(dataset: Path, tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    shown = hpcrl("export", dataset, "--to", "csv", "-o", tmp_path / "out")
    assert (shown.code, shown.out) == (0, f"{len(SCHEMAS)} tables written to {tmp_path / 'out'}\n")
    for name, schema in SCHEMAS.items():
        assert list(pd.read_csv(tmp_path / "out" / f"{name}.csv").columns) == schema.names
    assert list(pd.read_csv(tmp_path / "out/episodes.csv")["value"]) == [10, 20, 30] * 2


def test_openrlbenchmark(dataset: Path, tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    assert hpcrl("export", dataset, "--to", "openrlbenchmark", "-o", tmp_path / "out").code == 0
    files = sorted((tmp_path / "out").rglob("*.csv"))
    assert len(files) == 2
    table = pd.read_csv(files[0])
    assert list(table.columns) == ["global_step", "_runtime", "charts/episodic_return", "charts/episodic_length"]
    assert list(table["charts/episodic_return"]) == [10, 20, 30]


@pytest.mark.parametrize("kind", ["openrlbenchmark", "tensorboard"])
def test_no_file_of_an_export_is_outside_of_its_directory(
    tmp_path: Path, kind: str, hpcrl: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command's axis may be the name of a file, and a stranger's dataset may have any text in a column of settings."""
    inputs = [str(tmp_path / "elsewhere"), "../../../elsewhere", "x" * 300]
    plan = planned(tmp_path / "p", command_study(["program", "{input}"], axes={"input": inputs}))
    for cell in cells_of(plan):
        write_record(plan, cell)
    collect([plan], tmp_path / "d", no_slurm())

    def strange(dataset: Path, name: str) -> pd.DataFrame:
        table = load_table(dataset, name)
        return table.assign(framework="../../../elsewhere") if name == "cells" else table

    monkeypatch.setattr(export, "load_table", strange)
    before = set(tmp_path.iterdir())
    shown = hpcrl("export", tmp_path / "d", "--to", kind, "-o", tmp_path / "out")
    assert shown.code == 0, shown.err
    assert set(tmp_path.iterdir()) - before == {tmp_path / "out"}
    assert len([each for each in (tmp_path / "out").rglob("*") if each.is_file()]) == 3


def test_no_file_of_a_figure_is_outside_of_its_directory(tmp_path: Path) -> None:
    """Names of axes are in names of figures."""
    figures: Any = SimpleNamespace(every=[SimpleNamespace(name="score-by-/../../../elsewhere/x", title="", text="", panels=[], legend=())])  # fmt: skip
    section: Any = SimpleNamespace(study="s", table=SimpleNamespace(rows=[], columns=[]), figures=figures)
    renderer: Any = SimpleNamespace(draw=lambda spec, kind: b"drawn")
    _write_figures(section, tmp_path / "report", ("svg",), renderer)
    (figure,) = [each for each in tmp_path.rglob("*.svg")]
    assert figure.parent == tmp_path / "report/figures"


def scalars_of(opened: Any) -> list[str]:
    return list(opened.Tags()["scalars"])


def test_tensorboard(dataset: Path, tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert hpcrl("export", dataset, "--to", "tensorboard", "-o", tmp_path / "out").code == 0
    runs = sorted((tmp_path / "out").iterdir())
    assert len(runs) == 2
    opened = reading.EventAccumulator(str(runs[0]))
    opened.Reload()
    found = {
        tag: [(each.step, each.wall_time, each.value) for each in opened.Scalars(tag)] for tag in scalars_of(opened)
    }
    assert found["return/episode"] == [(10, 2, 10), (20, 3, 20), (30, 4, 30)]
    assert found["machine/cpu_percent"] == [(10, 2, 50), (20, 3, 50), (30, 4, 50)]
    assert "machine/memory_percent" not in found  # the records have none
    assert found["cell/final_score"] == [(30, 5, 20)]
    assert found["phase/update"] == [(30, 5, 2.5)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")
def test_mlflow(dataset: Path, tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    mlflow = pytest.importorskip("mlflow")
    assert hpcrl("export", dataset, "--to", "mlflow", "-o", tmp_path / "out").code == 0
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/out/mlflow.db")
    experiment = client.get_experiment_by_name("short")
    runs = client.search_runs([experiment.experiment_id], "params.framework = 'numpy'")
    assert len(runs) == 2
    assert runs[0].data.params["framework"] == "numpy"
    assert runs[0].data.metrics["final_score"] == 20
    history = client.get_metric_history(runs[0].info.run_id, "return/episode")
    assert [(each.step, each.value) for each in history] == [(10, 10), (20, 20), (30, 30)]


def test_episodes_that_end_at_one_step_are_one_point_in_mlflow() -> None:
    """MLflow keeps one of two points that are equal in metric, step, time (ms) and value."""
    episodes = [
        _Point("train", "return", 64, 1.5, value, length) for value, length in ((10.0, 17), (10.0, 17), (4.0, 14))
    ]
    points = [*episodes, _Point("evaluation", "return", 64, 2.0, 5.0, float("nan"))]
    assert sorted(_curves(points)) == [
        ("count/episode", 3.0, 1.5, 64),
        ("length/episode", 16.0, 1.5, 64),
        ("return/episode", 8.0, 1.5, 64),
        ("return/evaluation", 5.0, 2.0, 64),
    ]


@pytest.mark.parametrize("name", ["loss (train)", "acc%", "/a//b", "..", "a/../b", "x" * 300, "ä"])
def test_mlflow_takes_the_name_of_every_reported_value(name: str) -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    ((metric, *_),) = _curves([_Point("value", name, 1, 1.0, 2.0, float("nan"))])
    assert metric.startswith("value")
    validation._validate_metric_name(metric)


def test_figures_of_a_study_are_not_those_of_one_with_a_longer_name(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    for name in ("sol-dqn-phases.svg", "sol-dqn-two-ranks-phases.svg", "other-phases.svg"):
        (tmp_path / "figures" / name).write_text("")
    studies = {"sol-dqn", "sol-dqn-two-ranks", "other"}
    found = {study: [file.name for file in figures_of(tmp_path, study, studies)] for study in studies}
    assert found == {study: [f"{study}-phases.svg"] for study in studies}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")
def test_mlflow_has_every_axis_and_a_parent_and_no_run_twice(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    mlflow = pytest.importorskip("mlflow")
    axes = {"framework": ["numpy"], "batch_size": [16, 32], "learning_rate": [0.001]}
    plan = planned(tmp_path / "p", dqn_study(seeds=2, axes=axes))
    cells = cells_of(plan)
    for cell in cells:
        write_record(plan, cell, returns=(10.0, 20.0), final_score=7.0)
    agent = agent_file(plan, cells[0]["id"], "best")
    agent.parent.mkdir()
    agent.write_bytes(b"weights")
    report = tmp_path / "r"
    (report / "figures").mkdir(parents=True)
    (report / "report.html").write_text("the page")
    (report / "figures/short-phases.svg").write_text("a figure")
    collect([plan], tmp_path / "d", no_slurm())
    words = ("export", tmp_path / "d", "--to", "mlflow", "-o", tmp_path / "out", "--report", report, "--agents", plan)
    shown = hpcrl(*words)
    assert (shown.code, shown.out) == (0, f"4 runs written to {tmp_path / 'out'}\n"), shown.err
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/out/mlflow.db")
    experiment = client.get_experiment_by_name("short").experiment_id

    def runs() -> dict[str, Any]:
        return {run.info.run_id: run for run in client.search_runs([experiment])}

    first = runs()
    (parent,) = [each for each in first.values() if "mlflow.parentRunId" not in each.data.tags]
    nested = [each for each in first.values() if each is not parent]
    assert {each.data.tags["mlflow.parentRunId"] for each in nested} == {parent.info.run_id}
    assert sorted((each.data.params["batch_size"], each.data.params["seed"]) for each in nested) == [
        ("16", "1"), ("16", "2"), ("32", "1"), ("32", "2"),
    ]  # fmt: skip
    assert {each.data.params["learning_rate"] for each in nested} == {"0.001"}
    assert {each.data.params["execution"] for each in nested} == {"eager"}
    of_agent = next(each for each in nested if each.data.params["cell"] == cells[0]["id"])
    (kept,) = client.list_artifacts(of_agent.info.run_id, "agents")
    assert kept.path == f"agents/{agent.name}"
    assert [each.path for each in client.list_artifacts(parent.info.run_id, "report/figures")] == [
        "report/figures/short-phases.svg"
    ]
    shown = hpcrl(*words)
    assert (shown.code, shown.out) == (0, f"0 runs written to {tmp_path / 'out'}\n"), shown.err
    assert runs().keys() == first.keys()
    client.delete_tag(
        nested[0].info.run_id, "hpcrl.content"
    )  # as if the export had been killed while it wrote this run
    assert hpcrl(*words).out == f"1 runs written to {tmp_path / 'out'}\n"
    assert len(runs()) == 5 and first.keys() - runs().keys() == {nested[0].info.run_id}
    without = [word for word in words if word not in ("--agents", plan)]
    assert hpcrl(*without).out == f"0 runs written to {tmp_path / 'out'}\n"  # what is not given now is there
    of_agent = next(run for run in runs().values() if run.data.params.get("cell") == cells[0]["id"])
    client.delete_tag(of_agent.info.run_id, "hpcrl.content")
    assert hpcrl(*without).out == f"1 runs written to {tmp_path / 'out'}\n"
    again = next(run for run in runs().values() if run.data.params.get("cell") == cells[0]["id"])
    assert again.info.run_id != of_agent.info.run_id
    assert [each.path for each in client.list_artifacts(again.info.run_id, "agents")] == [kept.path]
    shown = hpcrl("export", tmp_path / "d", "--to", "csv", "-o", tmp_path / "csv", "--agents", plan)
    assert (shown.code, "csv: has no place for reports and agents" in shown.err) == (2, True)
    shown = hpcrl("export", tmp_path / "d", "--to", "mlflow", "-o", tmp_path / "out", "--report", tmp_path)
    assert (shown.code, "is not a report (no report.html)" in shown.err) == (2, True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")
def test_a_run_that_may_still_be_sent_to_is_left_alone(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    """No scheduler says how the attempt ended, and in MLflow it runs. One that completed is replaced."""
    mlflow = pytest.importorskip("mlflow")
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    lost, completed = cells_of(plan)
    write_record(plan, lost, outcome=None)
    write_record(plan, completed)
    collect([plan], tmp_path / "d", no_slurm())
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/s.db")
    experiment = client.create_experiment("short", (tmp_path / "artifacts").as_uri())
    live = {}
    for cell in (lost, completed):
        key = key_of_attempt(read_plan(plan).id, cell["id"], "byhand-1")
        live[cell["id"]] = client.create_run(experiment, tags={"hpcrl.run": key}).info.run_id
    words = ("export", tmp_path / "d", "--to", "mlflow", "-o", f"sqlite:///{tmp_path}/s.db")
    assert hpcrl(*words).out.startswith("1 runs written")
    left = {run.info.run_id for run in client.search_runs([experiment])}
    assert live[lost["id"]] in left and live[completed["id"]] not in left


@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")
def test_each_plan_of_a_study_has_a_parent(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    mlflow = pytest.importorskip("mlflow")
    plans = [planned(tmp_path / name, dqn_study(axes={"framework": ["numpy"], "gamma": [gamma]})) for name, gamma in (("p", 0.9), ("q", 0.99))]  # fmt: skip
    for plan in plans:
        write_record(plan, cells_of(plan)[0])
    collect(plans, tmp_path / "d", no_slurm())
    assert hpcrl("export", tmp_path / "d", "--to", "mlflow", "-o", tmp_path / "out").code == 0
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/out/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("short").experiment_id])
    parents = {run.info.run_id: run.data.params["plan"] for run in runs if "mlflow.parentRunId" not in run.data.tags}
    assert sorted(parents.values()) == sorted(read_plan(plan).id for plan in plans)
    nested = [run for run in runs if run.info.run_id not in parents]
    assert [parents[run.data.tags["mlflow.parentRunId"]] for run in nested] == [run.data.params["plan"] for run in nested]  # fmt: skip
    assert len(nested) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")
def test_each_search_of_a_plan_has_a_parent_with_its_best_trial(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    mlflow = pytest.importorskip("mlflow")
    search = {"trials": 2, "space": {"learning_rate": {"low": 1e-4, "high": 1e-2}}}
    plan = planned(tmp_path / "p", dqn_study(search=search, axes={"framework": ["numpy"], "gamma": [0.9, 0.99]}))
    for cell in cells_of(plan):
        gamma, rate = cell["config"]["gamma"], 0.001 * cell["config"].get("trial", 2)
        write_record(plan, cell, header={"drawn": {"learning_rate": rate}, "search": f"of-{gamma}"})
    collect([plan], tmp_path / "d", no_slurm())
    assert hpcrl("export", tmp_path / "d", "--to", "mlflow", "-o", tmp_path / "out").code == 0
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/out/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("short").experiment_id])
    parents = {run.info.run_id: run for run in runs if "mlflow.parentRunId" not in run.data.tags}
    assert sorted(parent.data.params["search_id"] for parent in parents.values()) == ["of-0.9", "of-0.99"]
    for run in runs:
        if run.info.run_id not in parents:
            parent = parents[run.data.tags["mlflow.parentRunId"]]
            assert parent.data.params["search_id"] == f"of-{run.data.params['gamma']}" == run.data.params["search_id"]
    for parent in parents.values():
        assert parent.data.tags["best.learning_rate"] == "0.002"
        assert parent.data.tags["best.trials"] == "2"


@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")
def test_a_search_that_went_on_keeps_the_best_of_all_its_trials(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    """The dataset from before, which alone has the older best runs, is exported last."""
    mlflow = pytest.importorskip("mlflow")
    plan, space = tmp_path / "p", {"learning_rate": {"low": 1e-4, "high": 1e-2}}
    for trials, rate in ((2, 0.001), (4, 0.003)):
        study = dqn_study(search={"trials": trials, "space": space}, axes={"framework": ["numpy"]})
        assert hpcrl("plan", "--study", write_yaml(tmp_path / "study.yaml", study), "-o", plan).code == 0
        lines = (plan / read_plan(plan).cells_file).read_text().splitlines()
        (best,) = [cell for cell in map(json.loads, lines) if cell["config"].get("trials") == trials]
        record = write_record(plan, best, header={"drawn": {"learning_rate": rate}, "search": "j"})
        collect([plan], tmp_path / f"d{trials}", no_slurm())
        record.unlink()
    for trials in (4, 2):
        shown = hpcrl("export", tmp_path / f"d{trials}", "--to", "mlflow", "-o", tmp_path / "out")
        assert shown.code == 0, shown.err
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/out/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("short").experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert (parent.data.tags["best.trials"], parent.data.tags["best.learning_rate"]) == ("4", "0.003")


@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")
def test_an_address_of_mlflow_keeps_its_slashes(dataset: Path, in_tmp: Path, hpcrl: Callable[..., Any]) -> None:
    pytest.importorskip("mlflow")
    shown = hpcrl("export", dataset, "--to", "mlflow", "-o", f"sqlite:///{in_tmp}/s.db")
    assert (shown.code, shown.out) == (0, f"2 runs written to sqlite:///{in_tmp}/s.db\n"), shown.err
    assert (in_tmp / "s.db").is_file()
    assert not (in_tmp / "sqlite:").exists()


class _Refusing(BaseHTTPRequestHandler):
    """A server of MLflow that lets nobody in. It stands in for one only in that: the answer is MLflow's own for missing rights."""

    def _refuse(self) -> None:
        body = json.dumps({"error_code": "PERMISSION_DENIED", "message": "Permission denied"}).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _refuse

    def log_message(self, *arguments: Any) -> None:
        pass


def test_a_server_of_mlflow_that_refuses_or_is_not_there_is_one_sentence(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, hpcrl: Callable[..., Any]
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with HTTPServer(("127.0.0.1", 0), _Refusing) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        refused = hpcrl("export", dataset, "--to", "mlflow", "-o", address.replace("//", "//me:se%2Fcret@"))
        server.shutdown()
    gone = hpcrl("export", dataset, "--to", "mlflow", "-o", address)
    for shown, why in ((refused, "Permission denied"), (gone, "Connection refused")):
        assert (shown.code, shown.out) == (1, "")
        (line,) = shown.err.splitlines()
        assert line.startswith(f"hpcrl: {address}: MLflow did not take everything: ")
        assert why in line


def test_what_exists_is_kept(dataset: Path, tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    shown = hpcrl("export", dataset, "--to", "csv", "-o", dataset)
    assert shown.code == 2
    assert "already exists: choose another directory" in shown.err


def test_a_column_of_lists_in_csv() -> None:
    table = pd.DataFrame({"core_percent": [[1.0, 2.0], None, "=1+1"]})
    assert to_csv(table) == 'core_percent\n"[1.0, 2.0]"\n""\n\'=1+1\n'


@pytest.mark.parametrize("kind", ["csv", "openrlbenchmark", "tensorboard", "mlflow"])
def test_an_export_into_a_file(dataset: Path, tmp_path: Path, hpcrl: Callable[..., Any], kind: str) -> None:
    (tmp_path / "file").touch()
    shown = hpcrl("export", dataset, "--to", kind, "-o", tmp_path / "file")
    assert (shown.code, shown.err) == (2, f"hpcrl: {tmp_path / 'file'}: is a file: choose a directory with -o\n")


def test_without_mlflow_nothing_is_written(
    dataset: Path, tmp_path: Path, hpcrl: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    shown = hpcrl("export", dataset, "--to", "mlflow", "-o", tmp_path / "mlruns")
    assert (shown.code, shown.err) == (
        1,
        "hpcrl: mlflow: the package mlflow is not installed: install hpcrl[mlflow], or pip install mlflow\n",
    )
    assert not (tmp_path / "mlruns").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "ftp://x"], "ftp://x: MLflow has no such kind of address: expected a directory, or one of http://"),
        (["-o", "out", "--agents", "nope"], "nope: is not a plan directory"),
        (["-o", "out", "--report", "nope"], "nope: is not a report"),
    ],
)
def test_what_mlflow_cannot_have_is_said_before_anything_is_written(
    dataset: Path, in_tmp: Path, hpcrl: Callable[..., Any], words: list[str], said: str
) -> None:
    pytest.importorskip("mlflow")
    shown = hpcrl("export", dataset, "--to", "mlflow", *words)
    assert shown.code == 2
    assert said in shown.err and shown.err.count("\n") == 1
    assert not (in_tmp / "out").exists()
