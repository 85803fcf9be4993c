"""What goes out, in how many calls and asking for what, on a Slurm that says what the test wants."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.attempts import Start, end_attempt, take_attempt
from hpcrl.formats.ledger import FILE, Ledger
from hpcrl.formats.plan import MANIFEST
from hpcrl.formats.submission import read_entry
from hpcrl.slurm.client import Completed, Slurm
from hpcrl.submit.selection import Budget, Choice
from hpcrl.submit.submission import Submitted, submit
from tests.builders import cells_of, command_study, planned

NONE, ALL = Budget(), Choice()


class FakeSlurm:
    """Takes every job, and says of them what it was told to."""

    def __init__(self) -> None:
        self.submitted: list[list[str]] = []
        self.states: dict[str, str] = {}  # JOBID_INDEX -> squeue's or sacct's state
        self.refuse: str | None = None
        self.deaf = False
        self.names: dict[str, str] = {}
        self.others = 0
        self.cancelled: list[str] = []

    def __call__(self, arguments: Sequence[str], cwd: Path | None, timeout: float) -> Completed:
        program = next(word for word in arguments if word in ("sbatch", "squeue", "sacct", "scancel"))
        return getattr(self, program)(list(arguments))  # type: ignore[no-any-return]

    def sbatch(self, words: list[str]) -> Completed:
        if self.refuse:
            return Completed(1, "", f"sbatch: error: Batch job submission failed: {self.refuse}")
        job = str(100 + len(self.submitted))
        self.submitted.append(words)
        if not self.deaf:
            self.names[job] = self._option(words, "job-name")
            first, _, last = self._option(words, "array", "0").partition("%")[0].partition("-")
            for index in range(int(first), int(last or first) + 1):
                self.states[f"{job}_{index}"] = "PENDING"
        return (
            Completed(0, f"{job}\n", "")
            if not self.deaf
            else Completed(1, "", "Socket timed out on send/recv operation")
        )

    @staticmethod
    def _option(words: Sequence[str], name: str, default: str = "") -> str:
        return next((word.partition("=")[2] for word in words if word.startswith(f"--{name}=")), default)

    def option(self, number: int, name: str) -> str:
        return self._option(self.submitted[number], name)

    def squeue(self, words: list[str]) -> Completed:
        if "--me" in words:
            live = [key for key, state in self.states.items() if state in ("PENDING", "RUNNING")]
            return Completed(0, "\n".join([*live, *["9"] * self.others]), "")
        lines = [
            f"{key}|{state}|None||{self.names[key.partition('_')[0]]}"
            for key, state in self.states.items()
            if state in ("PENDING", "RUNNING")
        ]
        return Completed(0, "\n".join(lines), "")

    def sacct(self, words: list[str]) -> Completed:
        lines = [
            f"{key}|{state}|1:0|9|htc|c{key.partition('_')[2]}|{self.names[key.partition('_')[0]]}"
            for key, state in self.states.items()
            if state not in ("PENDING", "RUNNING")
        ]
        return Completed(0, "\n".join(lines), "")

    def scancel(self, words: list[str]) -> Completed:
        self.cancelled += words[1:]
        return Completed(0, "", "")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSlurm:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/srun").write_text("#!/bin/sh\n")  # submitit wants to find one
    (tmp_path / "bin/srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setattr("hpcrl.schedulers.slurm.asking._POLL_SECONDS", 0.01)
    monkeypatch.setattr("hpcrl.schedulers.slurm.asking.SETTLE_SECONDS", 0.05)
    return FakeSlurm()


def study(**changes: Any) -> dict[str, Any]:
    return command_study(["true"], **changes)


def sent(plan: Path, fake: FakeSlurm, choice: Choice = ALL, budget: Budget = NONE, **more: Any) -> Submitted:
    return submit(plan, "slurm", Slurm(fake), budget, lambda *progress: None, choice, **more)


def settle_all(plan: Path, fake: FakeSlurm, ends: dict[int, str], job: str | None = None) -> None:
    """Let every array task of a job begin and end: completed, but for some."""
    cells = [cell["id"] for cell in cells_of(plan)]
    job = job or str(99 + len(fake.submitted))
    token = fake.names[job].rpartition(".")[2]
    for key in [key for key in fake.states if key.startswith(f"{job}_")]:
        entry = read_entry(plan, token, int(key.partition("_")[2]))
        assert entry is not None
        task, attempt = entry
        start = Start(cells[task], str(attempt), 0, key, key)
        take_attempt(plan, start, {"token": token})
        fake.states[key] = ends.get(task, "COMPLETED")
        if task not in ends:
            end_attempt(plan, start, "completed")


def test_twice_submits_nothing_twice(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=4), "sol")
    assert sent(plan, fake).tasks == 4
    done = sent(plan, fake)
    assert (done.tasks, done.already, len(fake.submitted)) == (0, 4, 1)
    (words,) = fake.submitted
    token = fake.option(0, "comment")
    assert fake.option(0, "job-name") == f"mine-numpy-cpu-1.{token}"
    assert fake.option(0, "array") == "0-3"
    assert words[-1] == token
    assert "--parsable" in words
    assert (plan / "submissions" / token).is_file()


def test_scattered_failures_go_out_as_one_compact_array(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=400), "sol")
    sent(plan, fake)
    settle_all(plan, fake, {task: "FAILED" for task in range(0, 400, 2)})
    done = sent(plan, fake)
    assert (done.tasks, done.already, len(fake.submitted)) == (200, 200, 2)
    assert fake.option(1, "array") == "0-199"
    token = fake.option(1, "comment")
    assert [read_entry(plan, token, index) for index in (0, 1, 199)] == [(0, 2), (2, 2), (398, 2)]


def test_an_attempt_that_never_began_keeps_its_number(tmp_path: Path, fake: FakeSlurm) -> None:
    """A job that Slurm lost and finds again then cannot run beside the one in its place."""
    plan = planned(tmp_path / "p", study(seeds=2), "sol")
    sent(plan, fake)
    fake.states = {"100_0": "FAILED", "100_1": "FAILED"}
    take_attempt(plan, Start(cells_of(plan)[0]["id"], "1", 0, "100_0", "m"), {})
    sent(plan, fake)
    token = fake.option(1, "comment")
    assert [read_entry(plan, token, index) for index in (0, 1)] == [(0, 2), (1, 1)]


def test_chosen_failed_and_again(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=4), "sol")
    cells = [cell["id"] for cell in cells_of(plan)]
    assert sent(plan, fake, Choice(failed=True)).tasks == 0
    assert sent(plan, fake, Choice(cells=(cells[2][:8],))).tasks == 1
    settle_all(plan, fake, {2: "FAILED"})
    assert sent(plan, fake, Choice(failed=True)).tasks == 1
    assert sent(plan, fake).tasks == 3
    settle_all(plan, fake, {}, "101")
    settle_all(plan, fake, {}, "102")
    assert sent(plan, fake).tasks == 0
    assert sent(plan, fake, Choice(again=True)).tasks == 4
    with pytest.raises(UsageError, match="no cell of"):
        sent(plan, fake, Choice(cells=("zzz",)))


def test_retry_by_cause_grows_what_was_short_within_the_limits(tmp_path: Path, fake: FakeSlurm) -> None:
    retry = {
        "timeout": {"time": "x2", "at_most": 2},
        "oom": {"memory": "x1.5", "at_most": 1},
        "node_fail": {"exclude_node": True},
    }
    resources = {"memory": "1G", "time": "3-00:00:00"}
    plan = planned(tmp_path / "p", study(seeds=5, retry=retry, resources=resources), "sol")
    sent(plan, fake)
    settle_all(plan, fake, {0: "TIMEOUT", 1: "OUT_OF_MEMORY", 2: "NODE_FAIL", 3: "FAILED"})
    done = sent(plan, fake, Choice(retry=True))
    assert done.tasks == 3
    assert [reason for reason in done.left] == ["failed: the study's `retry` does not retry such cells"]
    options = {
        fake.option(number, "time") or fake.option(number, "mem") or fake.option(number, "exclude")
        for number in (1, 2, 3)
    }
    assert options == {"8640", "1536M", "c2"}
    # Again: the partition stops at seven days; memory was tried once more already.
    for job in ("101", "102", "103"):
        settle_all(plan, fake, {0: "TIMEOUT", 1: "OUT_OF_MEMORY"}, job)
    assert sent(plan, fake, Choice(retry=True)).tasks == 1
    assert fake.option(4, "time") == "10080"
    settle_all(plan, fake, {0: "TIMEOUT"}, "104")
    done = sent(plan, fake, Choice(retry=True))
    assert done.tasks == 0
    assert "timeout: all 2 retries of the study are used up" in done.left
    causes = [each.cause for each in Ledger(plan).submissions()]
    assert sorted(causes) == ["first", "node_fail", "oom", "timeout", "timeout"]


def test_a_retried_trial_takes_the_runs_that_waited_for_it_along(tmp_path: Path, fake: FakeSlurm) -> None:
    """The best of a search cannot run before all trials have ended: it failed for want of them, not by a fault of its own."""
    search = {"trials": 2, "space": {"rate": [0.1, 0.2]}, "seed": 9}
    given = command_study(["train", "{rate}"], axes={}, seeds=[1, 2], search=search, retry={"timeout": {"time": "x2"}})
    plan = planned(tmp_path / "p", given, "sol")
    sent(plan, fake)
    settle_all(plan, fake, {1: "TIMEOUT"}, "100")
    fake.states |= {"101_0": "FAILED", "101_1": "FAILED"}
    done = sent(plan, fake, Choice(retry=True))
    assert (done.tasks, list(done.left)) == (3, [])
    waits = fake.option(3, "dependency")
    assert waits is not None and waits.startswith("afterany:102")


def test_without_a_rule_lost_cells_go_out_and_faulty_ones_do_not(
    tmp_path: Path, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcrl.schedulers.evidence.LOST_SECONDS", 0.0)
    plan = planned(tmp_path / "p", study(seeds=2), "sol")
    sent(plan, fake)
    fake.states = {"100_0": "FAILED"}
    take_attempt(plan, Start(cells_of(plan)[1]["id"], "1", 0, "100_1", "m"), {})
    done = sent(plan, fake, Choice(retry=True))
    assert done.tasks == 1


def test_a_refusal_is_said_in_sbatch_s_words_and_nothing_is_in_doubt(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(), "sol")
    fake.refuse = "Invalid qos specification"
    with pytest.raises(HpcrlError, match=r"sbatch refused it: .*Invalid qos specification"):
        sent(plan, fake)
    fake.refuse = None
    assert sent(plan, fake).tasks == 1


def test_a_timeout_that_was_heard_is_found_by_name(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=2), "sol")
    sbatch = fake.sbatch
    fake.sbatch = lambda words: Completed(1, "", f"Socket timed out{sbatch(words).out and ''}")  # type: ignore[method-assign]
    done = sent(plan, fake)
    assert (done.tasks, done.jobs) == (2, [("mine-numpy-cpu-1", "100")])
    assert len(fake.submitted) == 1


def test_one_that_was_not_heard_goes_out_again_and_then_is_left_to_the_user(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(), "sol")
    fake.deaf = True
    said: list[str] = []
    with pytest.raises(HpcrlError, match="nothing is lost or doubled; run `hpcrl submit` again"):
        sent(plan, fake, say=said.append)
    assert len(fake.submitted) == 3
    assert [each.state for each in Ledger(plan).submissions()] == ["gone"] * 3
    assert len({read_entry(plan, each.token, 0) for each in Ledger(plan).submissions()}) == 1  # one attempt, one fence
    fake.deaf = False
    assert sent(plan, fake).tasks == 1


def limited(plan: Path, **limits: Any) -> Path:
    manifest = json.loads((plan / MANIFEST).read_text())
    manifest["limits"] = {"submitted": None, "queued": {}} | limits
    (plan / MANIFEST).write_text(json.dumps(manifest))
    return plan


def test_what_the_queue_has_no_room_for_follows_in_parts(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = limited(planned(tmp_path / "p", study(seeds=20), "sol"), queued={"public": 8})
    done = sent(plan, fake)
    assert (done.tasks, done.waiting) == (7, 13)
    assert [fake.option(number, "array") for number in (0, 1)] == ["0-6", ""]
    assert fake.option(1, "dependency") == "afterany:100"
    assert re.search(r"-feed\.hpcrl-", fake.option(1, "job-name"))
    total = done.tasks
    for _ in range(5):
        settle_all(plan, fake, {}, next(job for job in reversed(fake.names) if "-feed." not in fake.names[job]))
        fake.states = {
            key: "COMPLETED" if "-feed." in fake.names[key.partition("_")[0]] else state
            for key, state in fake.states.items()
        }
        total += sent(plan, fake, Choice(fed=True)).tasks
    assert total == 20
    assert max(len([key for key in fake.states if key.startswith(job)]) for job in fake.names) <= 7


def test_other_jobs_of_the_user_take_room_too(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = limited(planned(tmp_path / "p", study(seeds=20), "sol"), submitted=10)
    fake.others = 4
    assert sent(plan, fake).tasks == 5


def test_a_feeder_does_not_try_failed_cells_again(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=3), "sol")
    sent(plan, fake, Choice(cells=(cells_of(plan)[0]["id"],)))
    settle_all(plan, fake, {0: "FAILED"})
    done = sent(plan, fake, Choice(fed=True))
    assert (done.tasks, done.left) == (2, {"failed: `hpcrl submit` submits it again": 1})


def test_a_ledger_lost_with_all_that_was_written_down(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=3), "sol")
    sent(plan, fake)
    (plan / FILE).unlink()
    said: list[str] = []
    assert sent(plan, fake, say=said.append).tasks == 0
    assert any("was lost; rebuilt from 1 submission and" in text for text in said)
    assert Ledger(plan).submissions()[0].job_ids == ("100",)


def test_later_stages_wait_for_the_new_cells_too(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=3, chain="staged"), "sol")
    cells = [cell["id"] for cell in cells_of(plan)]
    sent(plan, fake, Choice(cells=(cells[0],)))
    before = dict(fake.names)
    sent(plan, fake)
    collects = [job for job, name in fake.names.items() if "-collect." in name]
    assert len(collects) == 2
    assert f"{collects[0]}" in fake.cancelled
    arrays = [job for job, name in fake.names.items() if "-numpy-" in name]
    number = list(fake.names).index(collects[1])
    assert {f"afterany:{job}" for job in arrays} == set(fake.option(number, "dependency").split(","))
    assert len(fake.names) > len(before)


def test_another_user_s_waiting_stage_stays_and_one_more_follows(
    tmp_path: Path, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm would not let this user cancel it, and nothing else would be submitted."""
    plan = planned(tmp_path / "p", study(chain="staged", seeds=2), "sol")
    first = cells_of(plan)[0]["id"]
    with monkeypatch.context() as another:
        another.setattr("hpcrl.submit.submission._user", lambda: "another")
        sent(plan, fake, Choice(cells=(first,)))
    said: list[str] = []
    submit(plan, "slurm", Slurm(fake), NONE, lambda *progress: None, ALL, say=said.append)
    assert fake.cancelled == []
    collects = [job for job, name in fake.names.items() if "collect" in name]
    assert len(collects) == 2
    assert any("of another is not changed; another job follows the new cells" in text for text in said)


