"""The faults: each a function of the rig, in the words of what happens to a user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.faults.rig import Count, Rig, killed, pause

SCENARIOS: dict[str, Callable[[Rig], None]] = {}
HELD: dict[str, Any] = {"max_parallel": 1}


def scenario(function: Callable[[Rig], None]) -> Callable[[Rig], None]:
    SCENARIOS[function.__name__.replace("_", " ")] = function
    return function


@scenario
def no_fault(rig: Rig) -> None:
    rig.finish(rig.plan())


@scenario
def two_submits_at_once(rig: Rig) -> None:
    plan = rig.plan()
    first = rig.start("submit", plan)
    pause(0.7)
    second = rig.start("submit", plan)
    rig.end(first), rig.end(second)
    rig.finish(plan)


@scenario
def sbatch_times_out_but_was_heard(rig: Rig) -> None:
    plan = rig.plan()
    rig.faults.set("sbatch", "accept-and-fail", times=1)
    rig.hpcrl("submit", plan)
    rig.finish(plan)


@scenario
def sbatch_times_out_and_submit_is_killed_while_asking(rig: Rig) -> None:
    plan = rig.plan()
    rig.faults.set("sbatch", "accept-and-fail", times=1)
    process = rig.start("submit", plan)
    pause(3)
    killed(process)
    rig.end(process)
    rig.finish(plan)


@scenario
def sbatch_fails_before_it_is_heard(rig: Rig) -> None:
    plan = rig.plan()
    rig.faults.set(
        "sbatch", "fail", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", times=1
    )
    rig.hpcrl("submit", plan)
    rig.finish(plan)


@scenario
def submit_is_killed_and_its_sbatch_goes_on(rig: Rig) -> None:
    plan = rig.plan()
    rig.faults.set("sbatch", "delay", 2.0, times=1)
    process = rig.start("submit", plan)
    pause(3)
    killed(process, group=False)
    rig.finish(plan)
    rig.end(process)


@scenario
def submit_is_killed_before_sbatch_s_answer(rig: Rig) -> None:
    plan = rig.plan()
    rig.faults.set("sbatch", "delay-after", 3.0, times=1)
    process = rig.start("submit", plan)
    pause(3)
    killed(process)
    rig.end(process)
    rig.finish(plan)


@scenario
def submit_is_killed_at_any_moment(rig: Rig) -> None:
    plan = rig.plan()
    process = rig.start("submit", plan)
    pause(1.2)
    killed(process)
    rig.end(process)
    rig.finish(plan)


@scenario
def ctrl_c_at_any_moment(rig: Rig) -> None:
    plan = rig.plan()
    for verb in ("submit", "status", "submit", "cancel"):
        process = rig.start(verb, plan)
        time.sleep(0.05)  # of the interpreter's own start
        pause(0.9)
        killed(process, number=signal.SIGINT)
        rig.end(process)
    rig.wait(plan)  # the controller may act on an interrupted scancel later than the next submit asks
    rig.finish(plan)


@scenario
def the_controller_forgets_the_job(rig: Rig) -> None:
    plan = rig.plan(seconds=1)
    rig.hpcrl("submit", plan)
    pause(1)
    rig.virtual.kill_controller()
    rig.virtual.start_controller()
    rig.honest(plan)
    _until_lost_or_ended(rig, plan)
    rig.finish(plan)


@scenario
def the_controller_forgets_the_job_and_others_get_its_id(rig: Rig) -> None:
    plan = rig.plan(**HELD)
    rig.hpcrl("submit", plan)
    rig.virtual.kill_controller()
    rig.virtual.start_controller()
    for _ in range(4):
        words = [
            "sbatch",
            "--parsable",
            "--wrap=true",
            "-n1",
            "--mem=10M",
            "-t1",
            "-o/dev/null",
            "-phtc",
            "-qpublic",
            "--array=0-9",
        ]
        rig.virtual.command(*words)
    rig.honest(plan)
    _until_lost_or_ended(rig, plan)
    rig.finish(plan)


@scenario
def the_controller_dies_while_sbatch_asks(rig: Rig) -> None:
    plan = rig.plan()
    process = rig.start("submit", plan)
    time.sleep(0.4)
    pause(0.5)
    rig.virtual.kill_controller()
    pause(2)
    rig.virtual.start_controller()
    rig.end(process)
    _until_lost_or_ended(rig, plan)
    rig.finish(plan)


@scenario
def the_controller_is_away_during_status(rig: Rig) -> None:
    plan = rig.plan(seconds=2)
    rig.hpcrl("submit", plan)
    rig.wait(plan)
    rig.virtual.kill_controller()
    done = rig.hpcrl("status", plan)
    if "squeue could not be asked" not in done.err and set(rig.states(plan).values()) != {"COMPLETED"}:
        rig.count.wrong += 1
        rig.note(f"not a word that the controller is away: {done.err}")
    rig.virtual.start_controller()
    rig.finish(plan)


@scenario
def accounting_is_away(rig: Rig) -> None:
    plan = rig.plan()
    rig.virtual.kill_database()
    rig.hpcrl("submit", plan)
    rig.honest(plan)
    rig.virtual.start_database()
    rig.finish(plan)


@scenario
def sacct_is_missing(rig: Rig) -> None:
    plan = rig.plan()
    rig.faults.set("sacct", "missing")
    rig.hpcrl("submit", plan)
    rig.wait(plan)
    rig.finish(plan)


@scenario
def squeue_hangs(rig: Rig) -> None:
    plan = rig.plan()
    rig.hpcrl("submit", plan)
    rig.faults.set("squeue", "hang", times=1)
    rig.honest(plan)
    rig.finish(plan)


@scenario
def a_waiting_task_is_cancelled_by_scancel(rig: Rig) -> None:
    plan = rig.plan(gated=True, **HELD)
    rig.hpcrl("submit", plan)
    rig.cancel_task(plan, rig.ids(plan)[-1])
    rig.let_go(plan)
    rig.wait(plan)
    rig.judge(plan, {rig.ids(plan)[-1]: "CANCELLED"})
    rig.finish(plan)


@scenario
def a_waiting_task_is_cancelled_by_hpcrl(rig: Rig) -> None:
    plan = rig.plan(seconds=8, **HELD)
    rig.hpcrl("submit", plan)
    last = rig.ids(plan)[-1]
    rig.hpcrl("cancel", plan, "--cell", last)
    rig.wait(plan)
    rig.judge(plan, {last: "CANCELLED"})
    rig.finish(plan)


@scenario
def all_is_cancelled_after_a_doubtful_submission(rig: Rig) -> None:
    plan = rig.plan(seconds=30, **HELD)
    rig.faults.set("sbatch", "accept-and-fail", times=1)
    process = rig.start("submit", plan)
    time.sleep(1.0)
    killed(process)
    rig.end(process)
    rig.faults.clear()
    rig.hpcrl("cancel", plan)
    time.sleep(1)
    if left := rig.virtual.command("squeue", "-h", "-t", "PENDING,RUNNING").stdout.strip():
        rig.count.wrong += 1
        rig.note(f"cancelled, and still there: {left}")


def _damage_ledger(rig: Rig, damage: Callable[[Path], object]) -> None:
    plan = rig.plan(seconds=1)
    rig.hpcrl("submit", plan)
    pause(3)
    damage(plan / "ledger.sqlite")
    rig.finish(plan)


@scenario
def the_ledger_is_deleted(rig: Rig) -> None:
    _damage_ledger(rig, lambda path: path.unlink())


@scenario
def the_ledger_is_emptied(rig: Rig) -> None:
    _damage_ledger(rig, lambda path: path.write_bytes(b""))


@scenario
def the_ledger_is_cut_short(rig: Rig) -> None:
    _damage_ledger(rig, lambda path: path.write_bytes(path.read_bytes()[:5000]))


@scenario
def the_plan_is_copied_without_its_ledger(rig: Rig) -> None:
    plan = rig.plan(seconds=1)
    rig.hpcrl("submit", plan)
    copy = plan.parent / "copy"
    shutil.copytree(
        plan, copy, ignore=shutil.ignore_patterns("ledger*", "submissions", "attempts", "records", "logs", "lease")
    )
    _must_refuse(rig, copy)
    rig.finish(plan)


@scenario
def the_plan_is_copied_with_its_ledger(rig: Rig) -> None:
    plan = rig.plan(seconds=1)
    rig.hpcrl("submit", plan)
    copy = plan.parent / "copy"
    shutil.copytree(plan, copy)
    _must_refuse(rig, copy)
    rig.finish(plan)


@scenario
def the_plan_is_renamed_when_it_has_run(rig: Rig) -> None:
    plan = rig.plan()
    rig.hpcrl("submit", plan)
    rig.wait(plan)
    plan = plan.rename(plan.with_name("renamed"))
    rig.finish(plan)


@scenario
def the_fence_and_the_ledger_are_deleted_after_all_has_run(rig: Rig) -> None:
    plan = rig.plan()
    rig.hpcrl("submit", plan)
    rig.wait(plan)
    (plan / "ledger.sqlite").unlink()
    shutil.rmtree(plan / "attempts")
    rig.faults.set("squeue", "reply", "")
    rig.faults.set("sacct", "reply", "")
    rig.hpcrl("submit", plan)
    rig.finish(plan)


@scenario
def a_job_is_over_and_purged_before_anybody_asked(rig: Rig) -> None:
    plan = rig.plan()
    rig.faults.set("sbatch", "delay-after", 60.0, times=1)
    process = rig.start("submit", plan)
    deadline = time.monotonic() + 60
    while sum(rig.ran(plan).values()) < rig.cells and time.monotonic() < deadline:
        time.sleep(0.3)
    killed(process)
    rig.end(process)
    rig.faults.clear()
    time.sleep(6)
    rig.faults.set("squeue", "reply", "")  # as Slurm does once MinJobAge is over
    rig.hpcrl("submit", plan)
    rig.finish(plan)


@scenario
def a_site_s_wrapper_prints_a_number_first(rig: Rig) -> None:
    plan = rig.plan()
    rig.faults.set("sbatch", "banner", "job 424242 checked by site policy")
    rig.hpcrl("submit", plan)
    rig.finish(plan)


@scenario
def sbatch_answers_after_a_while(rig: Rig) -> None:
    plan = rig.plan()
    rig.faults.set("sbatch", "delay", 12.0, times=1)
    done = rig.hpcrl("submit", plan)
    if "sbatch has not answered for 10 s" not in done.err:
        rig.count.wrong += 1
        rig.note("twelve seconds of silence")
    rig.finish(plan)


@scenario
def the_second_submission_s_clock_is_behind(rig: Rig) -> None:
    plan = rig.plan(seconds=2, **HELD)
    rig.hpcrl("submit", plan)
    rig.hpcrl("cancel", plan)
    place = plan.parent / "behind"
    place.mkdir()
    (place / "sitecustomize.py").write_text("import time\n_now = time.time\ntime.time = lambda: _now() - 600\n")
    behind = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
    rig.hpcrl("submit", plan, PYTHONPATH=behind)
    rig.honest(plan)
    rig.hpcrl("submit", plan)
    rig.hpcrl("submit", plan, PYTHONPATH=behind)
    states = set(rig.states(plan).values())
    if not states <= {"PENDING", "RUNNING", "COMPLETED", "COMPLETING"}:
        rig.count.wrong += 1
        rig.note(f"an old attempt is told: {states}")
    rig.wait(plan)
    # A cell that ran when all was cancelled has begun two attempts, by the user's will. It may have been cancelled
    # before its command began.
    begun = {path.name.partition(".")[0] for path in (plan / "attempts").glob("*.2-0")}
    ran = {cell: count - (cell in begun and count > 1) for cell, count in rig.ran(plan).items()}
    (plan.parent / "ran").write_text("\n".join(cell for cell, count in ran.items() for _ in range(count)))
    rig.finish(plan)


@scenario
def the_same_script_is_submitted_again_with_its_token(rig: Rig) -> None:
    plan = rig.plan(seconds=1)
    rig.hpcrl("submit", plan)
    (token,) = [path.name for path in (plan / "submissions").iterdir()]
    (script,) = (plan / "scripts").glob("faults-numpy*")
    words = ["sbatch", f"--chdir={plan}", f"--array=0-{rig.cells - 1}", str(script), token, str(rig.environments)]
    environment = rig.variables()
    subprocess.run(words, env=environment, cwd=plan, check=True, capture_output=True)
    rig.finish(plan)
    rig.until_queue_is_empty()
    rig.judge(plan, {})


@scenario
def logs_are_removed_before_the_start(rig: Rig) -> None:
    plan = rig.plan(**HELD)
    rig.virtual.command("scontrol", "update", "PartitionName=htc", "State=DOWN")
    rig.hpcrl("submit", plan)
    shutil.rmtree(plan / "logs")
    rig.virtual.command("scontrol", "update", "PartitionName=htc", "State=UP")
    rig.wait(plan)
    told = rig.hpcrl("status", plan)
    if "was logs/ or the plan removed?" not in told.err and set(rig.states(plan).values()) != {"COMPLETED"}:
        rig.count.wrong += 1
        rig.note(f"the cause is not told: {told.err}")
    rig.finish(plan)


@scenario
def a_node_s_daemon_is_killed_and_comes_back(rig: Rig) -> None:
    plan = rig.plan(seconds=2)
    rig.hpcrl("submit", plan)
    pause(2)
    rig.virtual.kill_node("standard-1")
    pause(2)
    rig.virtual.start_node("standard-1")
    rig.wait(plan)
    rig.finish(plan)


@scenario
def squeue_and_sacct_answer_with_nothing(rig: Rig) -> None:
    plan = rig.plan(seconds=5, **HELD)
    rig.hpcrl("submit", plan)
    _until_one_runs(rig, plan)
    (made,) = (plan / "submissions").iterdir()
    os.utime(made, (time.time() - 300, time.time() - 300))  # the minute before LOST is over
    rig.faults.set("squeue", "reply", "")
    rig.faults.set("sacct", "reply", "")
    begun, states = rig.ran(plan), rig.states(plan)
    if "LOST" in {states.get(cell) for cell in begun} and not list(plan.glob("attempts/*.completed")):
        rig.count.wrong += 1
        rig.note("a cell that runs is told LOST")
    rig.hpcrl("submit", plan)
    rig.finish(plan)


@scenario
def cancel_while_slurm_cannot_be_asked(rig: Rig) -> None:
    plan = rig.plan(seconds=30, **HELD)
    rig.hpcrl("submit", plan)
    _until_one_runs(rig, plan)
    rig.faults.set("squeue", "fail", "slurm_load_jobs error: Unable to contact slurm controller")
    rig.faults.set("sacct", "fail", "sacct: error: slurm_persist_conn_open: failed")
    done = rig.hpcrl("cancel", plan)
    if done.code != 1 or "nothing was cancelled" not in done.err:
        rig.count.wrong += 1
        rig.note(f"cancel: exit code {done.code}: {done.out} {done.err}")
    rig.faults.clear()
    rig.hpcrl("cancel", plan)
    rig.wait(plan)
    rig.judge(plan, dict.fromkeys(rig.ids(plan), "CANCELLED"))


def _until_one_runs(rig: Rig, plan: Path) -> None:
    deadline = time.monotonic() + 60
    while not rig.ran(plan) and time.monotonic() < deadline:
        time.sleep(0.2)


def _must_refuse(rig: Rig, copy: Path) -> None:
    done = rig.hpcrl("submit", copy)
    if done.code == 0 or "--here" not in done.err:
        rig.count.wrong += 1
        rig.note(f"a copy was submitted without a word: {done.out} {done.err}")


def _until_lost_or_ended(rig: Rig, plan: Path) -> None:
    """Wait out the minute after which a job that Slurm does not know is LOST."""
    rig.wait(plan)


def run_scenario(rig: Rig, name: str) -> Count:
    """Try a fault once."""
    rig.faults.clear()
    rig.count = Count(trials=1)
    SCENARIOS[name](rig)
    rig.empty()
    return rig.count
