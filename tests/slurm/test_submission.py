"""Limits, retries, generations and messages, on a real Slurm."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import read_plan
from hpcrl.slurm.client import Completed, Slurm, run_command
from hpcrl.submit.selection import Budget, Choice
from hpcrl.submit.status import plan_status
from hpcrl.submit.submission import submit
from tests.builders import ENVIRONMENTS, command_study, planned_script, write_yaml
from tests.conftest import Shown
from tests.slurm.conftest import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("numpy_environment")]


def ids(plan: Path) -> set[str]:
    return {json.loads(line)["id"] for line in (plan / read_plan(plan).cells_file).read_text().splitlines()}


def quick(tmp_path: Path, **changes: object) -> dict[str, object]:
    return command_study(["sh", "-c", f"echo {{cell}} >> {tmp_path}/ran"], **changes)


def test_six_hundred_cells_go_through_a_queue_of_256_from_one_submit(
    cirrus_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real limits, real arrays; the cells themselves are left out, since 600 starts of Python take minutes."""
    cirrus = cirrus_cluster
    monkeypatch.setenv("SLURM_CONF", str(cirrus.virtual.conf))
    plan = cirrus.plan(tmp_path / "plan", quick(tmp_path, seeds=600))
    job = read_plan(plan).cell_jobs()[0]
    assert job.cells_per_task == 3
    script = plan / job.script
    lines = script.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("index="))
    mark = 'sed -n "$((index * 3 + 2)),$((index * 3 + 4))p" "submissions/$1" >> ran'
    planned_script(plan, script, "\n".join([*lines[: start + 1], mark, ""]).replace("exit 3", ":"))
    done = submit(plan, "slurm", cirrus.slurm, Budget(), lambda *progress: None)
    assert (done.tasks, done.waiting) == (600, 0)
    cirrus.until(lambda: not cirrus.virtual.command("squeue", "-h").stdout.strip(), 200)
    assert sorted((plan / "ran").read_text().split("\n")[:-1]) == [f"{task:08d} 000001" for task in range(600)]


def test_parts_that_feed_one_another(sol: Cluster, tmp_path: Path) -> None:
    limits = {"extends": "sol", "qos": {"public": {"max_queued": 4}}}
    profile = write_yaml(tmp_path / "sol.yaml", limits)
    study = quick(tmp_path, seeds=7, resources={"memory": "256M", "time": "4-00:00:00"})
    plan = sol.plan(tmp_path / "plan", study, profile=str(profile))
    done = submit(plan, "slurm", sol.slurm, Budget(), lambda *progress: None)
    assert (done.tasks, done.waiting) == (3, 4)
    sol.until(lambda: plan_status(plan, sol.slurm).counts() == {"COMPLETED": 7}, 240)
    ran = (tmp_path / "ran").read_text().split()
    assert sorted(ran) == sorted(ids(plan))
    assert sum("-feed" in each.job for each in Ledger(plan).submissions()) >= 2


def test_a_cell_that_is_too_slow_gets_more_time(sol: Cluster, tmp_path: Path) -> None:
    code = f"n=$(ls {tmp_path} | grep -c tried); touch {tmp_path}/tried-$n; [ $n -gt 0 ] || sleep 200"
    study = command_study(["sh", "-c", code], retry={"timeout": {"time": "x2", "at_most": 1}})
    plan = sol.plan(tmp_path / "plan", study)
    sol.submit(plan)
    sol.until(lambda: plan_status(plan, sol.slurm).counts() == {"RUNNING": 1})
    sol.until(lambda: (tmp_path / "tried-0").exists())
    key = plan_status(plan, sol.slurm).cells[0].status.key
    assert key is not None
    assert sol.virtual.command("scontrol", "update", f"jobid={key}", "EndTime=now+2seconds").returncode == 0
    assert sol.wait(plan).counts() == {"TIMEOUT": 1}
    done = submit(plan, "slurm", sol.slurm, Budget(), lambda *progress: None, Choice(retry=True))
    assert done.tasks == 1
    assert sol.wait(plan).counts() == {"COMPLETED": 1}
    rows = sol.collected(plan)
    assert list(rows["time_limit"]) == [600, 1200]
    assert list(rows["outcome"]) == ["timeout", "completed"]