def test_a_script_that_is_gone_is_told_before_anything_is_sent(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(), "sol")
    for script in (plan / "scripts").iterdir():
        script.unlink()
    with pytest.raises(HpcrlError, match="is missing: run `hpcrl plan` into this directory"):
        sent(plan, fake)
    assert fake.submitted == []
    assert not (plan / FILE).exists()


def test_failed_leaves_out_what_was_cancelled(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(), "sol")
    sent(plan, fake)
    fake.states = dict.fromkeys(fake.states, "CANCELLED")
    done = sent(plan, fake, Choice(failed=True))
    assert done.tasks == 0
    assert "cancelled: `--failed` leaves out cancelled cells" in str(done)


def test_what_was_cancelled_and_has_not_ended_is_told(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=3), "sol")
    sent(plan, fake)
    token = fake.names["100"].rpartition(".")[2]
    ledger = Ledger(plan)
    ledger.cancel(token, [0, 2])
    ledger.close()
    said: list[str] = []
    assert sent(plan, fake, say=said.append).already == 3
    assert [text for text in said if "cancelled, but not ended yet: 2 cells; run `hpcrl submit` again" in text]
    fake.states |= {"100_0": "CANCELLED", "100_2": "CANCELLED"}
    said.clear()
    assert sent(plan, fake, say=said.append).tasks == 2
    assert not [text for text in said if "not ended yet" in text]


