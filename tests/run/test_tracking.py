"""Values of cells in MLflow while they train: stand-ins for servers that misbehave. test_mlflow_server has a real one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from hpcrl.collect.reading import read_record
from hpcrl.errors import UsageError
from hpcrl.formats.plan import read_plan
from hpcrl.formats.record import read_frames
from hpcrl.run import tracking
from hpcrl.run.mlflow import MlflowError, Named, Server
from hpcrl.run.tracking import DURING
from tests.builders import cells_of, command_study, dqn_study, planned, run_task
from tests.conftest import Shown
from tests.run.test_cell import JOB, only_record

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")
NOWHERE = "http://127.0.0.1:9"


class _StandIn(BaseHTTPRequestHandler):
    """Answers as MLflow's REST API does to hpcrl's calls, and fails when it is told to."""

    protocol_version = "HTTP/1.1"
    server: _Servant

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        name = self.path.partition("/mlflow/")[2].partition("?")[0]
        code, content = self.server.told(name, json.loads(body or b"{}"), dict(self.headers))
        self.send_response(code)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer

    def log_message(self, *arguments: Any) -> None:
        pass


class _Servant(ThreadingHTTPServer):
    """Args: fails: (number of the call, name) -> an answer instead of the right one, or None."""

    daemon_threads = True

    def __init__(self, fails: Callable[[int, str], tuple[int, bytes] | None]) -> None:
        super().__init__(("127.0.0.1", 0), _StandIn)
        self.fails, self.calls, self.location = fails, 0, ""
        self.experiments: set[str] = set()
        self.runs: dict[str, dict[str, Any]] = {}  # by their ids: their keys, unless there are several of a key
        self.metrics: list[tuple[str, int, float]] = []
        self.ends: list[str] = []
        self.seen: list[dict[str, str]] = []
        Thread(target=self.serve_forever, daemon=True).start()

    def server_close(self) -> None:
        self.shutdown()  # its thread would call accept() on a closed socket for ever
        super().server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, key: str, started: int, parent: str | None = None) -> dict[str, Any]:
        run = f"{key} {len(self.runs)}" if key in self.runs else key
        self.runs[run] = {"info": {"run_id": run}, "key": key, "started": started, "parent": parent}
        return self.runs[run]

    def told(self, name: str, content: dict[str, Any], headers: dict[str, str]) -> tuple[int, bytes]:
        self.calls += 1
        self.seen.append(headers)
        if (instead := self.fails(self.calls, name)) is not None:
            return instead
        answer: dict[str, Any] = {}
        if name == "experiments/get-by-name":
            if not self.experiments:
                return 404, b'{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}'
            answer = {"experiment": {"experiment_id": "1"}}
        elif name == "experiments/create":
            self.experiments.add(content["name"])
            answer = {"experiment_id": "1"}
        elif name == "runs/search":
            key = content["filter"].partition("'")[2].rstrip("'")
            some = [each for each in self.runs.values() if each["key"] == key]
            answer = {"runs": sorted(some, key=lambda each: int(each["started"]))[:1]}
        elif name == "runs/create":
            tags = {each["key"]: each["value"] for each in content["tags"]}
            answer = {"run": self.add(tags["hpcrl.run"], content["start_time"], tags.get("mlflow.parentRunId"))}
        elif name == "runs/delete":
            del self.runs[content["run_id"]]
        elif name in ("runs/log-batch", "runs/log-metric"):
            points = content.get("metrics", [content] if "key" in content else [])
            self.metrics += [(each["key"], each["step"], each["value"]) for each in points]
        elif name == "runs/update":
            self.ends.append(content["status"])
        return 200, json.dumps(answer).encode()


def means(steps: Iterable[float], values: Iterable[float]) -> list[tuple[float, float]]:
    """Return each step with the mean of its values, in order of time."""
    of_steps: dict[float, list[float]] = {}
    for step, value in zip(steps, values, strict=True):
        of_steps.setdefault(step, []).append(value)
    return [(step, sum(some) / len(some)) for step, some in of_steps.items()]


@pytest.mark.parametrize(("how", "environments"), [("mlflow", 1), ("mlflow-inline", 1), ("mlflow", 64)])
def test_every_value_is_sent_once_and_its_time_is_a_phase_of_the_training(
    tmp_path: Path, how: str, environments: int
) -> None:
    study = dqn_study(tracking=how)
    study["workload"]["hyperparameters"]["environments"] = environments
    plan = planned(tmp_path / "p", study)
    with _Servant(lambda number, name: None) as server:
        done = run_task(plan, JOB, MLFLOW_TRACKING_URI=server.address)
    assert done.returncode == 0, done.stderr
    data = only_record(plan)
    for tag, table in (("return/episode", "episodes"), ("return/evaluation", "evaluations")):
        sent = [each[1:] for each in server.metrics if each[0] == tag]
        assert sent == means(data.column(table, "step"), data.column(table, "value"))
    ended = [each[2] for each in server.metrics if each[0] == "count/episode"]
    assert sum(ended) == len(data.column("episodes", "step"))
    assert (max(ended) > 1) == (environments > 1)
    assert data.phases is not None and data.footer is not None
    seconds, times = data.phases["tracking"]
    assert times == len(data.column("episodes", "step")) + len(data.column("evaluations", "step"))
    times_of = {name: each for name, (each, _) in data.phases.items()}
    loop = sum(each for name, each in times_of.items() if name not in ("setup", "compile", "evaluate", "other"))
    assert seconds < loop <= data.footer["training_time"] <= loop + times_of["other"]
    assert DURING in data.events
    assert server.ends[-1] == "FINISHED"


def test_the_episodes_of_one_step_are_one_point_with_their_number() -> None:
    """MLflow keeps one of two points that are equal in metric, step, time (ms) and value."""
    points = tracking.Points(1e9)
    made: list[dict[str, Any]] = []
    for row in ((64, 0.5, 10.0, 17), (64, 0.5, 10.0, 17), (64, 0.5, 4.0, 14), (128, 0.75, 7.0, 15)):
        made += points.take("episodes", row)
    made += points.take("evaluations", (128, 1.0, 3.0))
    made += points.rest()
    assert [(each["key"], each["step"], each["value"]) for each in made] == [
        ("return/episode", 64, 8.0), ("length/episode", 64, 16.0), ("count/episode", 64, 3.0),
        ("return/evaluation", 128, 3.0),
        ("return/episode", 128, 7.0), ("length/episode", 128, 15.0), ("count/episode", 128, 1.0),
    ]  # fmt: skip
    assert [each["timestamp"] for each in made[2:4]] == [1_000_000_000_500, 1_000_000_001_000]
    assert points.rest() == []


def test_inline_sends_two_requests_for_each_step_at_which_episodes_ended() -> None:
    asked: list[str] = []

    def note(number: int, name: str) -> None:
        asked.append(name)

    with _Servant(note) as server:
        follower = tracking.InlineTracking(
            Server({"MLFLOW_TRACKING_URI": server.address}), Named("s", "r", "p/c/1", 0), 1e9, print
        )
        asked.clear()
        for step, episodes in ((64, 3), (128, 1), (192, 2)):
            for _ in range(episodes):
                follower.add([], "episodes", (step, 0.5, 10.0, 17), None)
        follower.add([], "evaluations", (192, 1.0, 3.0), None)
        before = list(asked)
        follower.close([], {"outcome": "completed", "wall_time": 2.0, "score": 3}, {})
    of_step = ["runs/log-metric", "runs/log-batch"]
    assert before == [*of_step, *of_step, "runs/log-metric"]  # a later episode may still end at the last step
    assert asked[len(before) :] == [*of_step, "runs/log-batch", "runs/update"]


def test_a_server_that_is_away_for_a_while_gets_everything_once(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(tracking="mlflow"))
    away = {
        1: (503, b"away"),
        4: (200, b"<html>a proxy's page</html>"),
        7: (500, b'{"message": ["odd"]}'),
        8: (200, b"[]"),
    }
    # The first has the parameters: when it fails, the run is there already.
    batches = iter([(502, b"gone"), None, (502, b"gone"), (502, b"gone again")])
    with _Servant(
        lambda number, name: away.get(number) or (next(batches, None) if name == "runs/log-batch" else None)
    ) as server:
        done = run_task(plan, JOB, MLFLOW_TRACKING_URI=server.address)
    assert done.returncode == 0, done.stderr
    data = only_record(plan)
    sent = [each[1:] for each in server.metrics if each[0] == "return/episode"]
    assert sent == list(zip(data.column("episodes", "step"), data.column("episodes", "value"), strict=True))
    (told,) = [each for each in data.events if "MLflow at" in each]
    assert told.startswith(f"tracking: MLflow at {server.address}: 503") and "hpcrl export --to mlflow adds" in told
    assert len(server.runs) == 2 and server.ends[-1] == "FINISHED"


def test_a_redirect_is_not_followed_because_another_host_would_get_the_password() -> None:
    with _Servant(lambda number, name: None) as other, _Servant(lambda number, name: (302, b"")) as server:
        server.location = other.address
        with pytest.raises(MlflowError, match=f"302 it redirects to {other.address}/: set that address"):
            Server({"MLFLOW_TRACKING_URI": server.address, "MLFLOW_TRACKING_TOKEN": "t"}).begin(
                Named("s", "r", "p/c/1", 0)
            )
        assert other.calls == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{}", "the answer is not MLflow's (no experiment_id)"),
        (b'{"experiment": [1]}', "the answer is not MLflow's (no experiment_id)"),
        (b"[" * 100_000, "the answer is not MLflow's (RecursionError"),
        (b'"' + b"x" * 1_100_000, "the answer is not MLflow's (ValueError: it is too long)"),
        (b"\x80", "the answer is not MLflow's (UnicodeDecodeError"),
    ],
    ids=["empty", "list", "deep", "long", "bytes"],
)
def test_an_answer_that_is_not_mlflow_s_is_one_sentence(content: bytes, said: str) -> None:
    with _Servant(lambda number, name: (200, content)) as server, pytest.raises(MlflowError) as caught:
        Server({"MLFLOW_TRACKING_URI": server.address}).begin(Named("s", "r", "p/c/1", 0))
    assert str(caught.value).startswith(f"MLflow at {server.address}: {said}")


def test_a_server_that_speaks_no_http_or_drips_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asked = Server({"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{listening.getsockname()[1]}"})

        def serve() -> None:
            first, _ = listening.accept()
            first.sendall(b"SSH-2.0-OpenSSH\r\n")
            first.shutdown(socket.SHUT_WR)  # not closed before the request is read: that would break its pipe
            while first.recv(10_000):
                pass
            second, _ = listening.accept()
            with suppress(OSError):
                second.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                while True:
                    second.sendall(b"x")
                    time.sleep(0.05)

        Thread(target=serve, daemon=True).start()
        with pytest.raises(MlflowError, match=r"the answer is not MLflow's .BadStatusLine"):
            asked.log("r", [])
        asked.deadline = time.monotonic() + 1
        with pytest.raises(MlflowError, match="no whole answer in time"):
            asked.log("r", [])
        with pytest.raises(MlflowError, match="no answer in time"):
            asked.log("r", [])


def test_what_is_said_after_the_record_is_closed_is_in_the_log(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(tracking="mlflow-inline"))
    refusal = b'{"message": "the disk is full"}'
    with _Servant(lambda number, name: (507, refusal) if name == "runs/update" and number > 9 else None) as server:
        done = run_task(plan, JOB, MLFLOW_TRACKING_URI=server.address)
    assert done.returncode == 0
    assert f"hpcrl: tracking ended: MLflow at {server.address}: the disk is full\n" in done.stderr
    assert "cannot be written" not in done.stderr
    data = only_record(plan)
    assert data.footer is not None and data.footer["lost_frames"] == 0


def test_a_process_beside_that_dies_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    follower = tracking.TrackingBeside(Named("s", "r", "p/c/1", 0), 1e9, said.append, {"PATH": os.environ["PATH"]})
    follower.close([], {"outcome": "completed", "wall_time": 1.0}, {})
    assert said == ["tracking: its process ended with exit code 1"]


def test_a_server_that_hangs_does_not_keep_a_preempted_cell_from_its_requeue() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        said: list[str] = []
        follower = tracking.TrackingBeside(
            Named("s", "r", "p/c/1", 0), 1e9, said.append, os.environ | {"MLFLOW_TRACKING_URI": address}
        )
        time.sleep(1)
        process = follower._process
        follower.close([], {"outcome": "preempted", "wall_time": 1.0}, {})
    assert process.returncode is not None  # nothing is left
    assert said == ["tracking: the server took too long, and the last values are not there"]


def test_jobs_that_inherit_no_variables_need_the_address_in_the_study(
    tmp_path: Path, hpcrl: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    plan = planned(tmp_path / "p", dqn_study(tracking="mlflow"), "sol")  # its scripts have --export=NONE
    shown = hpcrl("submit", plan)
    assert shown.code == 2
    assert (
        "set it to http://HOST:PORT in the study's workload.env (jobs on cluster sol inherit no variables)" in shown.err
    )


def test_a_server_that_never_comes_is_given_up_and_the_loss_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "_MOST", 3)
    sender = tracking.Sender(Server({"MLFLOW_TRACKING_URI": NOWHERE}), Named("s", "r", "p/c/1", 0))
    for number in range(2):
        sender.take([{"key": "k", "value": 1.0, "timestamp": 0, "step": number}] * 2)
        assert not sender.send()
    sender.hurry(0.5)
    sender.finish("FINISHED", 0)
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"tracking: MLflow at {NOWHERE}: Connection refused; the training continues")
    assert last == "tracking: 4 values of 4 not sent"


@pytest.mark.parametrize("fails_at", ["runs/create", "runs/log-metric"])
def test_inline_without_a_server_fails_the_cell_and_so_does_one_that_goes_away(tmp_path: Path, fails_at: str) -> None:
    """What a training takes that logs only a part of its values says nothing of logging."""
    plan = planned(tmp_path / "p", dqn_study(tracking="mlflow-inline"))
    refusal = b'{"error_code": "PERMISSION_DENIED", "message": "Permission\\ndenied."}'
    with _Servant(lambda number, name: (403, refusal) if name == fails_at else None) as server:
        done = run_task(plan, JOB, MLFLOW_TRACKING_URI=server.address)
    assert done.returncode == 1, done.stderr
    data = only_record(plan)
    assert data.footer is not None and data.footer["outcome"] == "failed"
    said = f"MLflow at {server.address}: Permission denied"
    if fails_at == "runs/create":
        assert data.footer["reason"] == said
    else:
        assert data.events.count(f"tracking ended: {said}") == 1
        assert data.footer["reason"] == f"tracking ended: {said}: its times are not those of a training that logs"


@pytest.mark.parametrize(
    "address",
    ["", "sqlite:///mine.db", "host:5000", "http://", "http://[broken", "http://HOST:PORT", "http://me:12/3@host:5000"],
)
def test_a_cell_without_the_address_of_a_server_fails_and_submit_says_it_first(
    tmp_path: Path, address: str, hpcrl: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    plan = planned(tmp_path / "p", dqn_study(tracking="mlflow"))
    done = run_task(plan, JOB, **({"MLFLOW_TRACKING_URI": address} if address else {}))
    assert done.returncode == 1
    what = "is not the address of a server" if address else "is not set"
    data = only_record(plan)
    assert data.footer is not None and data.footer["reason"].startswith(
        f"MLFLOW_TRACKING_URI {what}: set it to http://HOST:PORT"
    )
    if not address:
        shown = hpcrl("submit", plan, "--here")
        assert (shown.code, "MLFLOW_TRACKING_URI is not set: set it to" in shown.err) == (2, True)


def test_user_password_and_token_are_sent_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, refuses = Named("s", "r", "p/c/1", 0), False
    with _Servant(lambda number, name: (401, b"no") if refuses else None) as server:
        inside = server.address.replace("//", "//me:se%2Fcret@")
        Server({"MLFLOW_TRACKING_URI": inside}).begin(named)
        assert {each["Authorization"] for each in server.seen} == {"Basic bWU6c2UvY3JldA=="}
        server.seen.clear()
        refuses = True
        with pytest.raises(MlflowError) as caught:
            Server({"MLFLOW_TRACKING_URI": inside, "MLFLOW_TRACKING_TOKEN": "t0k"}).begin(named)
        assert str(caught.value) == f"MLflow at {server.address}: 401 Unauthorized"
        assert server.seen[0]["Authorization"] == "Bearer t0k"
        # MLflow's own file of credentials, for clusters whose jobs inherit no variables.
        (tmp_path / ".mlflow").mkdir()
        (tmp_path / ".mlflow/credentials").write_text(
            "[mlflow]\nmlflow_tracking_username = me\nmlflow_tracking_password = a%b\n"
        )
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(MlflowError):
            Server({"MLFLOW_TRACKING_URI": server.address}).begin(named)
        assert server.seen[-1]["Authorization"] == "Basic bWU6YSVi"
    with pytest.raises(UsageError, match="MLFLOW_TRACKING_SERVER_CERT_PATH: No such file"):
        Server({"MLFLOW_TRACKING_URI": "https://h", "MLFLOW_TRACKING_SERVER_CERT_PATH": "/none"})


def test_a_cell_that_did_not_make_the_experiment_waits_for_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another cell makes the experiment between the question and the answer, and the parent some time later."""
    waited: list[float] = []
    monkeypatch.setattr("hpcrl.run.mlflow.time.sleep", waited.append)
    questions: list[int] = []

    def other(number: int, name: str) -> tuple[int, bytes] | None:
        if number == 2:
            server.experiments.add("s")
            return 400, b'{"error_code": "RESOURCE_ALREADY_EXISTS", "message": "there"}'
        if name == "runs/search":
            questions.append(number)
            if len(questions) == 3:
                server.add("study s p", 5)
        return None

    with _Servant(other) as server:
        Server({"MLFLOW_TRACKING_URI": server.address}).begin(Named("s", "r", "p/c/1", 0))
    assert list(server.runs) == ["study s p", "p/c/1"] and server.runs["p/c/1"]["parent"] == "study s p"
    assert len(waited) == 2


