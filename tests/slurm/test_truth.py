"""What a private Slurm has of its site, on clusters of their own: limits, preemption, memory."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import read_plan
from hpcrl.private_slurm import virtual as module
from hpcrl.private_slurm.config import CONTROLLERS, limit_commands
from hpcrl.private_slurm.setup import CONTROL_GROUPS, control_groups_here
from hpcrl.private_slurm.virtual import VirtualSlurm
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.library import Library
from hpcrl.submit.selection import Budget, Choice
from hpcrl.submit.submission import submit as submit_plan
from tests.builders import command_study, planned
from tests.slurm.conftest import cluster_of
from tests.slurm.test_faults import until

pytestmark = pytest.mark.slurm
needs_groups = pytest.mark.skipif(not control_groups_here(), reason="no control groups of version 1 here")


@contextmanager
def started(profile: ClusterProfile, **choices: Any) -> Iterator[VirtualSlurm]:
    slurm = VirtualSlurm(Path(tempfile.mkdtemp(prefix="ht-", dir="/tmp")))
    slurm.up(profile, **choices)
    try:
        yield slurm
    finally:
        slurm.down()
        assert slurm.processes() == []
        shutil.rmtree(slurm.directory)


def site(name: str, scheduler: dict[str, Any], **qos: dict[str, Any]) -> ClusterProfile:
    """A profile with other values for the scheduler and some QOS."""
    profile = Library().cluster(name)
    changed = {each: profile.qos[each].model_copy(update=values) for each, values in qos.items()}
    scheduled = profile.scheduler.model_copy(update=scheduler)
    return profile.model_copy(update={"scheduler": scheduled, "qos": {**profile.qos, **changed}})


@pytest.fixture(scope="module")
def slurm() -> Iterator[VirtualSlurm]:
    changes = {"preempt_exempt_time": None, "max_submitted": 900}
    with started(site("sol", changes, debug={"max_gpus": 1})) as running:
        yield running


def submit(slurm: VirtualSlurm, wrap: str, *options: str) -> subprocess.CompletedProcess[str]:
    given = " ".join(options)
    usual = [("--mem", "--mem=10M"), ("--time", "--time=2")]
    filled = [default for option, default in usual if option not in given]
    return slurm.command("sbatch", "--parsable", "-n1", "-o/dev/null", *filled, *options, "--wrap", wrap)


def accounted(slurm: VirtualSlurm, job: str, column: str) -> str:
    return slurm.command("sacct", "-nPX", "-j", job, "-o", column).stdout.strip()


def queued(slurm: VirtualSlurm, job: str, column: str = "%T") -> str:
    return slurm.command("squeue", "-h", "-t", "all", "-j", job, "-o", column).stdout.strip()


def test_the_gpu_limit_of_a_qos_is_there_and_binds(slurm: VirtualSlurm) -> None:
    shown = slurm.command("sacctmgr", "-nP", "show", "qos", "debug,class", "format=Name,MaxTRES,MaxJobsPU,MaxSubmitPU")
    assert sorted(shown.stdout.splitlines(), reverse=True) == [
        "debug|gres/gpu=1||2",
        "class|cpu=32,gres/gpu=4,mem=320G|2|10",
    ]
    over = submit(slurm, "true", "--qos=debug", "--gres=gpu:a100:2", "--hold")
    assert over.returncode == 1
    assert "QOSMaxGRESPerJob" in over.stderr
    assert submit(slurm, "true", "--qos=debug", "--gres=gpu:a100:1").returncode == 0


def test_a_user_queues_as_many_as_qos_and_site_allow(slurm: VirtualSlurm) -> None:
    until(lambda: slurm.command("squeue", "-h").stdout == "")
    jobs = [submit(slurm, "true", "--qos=debug", "--hold") for _ in range(3)]
    assert [each.returncode for each in jobs] == [0, 0, 1]
    assert "QOSMaxSubmitJobPerUserLimit" in jobs[2].stderr
    refused = submit(slurm, "true", "--hold", "--array=0-898")
    assert "AssocMaxSubmitJobLimit" in refused.stderr
    slurm.command("scancel", *(each.stdout.strip() for each in jobs[:2]))


def test_jobs_of_a_preemptable_qos_are_preempted(slurm: VirtualSlurm) -> None:
    whole = ("--nodelist=highmem-1", "--exclusive")
    low = submit(slurm, "sleep 100", "--qos=private", *whole).stdout.strip()
    until(lambda: queued(slurm, low) == "RUNNING")
    high = submit(slurm, "true", "--qos=public", *whole).stdout.strip()
    until(lambda: queued(slurm, high) == "COMPLETED")
    assert queued(slurm, low) == "PREEMPTED"  # PreemptMode=CANCEL: it does not come back


@pytest.mark.usefixtures("numpy_environment")
def test_a_preempted_cell_is_retried_by_its_cause(slurm: VirtualSlurm, tmp_path: Path) -> None:
    sol = cluster_of("sol", slurm)
    study = command_study(
        ["sh", "-c", f"mkdir {tmp_path}/first || exit 0; sleep 200"],
        resources={"cpus": 100, "memory": "1G", "time": "00:10:00"},
        placement={"sol": {"partition": "general", "qos": "private"}},
        retry={"preempted": {"at_most": 1}, "failed": {"at_most": 0}},
    )
    plan = sol.plan(tmp_path / "plan", study)
    sol.submit(plan)
    sol.until((tmp_path / "first").exists)
    node = slurm.command("squeue", "-h", "-t", "RUNNING", "-o", "%N").stdout.strip()
    high = submit(slurm, "sleep 2", "--qos=public", f"--nodelist={node}", "--exclusive").stdout.strip()
    assert sol.wait(plan).counts() == {"PREEMPTED": 1}
    done = submit_plan(plan, "slurm", sol.slurm, Budget(), lambda *progress: None, Choice(retry=True))
    assert done.tasks == 1
    assert Ledger(plan).submissions()[-1].cause == "preempted"
    assert sol.wait(plan).counts() == {"COMPLETED": 1}
    # The retried job may have run on another node, and be the first to end.
    sol.until(lambda: queued(slurm, high) == "COMPLETED")
    # The accounting hears of an end seconds later than the controller.
    sol.until(lambda: list(sol.collected(plan)["slurm_state"]) == ["PREEMPTED", "COMPLETED"])


def test_nobody_else_reaches_it(slurm: VirtualSlurm) -> None:
    """Its database has no password: whoever reached it would write files as the user who runs it."""
    assert stat.S_IMODE(slurm.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((slurm.directory / "etc/munge.key").stat().st_mode) == 0o600
    listening = {
        (each.name(), port.laddr.ip)
        for each in slurm.processes()
        for port in each.net_connections("tcp")
        if port.status == psutil.CONN_LISTEN
    }
    assert {"slurmctld", "slurmd", "slurmdbd"} <= {name for name, _ in listening}
    assert {name for name, address in listening if address != "127.0.0.1"} <= {"slurmdbd"}  # Slurm 22.05 cannot bind it
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    for name in ("run/mysql.sock", "run/munge.sock"):
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(slurm.directory / name)!r})"
        done = subprocess.run(
            ["/usr/bin/python3", "-c", code], user=70_001, group=70_001, extra_groups=[], capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert "PermissionError" in done.stderr


def test_accounting_keeps_no_comment(slurm: VirtualSlurm) -> None:
    job = submit(slurm, "true", "--comment=token").stdout.strip()
    assert queued(slurm, job, "%k") == "token"
    until(lambda: accounted(slurm, job, "State,Partition") == "COMPLETED|htc")
    assert accounted(slurm, job, "Comment") == ""


def memory_hog(slurm: VirtualSlurm, mebibytes: int, *options: str) -> str:
    """Run a job of 50 MiB that takes some memory, and return what accounting says of it at last."""
    wrap = f"python3 -c 'x = bytearray({mebibytes} * 2**20); import time; time.sleep(3)'"
    job = submit(slurm, wrap, "--mem=50M", *options).stdout.strip()
    ended = ("COMPLETED|0:0", "OUT_OF_MEMORY|0:125")
    until(lambda: accounted(slurm, job, "State,ExitCode") in ended)
    return accounted(slurm, job, "State")


@needs_groups
def test_a_job_over_its_memory_with_control_groups(slurm: VirtualSlurm) -> None:
    assert memory_hog(slurm, 10) == "COMPLETED"
    assert memory_hog(slurm, 150) == "OUT_OF_MEMORY"


def test_a_job_over_its_memory_with_the_stand_in() -> None:
    with started(Library().cluster("sol"), enforce_memory=True, control_groups=False) as slurm:
        assert memory_hog(slurm, 10) == "COMPLETED"
        assert memory_hog(slurm, 150) == "OUT_OF_MEMORY"


def nodes_of(slurm: VirtualSlurm, plan: Path, tmp_path: Path) -> set[str]:
    """Submit the cells' scripts of a plan as they stand, for programs that are ended at once, and return their nodes."""
    found = set()
    for job in read_plan(plan).cell_jobs():
        script = plan / job.script
        options = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
        quick = tmp_path / "quick.sbatch"
        quick.write_text("\n".join(["#!/bin/sh", *options, "#SBATCH --output=/dev/null", "sleep 1"]) + "\n")
        done = slurm.command("sbatch", "--parsable", str(quick))
        assert done.returncode == 0, done.stderr
        number = done.stdout.strip()
        until(lambda number=number: set(queued(slurm, number).split()) == {"COMPLETED"})
        for line in queued(slurm, number, "%N").splitlines():
            found |= set(slurm.command("scontrol", "show", "hostnames", line).stdout.split())
    return found