def test_scripts_carry_what_submission_knew(tmp_path: Path, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", "somewhere/else")
    monkeypatch.setenv("HPCRL_SITE", "/it's/a site")
    monkeypatch.chdir(tmp_path)
    plan = planned(tmp_path / "p", study(), "sol")
    sent(plan, fake)
    assert fake.submitted[0][-1] == str(tmp_path / "somewhere/else")
    assert "export HPCRL_SITE='/it'\\''s/a site'" in (plan / "launchers" / str(os.getuid())).read_text()


def test_hours_have_two_digits(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=8), "sol")
    with pytest.raises(UsageError, match=r"up to 1\.33 core-hours, over the 0\.5 allowed"):
        sent(plan, fake, budget=Budget(core_hours=0.5))


def test_progress_counts_cells_here_and_on_slurm(
    tmp_path: Path, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcrl.schedulers.local.starting.start_queue", lambda *arguments, **named: None)
    told = []
    for executor in ("slurm", "local"):
        plan = planned(tmp_path / executor, study(seeds=3, chain="staged"), "sol")
        submit(plan, executor, Slurm(fake), NONE, lambda done, total, name: told.append((done, total)))
    assert told == [(3, 3), (3, 3)]


def test_the_throttle_holds_for_what_is_submitted_again(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=6, max_parallel=2), "sol")
    sent(plan, fake)
    settle_all(plan, fake, {1: "FAILED", 2: "FAILED", 4: "FAILED"})
    sent(plan, fake)
    settle_all(plan, fake, {1: "FAILED", 2: "FAILED"})
    sent(plan, fake)
    # Where no more are left than may run at once, nothing needs to be said.
    assert [fake.option(number, "array") for number in range(3)] == ["0-5%2", "0-2%2", "0-1"]


