"""The fault tools, on a private Slurm of their own: what they break, other tests would miss."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcrl.errors import UsageError
from hpcrl.private_slurm.faults import Faults
from hpcrl.private_slurm.virtual import VirtualSlurm
from hpcrl.spec.library import Library
from tests.conftest import Shown

SUBMIT = ("sbatch", "--parsable", "--wrap", "true", "-n1", "--mem=10M", "-t1", "-o/dev/null")


@pytest.fixture(scope="module")
def virtual() -> Iterator[VirtualSlurm]:
    directory = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    slurm = VirtualSlurm(directory)
    slurm.up(Library().cluster("sol"))
    try:
        yield slurm
    finally:
        slurm.down()
        assert slurm.processes() == []
        shutil.rmtree(directory)


@pytest.fixture
def faults(virtual: VirtualSlurm) -> Iterator[Faults]:
    """The wrappers, all of them well."""
    found = virtual.faults()
    found.clear()
    yield found
    found.clear()


@pytest.fixture
def call(virtual: VirtualSlurm, faults: Faults) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Call a command as a program under test would: through PATH."""

    def called(*arguments: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["env", *arguments], env=virtual.environment() | {"PATH": faults.path}, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip

    return called


def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.1)


Call = Callable[..., "subprocess.CompletedProcess[str]"]
slurm = pytest.mark.slurm


@slurm
def test_without_faults_a_wrapper_changes_nothing(call: Call, faults: Faults) -> None:
    before = len(faults.calls("sbatch"))
    done = call(*SUBMIT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().isdigit()
    assert [each.arguments for each in faults.calls("sbatch")[before:]] == [SUBMIT[1:]]
    refused = call("sbatch", "--partition=nowhere", *SUBMIT[1:])
    assert refused.returncode == 1
    assert "Invalid partition name specified" in refused.stderr


@slurm
def test_accept_and_fail_leaves_a_job_that_its_caller_knows_nothing_of(call: Call, faults: Faults) -> None:
    faults.set("sbatch", "accept-and-fail", times=1)
    done = call(*SUBMIT, "--job-name=hidden", "--hold")
    assert (done.returncode, done.stdout) == (1, "")
    expected = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
    assert done.stderr == expected
    hidden = (faults.calls("sbatch")[-1].out or "").strip()
    assert call("squeue", "-h", "-n", "hidden", "-o", "%i").stdout.strip() == hidden != ""
    assert call(*SUBMIT).returncode == 0  # times=1 is over
    assert call("scancel", hidden).returncode == 0


@slurm
def test_accept_and_fail_keeps_a_plain_refusal(call: Call, faults: Faults) -> None:
    faults.set("sbatch", "accept-and-fail")
    done = call("sbatch", "--partition=nowhere", *SUBMIT[1:])
    assert done.returncode == 1
    assert "Invalid partition name specified" in done.stderr


@slurm
def test_faults_before_the_request_make_none(call: Call, faults: Faults) -> None:
    def queued() -> str:
        return call("squeue", "-h", "-t", "all", "-o", "%i").stdout

    before = queued()
    faults.set("sbatch", "fail", "sbatch: error: no")
    done = call(*SUBMIT)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "sbatch: error: no\n")
    faults.clear()
    faults.set("sbatch", "hang")
    with pytest.raises(subprocess.TimeoutExpired):
        call(*SUBMIT, timeout=1)
    faults.set("squeue", "reply", "", times=1)
    assert queued() == ""
    assert queued() == before


@slurm
def test_delays(call: Call, faults: Faults) -> None:
    for kind in ("delay", "delay-after"):
        faults.set("sbatch", kind, 1.5, times=1)
        begun = time.monotonic()
        assert call(*SUBMIT).stdout.strip().isdigit()
        assert time.monotonic() - begun >= 1.5
    # The first waits before the request, the second after it.
    faults.set("sbatch", "delay-after", 600)
    with pytest.raises(subprocess.TimeoutExpired):
        call(*SUBMIT, "--job-name=late", "--hold", timeout=3)
    assert call("squeue", "-h", "-n", "late", "-o", "%T").stdout == "PENDING\n"
    assert call("scancel", "--name=late").returncode == 0