def test_cells_run_where_they_were_placed(slurm: VirtualSlurm, tmp_path: Path) -> None:
    # Eight at a time, each more than half of a node's cores: they spread over all nodes that take them.
    study = command_study(["true"], seeds=8, resources={"cpus": 40, "memory": "1G", "time": "00:05:00"})
    there = nodes_of(slurm, planned(tmp_path / "a", study, "sol"), tmp_path)
    assert there == {"standard-1", "standard-2"}
    pinned = study | {"placement": {"sol": {"partition": "htc"}}}
    plan = planned(tmp_path / "b", pinned, "sol")
    assert any("may start on different CPUs" in note for note in read_plan(plan).totals["notes"])
    assert not nodes_of(slurm, plan, tmp_path) <= there  # it is as the note says


def test_a_qos_may_go_beyond_its_partition(slurm: VirtualSlurm) -> None:
    ten_days = ("--partition=public", "--time=10-00:00:00")
    assert "Requested time limit is invalid" in submit(slurm, "true", *ten_days, "--qos=public").stderr
    assert submit(slurm, "true", *ten_days, "--qos=long").returncode == 0
    assert submit(slurm, "true", "--partition=public", "--time=15-00:00:00", "--qos=long").returncode == 1


def test_cirrus_as_it_is(tmp_path: Path) -> None:
    with started(Library().cluster("cirrus")) as slurm:
        shown = slurm.command("sacctmgr", "-nP", "show", "qos", "largescale", "format=MaxSubmitPU,MinTRES,MaxWall")
        assert shown.stdout.strip() == "4|node=129|8-20:00:00"
        usual = ("--partition=standard", "--qos=standard", "--account=lab")
        refused = submit(slurm, "true", "--mem=50M", *usual)
        assert "--mem is forbidden here: memory comes pro rata with the cores" in refused.stderr
        assert "Invalid qos" in slurm.command("sbatch", "--wrap=true", "--partition=highmem", "--qos=long").stderr
        study = command_study(["true"], resources={"nodes": 2, "memory": "1G", "time": "00:05:00"})
        nodes = nodes_of(slurm, planned(tmp_path / "plan", study, "cirrus"), tmp_path)
        assert len(nodes) == 2
        assert slurm.command("squeue", "-h", "-t", "all", "-o", "%C").stdout.split() == [str(2 * 288)]