def test_stages_wait_for_what_they_need(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(seeds=2, chain="staged"), "sol")
    sent(plan, fake)
    told = {fake.names[str(100 + number)].split(".")[0]: words for number, words in enumerate(fake.submitted)}
    waits = {
        name.removeprefix("mine-"): (fake._option(words, "dependency"), "--kill-on-invalid-dep=yes" in words)
        for name, words in told.items()
    }
    assert waits == {
        "environments": ("", False),
        "numpy-cpu-1": ("afterok:100", True),
        "collect": ("afterany:101", True),
        "report": ("afterok:102", True),
    }


def test_in_a_sequential_chain_jobs_come_one_after_another(tmp_path: Path, fake: FakeSlurm) -> None:
    axes = {"cpus": [1, 2, 3]}
    one_by_one = ["", "afterany:100", "afterany:101"]
    for chain, waits in (("sequential", one_by_one), ("parallel", ["", "", ""])):
        fake.submitted.clear()
        sent(planned(tmp_path / chain, study(axes=axes, chain=chain), "sol"), fake)
        assert [fake.option(number, "dependency") for number in range(3)] == waits


def test_a_sequential_chain_may_have_stages_too(tmp_path: Path, fake: FakeSlurm) -> None:
    sent(planned(tmp_path / "p", study(axes={"cpus": [1, 2]}, chain="staged-sequential"), "sol"), fake)
    assert [fake.option(number, "dependency") for number in range(5)] == [
        "",
        "afterok:100",
        "afterok:100,afterany:101",
        "afterany:101,afterany:102",
        "afterok:103",
    ]