def test_more_seeds_and_a_larger_request_run_only_the_difference(
    hpcrl: Callable[..., Shown], sol: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", str(ENVIRONMENTS))
    study = tmp_path / "s.yaml"

    def plan(**changes: object) -> Shown:
        write_yaml(study, quick(tmp_path, title=str(tmp_path), **changes))
        return hpcrl("plan", "--cluster", "sol", "--account", "lab", "--study", study, "-o", tmp_path / "plan")

    assert plan(seeds=2).code == 0
    assert hpcrl("submit", tmp_path / "plan").code == 0
    sol.wait(tmp_path / "plan")
    first = ids(tmp_path / "plan")
    shown = plan(seeds=4, resources={"memory": "2G", "time": "00:20:00"})
    assert shown.code == 0, shown
    assert "eneration 2: 2 cells new, 2 as before" in shown.out
    assert first < ids(tmp_path / "plan")
    shown = hpcrl("submit", tmp_path / "plan")
    assert "2 cells submitted in 1 job; 2 were already submitted." in shown.out
    assert sol.wait(tmp_path / "plan").counts() == {"COMPLETED": 4}
    assert sorted((tmp_path / "ran").read_text().split()) == sorted(ids(tmp_path / "plan"))
    rows = sol.collected(tmp_path / "plan")
    assert len(rows) == 4


def test_one_message_at_the_end(sol: Cluster, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    notify = [sys.executable, "-c", f"import sys; open({str(told)!r}, 'w').write(sys.stdin.read())"]
    plan = sol.plan(tmp_path / "plan", command_study(["sh", "-c", "[ {seed} = 1 ]"], seeds=2, notify=notify))
    sol.submit(plan)
    sol.until(told.exists)
    sol.until(lambda: told.read_text().endswith("}"))
    message = json.loads(told.read_text())
    assert message["counts"] == {"COMPLETED": 1, "FAILED": 1}
    assert message["cells"] == 2
    assert any("exit code 1" in cause for cause in message["causes"])
    sol.wait(plan)


def test_the_warning_signal_ends_no_command_that_does_not_know_it(sol: Cluster, tmp_path: Path) -> None:
    """Its limit is two minutes, and the signal used to come after 87 seconds."""
    knows = "trap 'echo warned >> {place}; exit 75' USR2; while true; do sleep 0.2; done"
    plain = sol.plan(tmp_path / "plain", command_study(["true"]))
    assert "--signal" not in (plain / read_plan(plain).cell_jobs()[0].script).read_text()
    study = command_study(["sh", "-c", f"[ -e {tmp_path}/warned ] || {{ {knows.format(place=tmp_path / 'warned')}; }}"])
    study["workload"]["on_warning"] = "USR2"
    plan = sol.plan(tmp_path / "plan", study)
    script = (plan / read_plan(plan).cell_jobs()[0].script).read_text()
    assert "--signal=USR2@" in script
    sol.submit(plan)
    sol.until(lambda: plan_status(plan, sol.slurm).counts() == {"RUNNING": 1})
    sol.until(lambda: any((plan / "records").iterdir()))
    key = plan_status(plan, sol.slurm).cells[0].status.key
    assert key is not None

    def warned() -> bool:
        # More than once: the command may not have set its trap yet. Once it is requeued, scancel refuses.
        sol.virtual.command("scancel", "--signal=USR2", key)
        return (tmp_path / "warned").exists()

    sol.until(warned)
    assert sol.wait(plan).counts() == {"COMPLETED": 1}
    rows = sol.collected(plan)
    assert list(rows["outcome"]) == ["preempted", "completed"]


def test_jobs_that_were_cancelled_before_they_could_begin_are_not_lost(sol: Cluster, tmp_path: Path) -> None:
    """Accounting does not list them by name, and the queue forgets them after some minutes."""

    def queue_forgets(arguments: Sequence[str], cwd: Path | None, timeout: float) -> Completed:
        return Completed(0, "", "") if "squeue" in arguments else run_command(arguments, cwd, timeout)

    study = command_study(["sleep", "100"], axes={"cpus": [1, 2]}, seeds=2, chain="sequential")
    plan = sol.plan(tmp_path / "plan", study)
    assert sol.submit(plan) == 4
    assert sol.virtual.command("scancel", "--me").returncode == 0
    sol.until(lambda: not plan_status(plan, sol.slurm).live())
    forgetful = Slurm(queue_forgets)
    sol.until(lambda: plan_status(plan, forgetful).counts() == {"CANCELLED": 4}, 30)
    collect([plan], tmp_path / "dataset", forgetful)
    cells = hpcrl.load(tmp_path / "dataset")
    assert set(cells.outcome) == {"cancelled"}, cells[["cpus", "outcome", "slurm_state", "attempt", "reason"]]


def test_a_cell_that_wants_more_memory_gets_it(sol: Cluster, tmp_path: Path) -> None:
    """The private Sol ends what is over its memory by control groups, as root; elsewhere by a stand-in."""
    code = "import time; held = bytearray(400 * 2**20); time.sleep(3)"
    retry = {"oom": {"memory": "x4", "at_most": 1}}
    study = command_study([sys.executable, "-c", code], retry=retry, resources={"memory": "200M", "time": "00:10:00"})
    plan = sol.plan(tmp_path / "plan", study)
    sol.submit(plan)
    assert sol.wait(plan).counts() == {"OUT_OF_MEMORY": 1}
    done = submit(plan, "slurm", sol.slurm, Budget(), lambda *progress: None, Choice(retry=True))
    assert done.tasks == 1
    assert sol.wait(plan).counts() == {"COMPLETED": 1}
    rows = sol.collected(plan)
    assert list(rows["memory_mib"]) == [200, 800]
    assert list(rows["outcome"]) == ["oom", "completed"]


@pytest.mark.parametrize("requeue", [True, False])
def test_a_cell_whose_node_fails_goes_to_another(sol: Cluster, tmp_path: Path, requeue: bool) -> None:
    """By Slurm's own requeue, or, where the site or the user forbids that, by a retry that leaves the node out."""
    code = f"mkdir {tmp_path}/first || exit 0; sleep 200"
    study = command_study(["sh", "-c", code], retry={"node_fail": {"at_most": 1, "exclude_node": True}})
    plan = sol.plan(tmp_path / "plan", study)
    sol.submit(plan)
    sol.until((tmp_path / "first").exists)
    job, node = sol.virtual.command("squeue", "-h", "-t", "RUNNING", "-o", "%i %N").stdout.split()
    sol.virtual.command("scontrol", "update", f"JobId={job}", f"Requeue={requeue:d}")
    sol.virtual.command("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        if not requeue:
            assert sol.wait(plan).counts() == {"NODE_FAIL": 1}
            done = submit(plan, "slurm", sol.slurm, Budget(), lambda *progress: None, Choice(retry=True))
            assert done.tasks == 1
            assert Ledger(plan).submissions()[-1].exclude == (node,)
        assert sol.wait(plan).counts() == {"COMPLETED": 1}
    finally:
        sol.virtual.command("scontrol", "update", f"NodeName={node}", "State=RESUME")


def test_the_best_of_a_search_runs_after_all_trials(sol: Cluster, tmp_path: Path) -> None:
    command = ["sh", "-c", f"echo {{search}} {{x}} >> {tmp_path}/ran; echo loss={{x}}"]
    study = command_study(
        command,
        axes={},
        seeds=[1, 2],
        score="loss",
        better="lower",
        search={"trials": 4, "space": {"x": {"low": 0.0, "high": 1.0}}},
    )
    study["workload"]["metrics"] = {"stdout": {"loss": "loss=(.*)"}}
    plan = sol.plan(tmp_path / "plan", study)
    submit(plan, "slurm", sol.slurm, Budget(), lambda *progress: None)
    sol.until(lambda: plan_status(plan, sol.slurm).counts() == {"COMPLETED": 6}, 240)
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert [role for role, _ in ran] == ["trial"] * 4 + ["best"] * 2
    assert {x for _, x in ran[4:]} == {min((x for _, x in ran[:4]), key=float)}