def test_of_two_parents_that_were_made_at_once_the_older_one_is_kept() -> None:
    asked: list[str] = []

    def other(number: int, name: str) -> None:
        asked.append(name)
        if asked.count("runs/create") == 1 and name == "runs/create":
            server.add("study s p", 5)

    with _Servant(other) as server:
        Server({"MLFLOW_TRACKING_URI": server.address}).begin(Named("s", "r", "p/c/1", 0))
    assert list(server.runs) == ["study s p", "p/c/1"] and server.runs["p/c/1"]["parent"] == "study s p"
    assert "runs/delete" in asked


def test_another_plan_of_a_study_has_another_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrl.run.mlflow._PARENT_SECONDS", (0.0, 0.0))
    with _Servant(lambda number, name: None) as server:
        for plan in ("p", "q"):
            Server({"MLFLOW_TRACKING_URI": server.address}).begin(Named("s", "r", f"{plan}/c/1", 0))
    assert [run["parent"] for run in server.runs.values()] == [None, "study s p", None, "study s q"]


def test_a_cell_without_tracking_is_the_same_in_a_study_that_tracks_others(tmp_path: Path) -> None:
    axes = {"framework": ["numpy"], "tracking": ["none", "mlflow", "mlflow-inline"]}
    (plain,) = cells_of(planned(tmp_path / "plain", dqn_study(axes={"framework": ["numpy"]})))
    ids = [each["id"] for each in cells_of(planned(tmp_path / "axis", dqn_study(axes=axes)))]
    assert ids[0] == plain["id"] and len(set(ids)) == 3
    (whole,) = cells_of(planned(tmp_path / "whole", dqn_study(axes={"framework": ["numpy"]}, tracking="mlflow")))
    assert whole["id"] == ids[1]