def test_a_retry_asks_for_the_memory_of_all_ranks_and_its_hours_count(tmp_path: Path, fake: FakeSlurm) -> None:
    retry = {"oom": {"memory": "x1.5"}, "timeout": {"time": "x2"}}
    resources = {"memory": "1G", "time": "01:00:00", "tasks": 2}
    plan = planned(tmp_path / "p", study(seeds=2, retry=retry, resources=resources), "sol")
    sent(plan, fake)
    settle_all(plan, fake, {0: "OUT_OF_MEMORY", 1: "TIMEOUT"})
    # Four core-hours so far; two more for the one, and twice as many for the other, which may take two hours.
    with pytest.raises(UsageError, match=r"asks for up to 10 core-hours \(4 of them for attempts so far\)"):
        sent(plan, fake, Choice(retry=True), Budget(core_hours=9))
    sent(plan, fake, Choice(retry=True), Budget(core_hours=10))
    assert {fake.option(1, "mem"), fake.option(2, "mem")} == {"3072M", ""}


def test_the_ledger_says_what_became_of_each_call(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", study(), "sol")
    fake.refuse = "Invalid qos specification"
    with pytest.raises(HpcrlError):
        sent(plan, fake)
    fake.refuse = None
    sent(plan, fake)
    ledger = Ledger(plan)
    assert [(each.state, tuple(each.job_ids)) for each in ledger.submissions()] == [
        ("refused", ()),
        ("submitted", ("100",)),
    ]
    ledger.close()