@slurm
def test_a_banner_stands_before_the_real_output(call: Call, faults: Faults) -> None:
    faults.set("sbatch", "banner", "job 424242 checked by site policy")
    first, second = call(*SUBMIT).stdout.splitlines()
    assert first == "job 424242 checked by site policy"
    assert second.isdigit()


@slurm
def test_a_missing_command_is_found_nowhere(call: Call, faults: Faults) -> None:
    faults.set("sacct", "missing")
    assert shutil.which("sacct", path=faults.path) is None
    assert shutil.which("env", path=faults.path) is not None  # what stands beside it is still there
    assert call("sacct").returncode == 127
    faults.clear("sacct")
    assert call("sacct", "-n").returncode == 0


@slurm
def test_times_and_skip_count_calls_at_the_same_moment_exactly(call: Call, faults: Faults) -> None:
    faults.set("squeue", "fail", "no", times=7, skip=5)
    before = len(faults.calls("squeue"))
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: call("squeue", "-h").returncode, range(24)))
    assert (done.count(1), done.count(0)) == (7, 17)
    assert faults.active() == []
    calls = faults.calls("squeue")[before:]
    assert len(calls) == 24
    assert sum(each.faults == ("fail",) for each in calls) == 7


@slurm
def test_a_killed_controller_forgets_what_it_has_not_written(virtual: VirtualSlurm, call: Call) -> None:
    virtual.kill_controller()
    assert call("squeue").returncode != 0
    virtual.start_controller()
    state = virtual.directory / "state/job_state"
    # slurmctld writes its jobs down at once, but then not again for five seconds.
    written = state.stat().st_mtime_ns if state.exists() else 0
    kept = call(*SUBMIT, "--hold").stdout.strip()
    until(lambda: state.exists() and state.stat().st_mtime_ns > written)
    lost = call(*SUBMIT, "--hold").stdout.strip()
    virtual.kill_controller()
    virtual.start_controller()
    assert call("squeue", "-h", "-o", "%i", "-j", kept).stdout.strip() == kept
    assert call("squeue", "-h", "-o", "%i", "-j", lost).stdout == ""
    assert call(*SUBMIT).stdout.strip() == lost  # and the next job gets its number
    assert call("scancel", kept).returncode == 0
    until(lambda: all(state == "idle" for _, state in virtual.nodes()))


@slurm
def test_without_the_database_only_accounting_is_silent(virtual: VirtualSlurm, call: Call) -> None:
    virtual.kill_database()
    assert call("sacct").returncode == 1
    assert call(*SUBMIT).returncode == 0
    virtual.start_database()
    assert call("sacct").returncode == 0