def test_an_axis_of_a_command_that_is_called_tracking_is_its_own(
    tmp_path: Path, hpcrl: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study = command_study([sys.executable, "-c", "import hpcrl; hpcrl.log(letters=len('{tracking}'))"])
    study["axes"] = {"tracking": ["none", "mlflow-inline"]}
    plan = planned(tmp_path / "p", study)
    (job,) = read_plan(plan).cell_jobs()
    for task, cell in enumerate(cells_of(plan)):
        done = run_task(plan, job.name, task)
        assert done.returncode == 0, done.stderr
        (record,) = (plan / "records").glob(f"{cell['id']}*")
        (values,) = [frame.payload for frame in read_frames(record) if frame.kind == "values"]
        assert values["entries"][0]["values"] == {"letters": len(study["axes"]["tracking"][task])}
        assert not [each for each in read_record(record).events if "MLflow" in each]
    assert "MLFLOW" not in hpcrl("submit", planned(tmp_path / "q", study, "sol")).err


def test_an_outcome_is_mlflow_s_word_for_it() -> None:
    with _Servant(lambda number, name: None) as server:
        for number, outcome in enumerate(("completed", "pruned", "preempted", "failed", "oom", "diverged", "timeout")):
            follower = tracking.InlineTracking(
                Server({"MLFLOW_TRACKING_URI": server.address}), Named("s", "r", f"p/c/{number}", 0), 1e9, print
            )
            follower.close([], {"outcome": outcome, "wall_time": 2.0, "compiled": "x", "precise": True, "score": 3}, {})
    assert server.ends[1:] == ["FINISHED", "FINISHED", "KILLED", "FAILED", "FAILED", "FAILED", "FAILED"]
    assert server.metrics[:2] == [("wall_time", 0, 2.0), ("score", 0, 3.0)]


def test_a_training_that_is_killed_leaves_a_run_that_says_so() -> None:
    named = {"study": "s", "name": "r", "key": "p/c/1", "started": 0}
    points = {"metrics": [{"key": "return/episode", "value": 1.0, "timestamp": 0, "step": 5}]}
    with _Servant(lambda number, name: None) as server:
        done = subprocess.run(
            [sys.executable, "-m", "hpcrl.run.tracking"],
            input=f'{json.dumps(named)}\n{json.dumps(points)}\n{{"metrics": [{{"key": "cut off',
            env=os.environ | {"MLFLOW_TRACKING_URI": server.address}, text=True, capture_output=True, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert server.ends[-1] == "KILLED"
    assert server.metrics == [("return/episode", 5, 1.0)]