@needs_groups
def test_two_clusters_keep_their_control_groups_apart(slurm: VirtualSlurm) -> None:
    def groups() -> set[Path]:
        return {path for name in CONTROLLERS for path in (CONTROL_GROUPS / name).glob("hpcrl-*")}

    before = groups()
    with started(Library().cluster("sol"), enforce_memory=True) as second:
        assert len(groups() - before) == len(CONTROLLERS)
        assert memory_hog(second, 150) == "OUT_OF_MEMORY"
        assert memory_hog(slurm, 150) == "OUT_OF_MEMORY"
    assert groups() == before
    assert memory_hog(slurm, 150) == "OUT_OF_MEMORY"


def test_a_limit_that_sacctmgr_does_not_take_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_gpus(profile: ClusterProfile) -> str:
        return limit_commands(profile).replace("gres/gpu=4", "gres/gpus=4")

    monkeypatch.setattr(module, "limit_commands", without_gpus)
    directory = Path(tempfile.mkdtemp(prefix="ht-", dir="/tmp"))
    with pytest.raises(HpcrlError, match="QOS class: MaxTRES: expected cpu=32,gres/gpu=4,mem=327680M, got no value"):
        VirtualSlurm(directory).up(Library().cluster("sol"))
    assert VirtualSlurm(directory).processes() == []
    shutil.rmtree(directory)


def test_control_groups_are_not_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "control_groups_here", lambda: False)
    with pytest.raises(UsageError, match=r"control groups .* are not available here"):
        VirtualSlurm(Path("/tmp/hpcrl-none")).up(Library().cluster("sol"), control_groups=True)
    assert not Path("/tmp/hpcrl-none").exists()