@slurm
@pytest.mark.slow
def test_a_crashed_node_takes_its_jobs_along(virtual: VirtualSlurm, call: Call, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    wrap = f"echo $SLURMD_NODENAME >> {ran}; sleep 600"
    job = call(*SUBMIT[:2], "--wrap", wrap, *SUBMIT[4:], "--no-requeue", "--nodelist=highmem-1").stdout.strip()
    until(ran.exists)
    virtual.kill_node("highmem-1", jobs=True)
    until(lambda: "NODE_FAIL" in call("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").stdout)
    virtual.start_node("highmem-1")
    assert dict(virtual.nodes())["highmem-1"] == "idle"


@slurm
@pytest.mark.slow
def test_a_killed_daemon_alone_does_not_end_its_job(virtual: VirtualSlurm, call: Call, tmp_path: Path) -> None:
    go = tmp_path / "go"
    begun = tmp_path / "begun"
    wrap = f"touch {begun}; while [ ! -e {go} ]; do sleep 0.1; done"
    job = call(*SUBMIT[:2], "--wrap", wrap, *SUBMIT[4:], "--nodelist=highmem-2").stdout.strip()
    until(begun.exists)
    virtual.kill_node("highmem-2")
    go.touch()
    until(lambda: "COMPLETED" in call("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").stdout)
    virtual.start_node("highmem-2")


@slurm
def test_a_node_that_is_not_there(virtual: VirtualSlurm) -> None:
    with pytest.raises(UsageError, match="no node 'standard-9'; did you mean 'standard-"):
        virtual.kill_node("standard-9")


@slurm
def test_by_the_command_line(virtual: VirtualSlurm, faults: Faults, call: Call, hpcrl: Callable[..., Shown]) -> None:
    where = ("--dir", virtual.directory)
    shown = hpcrl("dev", "slurm", "fault", "sbatch", "accept-and-fail", "--times", 1, *where)
    assert shown.out.splitlines()[-1] == "sbatch\taccept-and-fail\t\t1\t0"
    assert call(*SUBMIT).returncode == 1
    assert call(*SUBMIT).returncode == 0
    hpcrl("dev", "slurm", "fault", "squeue", "delay", "3", *where)
    assert hpcrl("dev", "slurm", "fault", "--clear", *where).code == 0
    assert faults.active() == []
    assert hpcrl("dev", "slurm", "fault", "sbatch", "hangs", *where).code == 2
    assert hpcrl("dev", "slurm", "kill", "database", *where).code == 0
    assert call("sacct").returncode == 1
    assert hpcrl("dev", "slurm", "start", "database", *where).code == 0
    assert call("sacct").returncode == 0
    assert hpcrl("dev", "slurm", "kill", "contoller", *where).code == 2
    assert "no private Slurm runs here" in hpcrl("dev", "slurm", "kill", "controller", "--dir", "/nonexistent").err


@slurm
def test_the_cluster_is_run_without_its_own_wrappers(
    virtual: VirtualSlurm, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", faults.path + os.pathsep + os.environ["PATH"])
    faults.set("scontrol", "fail", "no")
    assert virtual.command("scontrol", "ping").returncode == 0
    assert virtual.faults().path == faults.path


@pytest.fixture
def pretended(tmp_path: Path) -> Faults:
    """Wrappers of commands that are no Slurm."""
    (tmp_path / "real").mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol"):
        program = tmp_path / "real" / name
        program.write_text("#!/bin/sh\necho real\n")
        program.chmod(0o755)
    return Faults(tmp_path / "it's faulty", f"{tmp_path}/real:{os.environ['PATH']}")


def test_a_directory_with_odd_characters(pretended: Faults) -> None:
    pretended.set("sbatch", "banner", "a 'b'\n$(c)")
    done = subprocess.run(["sbatch"], env={"PATH": pretended.path}, capture_output=True, text=True, check=True)
    assert done.stdout == "a 'b'\n$(c)\nreal\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sbach", "hang"), "no wrapper for 'sbach'; did you mean 'sbatch'?"),
        (("sbatch", "hangs"), "no fault 'hangs'; did you mean 'hang'?"),
        (("sbatch", "delay"), "delay: expected a number of seconds, got no value"),
        (("sbatch", "delay", "soon"), "delay: expected a number of seconds, got 'soon'"),
        (("sbatch", "delay", "nan"), "delay: expected a number of seconds, got 'nan'"),
        (("sbatch", "hang", "4"), "hang: expected no value"),
        (("sbatch", "hang", None, 0), "times: expected at least 1, got 0"),
        (("sbatch", "missing", None, 1), "missing: a missing command cannot count its calls"),
    ],
)
def test_a_fault_that_cannot_be_set(pretended: Faults, arguments: Sequence[Any], message: str) -> None:
    with pytest.raises(UsageError) as stop:
        pretended.set(*arguments)
    assert message in str(stop.value)
    assert pretended.active() == []
