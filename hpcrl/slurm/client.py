"""sbatch, squeue, sacct, scontrol and scancel are called only here, through a runner that is passed in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from hpcrl.errors import HpcrlError
from hpcrl.slurm.printed import alike, cpu_seconds, indices_of

ASK_SECONDS = 30.0  # for squeue, sacct, scancel
SBATCH_SECONDS = 120.0
SAY_SECONDS = 10.0  # of silence before the user is told


@dataclass(frozen=True)
class Completed:
    """The result of a command: exit code, standard output and error."""

    code: int
    out: str
    err: str


Runner = Callable[[Sequence[str], Path | None, float], Completed]
Say = Callable[[str], None]


class NotInstalled(HpcrlError):
    """The command is not installed here."""


class NoAnswer(HpcrlError):
    """A command did not end in time; `words` is its output until then."""

    def __init__(self, message: str, words: str = "") -> None:
        super().__init__(message)
        self.words = words


class Refused(HpcrlError):
    """sbatch refused the job: nothing was submitted."""


class Unconfirmed(HpcrlError):
    """sbatch did not say whether it accepted the job: only Slurm's queue shows that."""


def run_command(arguments: Sequence[str], cwd: Path | None = None, timeout: float = ASK_SECONDS) -> Completed:
    """Run one command without a shell.

    Raises:
        NotInstalled: there is no such command.
        NoAnswer: it does not answer in time.
    """
    try:
        done = subprocess.run(
            list(arguments), cwd=cwd, timeout=timeout, capture_output=True, text=True, errors="replace", check=False
        )
    except FileNotFoundError:
        raise NotInstalled(
            f"{arguments[0]}: no such command: is Slurm installed here? (--executor local needs none)"
        ) from None
    except subprocess.TimeoutExpired as error:
        words = error.stderr.decode(errors="replace") if isinstance(error.stderr, bytes) else error.stderr or ""
        raise NoAnswer(f"{_program(arguments)}: gave no answer within {timeout:.0f} s", _one_line(words)) from None
    return Completed(done.returncode, done.stdout, done.stderr)


def _program(arguments: Sequence[str]) -> str:
    """Return the command itself, without env or timeout, which call it."""
    return next((word for word in arguments if word in _PROGRAMS), arguments[0])


class JobState(NamedTuple):
    """Slurm's answer about an array task, about several equal waiting tasks, or about a job."""

    job_id: str
    state: str
    exit_code: str | None = None
    elapsed: float | None = None
    reason: str | None = None
    nodes: str | None = None


# By array index; a job that is not an array has index 0.
Tasks = dict[int, JobState]
# The name of a job, some of its array indices, and the state that they share.
_Alike = tuple[str, Sequence[int], JobState]


@dataclass(frozen=True)
class View:
    """The answers of squeue and sacct about some jobs, asked for by name.

    Args:
        jobs: name -> job id -> the states of its tasks. One name may have several ids.
        queue, accounting: why one of them did not answer; None if it did.
        unaccounted: whether the site has no accounting at all.
    """

    jobs: dict[str, dict[str, Tasks]] = field(default_factory=dict)
    queue: str | None = None
    accounting: str | None = None
    unaccounted: bool = False

    def __or__(self, other: View) -> View:
        return View(
            self.jobs | other.jobs,
            self.queue or other.queue,
            self.accounting or other.accounting,
            self.unaccounted or other.unaccounted,
        )

    @property
    def unanswered(self) -> bool:
        """Tell whether what is not in `jobs` may exist all the same."""
        return bool(self.queue or (self.accounting and not self.unaccounted))

    def notes(self) -> list[str]:
        """Return one line for each of the two that did not answer."""
        return [text for text in (self.queue, self.accounting) if text]


@dataclass(frozen=True)
class Usage:
    """Slurm's accounting of one array task: CPU seconds, maximum memory of one of its tasks (bytes), energy (J), nodes."""

    cpu_seconds: float | None = None
    memory_peak: float | None = None
    energy: float | None = None
    nodes: str | None = None


@dataclass(frozen=True)
class OtherJob:
    """A job of this user, found by its name: the directory of its submission, and whether it still waits or runs."""

    job_id: str
    name: str
    directory: str
    live: bool


_PARSABLE = re.compile(r"(\d+)(?:;[\w.-]+)?$")
# sbatch's messages for a job that it never sent or that the controller refused. After any other message the job may exist.
_REFUSALS = re.compile(
    r"invalid|unrecognized|unknown option|not available|not permitted|denied|violates|exceed|unable to open|no such file|"
    r"pathname of a file|must be|required|missing|not allowed|expired|bad constraints|too many|"
    r"can ?not|not support|disabled|no partition specified|more processors|job size|burst buffer",
    re.IGNORECASE,
)
_IN_DOUBT = re.compile(
    r"timed? ?out|contact|zero bytes|connection|communication|temporarily|unexpected message|try again|socket|"
    r"transmission|not responding|protocol|authentication|munge",
    re.IGNORECASE,
)
RUNNING = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "SUSPENDED", "STOPPED"})
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_LIVE = RUNNING | WAITING
_PROGRAMS = frozenset({"sbatch", "squeue", "sacct", "scancel", "scontrol"})
_NAMES = 60_000  # characters of --name= in one call: one argument holds 131,071


class Slurm:
    """The scheduler's commands."""

    def __init__(self, runner: Runner = run_command) -> None:
        self._run = runner

    def _checked(self, *arguments: str, cwd: Path | None = None) -> str:
        done = self._run(arguments, cwd, ASK_SECONDS)
        if done.code != 0:
            raise HpcrlError(f"{arguments[0]} failed: {_words(done)}")
        return done.out

    def sbatch(
        self, script: Path, options: Sequence[str], arguments: Sequence[str], cwd: Path, say: Say = lambda text: None
    ) -> str:
        """Submit a script and return the job id.

        `timeout` bounds sbatch even if this process is killed, so that no request is sent long afterwards.

        Raises:
            Refused: sbatch says that it refused the job.
            Unconfirmed: sbatch said something else, or nothing.
            NotInstalled: there is no sbatch.
        """
        inherited = [word for name in os.environ if name.startswith("SBATCH_") for word in ("-u", name)]
        bound = ["timeout", "--kill-after=5", f"{SBATCH_SECONDS:.0f}"] if shutil.which("timeout") else []
        words = ["env", *inherited, *bound, "sbatch", "--parsable", *options, str(script), *arguments]
        with spoken(
            say, f"sbatch has not answered for {SAY_SECONDS:.0f} s: the queue may be full or the controller busy"
        ):
            try:
                done = self._run(words, cwd, SBATCH_SECONDS + 10)
            except NoAnswer as error:
                raise Unconfirmed(f"{error}{f' ({error.words})' if error.words else ''}") from None
        if done.code == 124 and bound:
            raise Unconfirmed(f"sbatch: gave no answer within {SBATCH_SECONDS:.0f} s ({_words(done)})")
        if done.code == 127 and "no such file" in done.err.lower():
            raise NotInstalled("sbatch: no such command: is Slurm installed here? (--executor local needs none)")
        if done.code != 0:
            message = _words(done).replace("sbatch: error: ", "")
            refused = _REFUSALS.search(message) and not _IN_DOUBT.search(message)
            raise (Refused if refused else Unconfirmed)(message)
        lines = done.out.split()
        if not lines or not (match := _PARSABLE.match(lines[-1])):
            raise Unconfirmed(f"sbatch printed no job id: {_words(done)}")
        return match[1]

    def test_only(self, script: Path, cwd: Path) -> str | None:
        """Ask the scheduler whether it would accept a script; return its objection, or None. Nothing is submitted."""
        done = self._run(["sbatch", "--test-only", str(script)], cwd, SBATCH_SECONDS)
        return None if done.code == 0 else " ".join(done.err.replace("sbatch: error:", "").split())

    def look(self, names: Sequence[str], since: float, over: Sequence[str] = ()) -> View:
        """Ask squeue and sacct, side by side, for jobs by their names.

        Names count, never ids: Slurm uses an id again when it has lost a job.

        Args:
            since: Unix time before which none of them was submitted.
            over: further names, of jobs that should have ended: only squeue is asked for them.
        """
        if not names:
            queued, _ = self._queue(over) if over else ((), None)
            jobs: dict[str, dict[str, Tasks]] = {}
            for name, indices, task in queued:
                jobs.setdefault(name, {}).setdefault(task.job_id, {}).update(dict.fromkeys(indices, task))
            return View(jobs)
        with ThreadPoolExecutor(2) as pool:
            queue = pool.submit(self._queue, [*names, *over])
            accounting = pool.submit(self._accounting, names, since)
            queued, queue_problem = queue.result()
            accounted, accounting_problem, unaccounted = accounting.result()
        jobs = {}
        for name, indices, task in accounted:
            # Slurm has lost a task that is live in accounting but not in the queue.
            if task.state not in _LIVE or queue_problem:
                tasks = jobs.setdefault(name, {}).setdefault(task.job_id, {})
                tasks |= dict.fromkeys(indices, task)
        for name, indices, task in queued:
            tasks = jobs.setdefault(name, {}).setdefault(task.job_id, {})
            if task.state in _LIVE:
                tasks |= dict.fromkeys(indices, task)
            else:
                tasks |= {index: task for index in indices if index not in tasks}
        return View(jobs, queue_problem, accounting_problem, unaccounted)

    def _queue(self, names: Sequence[str]) -> tuple[list[_Alike], str | None]:
        groups: list[_Alike] = []
        for some in _portions(names):
            # 0: complete lists of array indices; otherwise squeue cuts them at 64 characters.
            words = ["env", "SLURM_BITSTR_LEN=0", "squeue", "-h", "-t", "all", "-o", "%i|%T|%r|%N|%j", f"--name={some}"]
            out, problem = self._asked("squeue", words)
            if problem:
                return [], problem
            for (job_id, rest), indices in alike(out).items():
                state, reason, nodes, name = [*rest.split("|", 3), "", "", ""][:4]
                groups.append((name, indices, JobState(job_id, state, reason=reason, nodes=nodes or None)))
        return groups, None

    def look_by_id(self, ids: Mapping[str, Sequence[str]], since: float) -> View:
        """Ask sacct for jobs by the ids that they were given.

        Asked by name it leaves out jobs that ended before they could begin, such as those cancelled while they waited for another.

        Args:
            ids: name -> ids. An id counts only with its name, because Slurm uses it again when it has lost a job.
            since: Unix time before which none of them was submitted.
        """
        every = [job_id for some in ids.values() for job_id in some]
        groups, problem, unaccounted = self._accounting(every, since, "--jobs")
        jobs: dict[str, dict[str, Tasks]] = {}
        for name, indices, task in groups:
            if task.job_id in ids.get(name, ()) and task.state not in _LIVE:
                jobs.setdefault(name, {}).setdefault(task.job_id, {}).update(dict.fromkeys(indices, task))
        return View(jobs, None, problem, unaccounted)

    def _accounting(
        self, wanted: Sequence[str], since: float, option: str = "--name"
    ) -> tuple[list[_Alike], str | None, bool]:
        groups: list[_Alike] = []
        days = max(0, int((time.time() - since) / 86_400)) + 2
        for some in _portions(wanted):
            out, problem = self._asked(
                "sacct",
                [
                    "env", "SLURM_BITSTR_LEN=0", "sacct", "-X", "-n", "-P", "-a", "-o",
                    "JobID,State,ExitCode,ElapsedRaw,Partition,NodeList,JobName", f"-Snow-{days}days", f"{option}={some}",
                ],
            )  # fmt: skip
            if problem:
                return [], problem, "no such command" in problem or "accounting_storage/none" in problem
            for (job_id, rest), indices in alike(out).items():
                fields = rest.split("|", 5)
                if len(fields) < 6 or not fields[3]:
                    continue  # accounting does not have the whole job yet
                state, exit_code, seconds, _, nodes, name = fields
                elapsed = float(seconds) if seconds.isdigit() else None
                state = (state.split() or ["UNKNOWN"])[0]
                groups.append((name, indices, JobState(job_id, state, exit_code, elapsed, None, nodes)))
        return groups, None, False

    def _asked(self, program: str, words: Sequence[str]) -> tuple[str, str | None]:
        """Return a command's output, or why there is none."""
        try:
            done = self._run(words, None, ASK_SECONDS)
        except NoAnswer as error:
            return (
                "",
                f"{program}: gave no answer within {ASK_SECONDS:.0f} s{f': {error.words}' if error.words else ''}",
            )
        except NotInstalled:
            return "", f"{program}: no such command here"
        if done.code == 127:
            return "", f"{program}: no such command here"
        if done.code != 0 or "slurm_persist_conn_open" in done.err:
            return "", f"{program} could not be asked: {_words(done).replace(f'{program}: error: ', '')}"
        return done.out, None

    def own_jobs(self, prefix: str, days: int = 30) -> tuple[list[OtherJob], list[str]]:
        """Return this user's jobs, queued or accounted, whose token has this prefix, and the commands that did not answer."""
        jobs: dict[str, OtherJob] = {}
        out, queue = self._asked("squeue", ["squeue", "-h", "--me", "-t", "all", "-o", "%A|%F|%T|%Z|%j"])
        rows = [(line.split("|", 4), True) for line in out.splitlines()]
        out, accounting = self._asked(
            "sacct", ["sacct", "-X", "-n", "-P", "-o", "JobIDRaw,JobID,State,WorkDir,JobName", f"-Snow-{days}days"]
        )
        rows += [(line.split("|", 4), False) for line in out.splitlines()]
        for fields, queued in rows:
            if len(fields) == 5 and f".{prefix}" in fields[4]:
                job_id = fields[1].partition("_")[0]
                live = queued and fields[2] in _LIVE
                before = jobs.get(job_id)
                jobs[job_id] = OtherJob(job_id, fields[4], fields[3], live or bool(before and before.live))
        return list(jobs.values()), [text for text in (queue, accounting) if text]

    def queued_tasks(self, qos: str | None) -> int | None:
        """Count this user's array tasks that wait or run, in one QOS or in all; None if squeue does not answer."""
        out, problem = self._asked(
            "squeue",
            ["env", "SLURM_BITSTR_LEN=0", "squeue", "-h", "--me", "-o", "%i", *([f"--qos={qos}"] if qos else [])],
        )
        return None if problem else sum(len(indices_of(line)[1]) for line in out.splitlines())

    def usage(self, job_ids: Sequence[str]) -> dict[str, Usage]:
        """Return the accounting of each array task of some jobs, as far as Slurm has it, in one call."""
        if not job_ids:
            return {}
        wanted = ",".join(dict.fromkeys(job_ids))
        fields = "JobID,Partition,TotalCPU,MaxRSS,ConsumedEnergyRaw,NodeList"
        out, _ = self._asked("sacct", ["sacct", "-n", "-P", "--noconvert", "-o", fields, "-j", wanted])
        usages: dict[str, Usage] = {}
        for line in out.splitlines():
            job, partition, cpu, memory, energy, nodes = (line.split("|") + [""] * 6)[:6]
            key, _, step = job.partition(".")
            if not step and partition:  # the job itself; without a partition accounting does not have the whole job yet
                usages[key] = Usage(cpu_seconds(cpu), None, float(energy) if energy.isdigit() else None, nodes or None)
            elif step and key in usages and memory:
                peak = max(usages[key].memory_peak or 0.0, float(memory.rstrip("K")) * (1024 if "K" in memory else 1))
                usages[key] = replace(usages[key], memory_peak=peak)
        return usages

    def out_of_memory(self, job_ids: Sequence[str]) -> set[str]:
        """Return the array tasks (``JOBID_INDEX``) with a step that Slurm ended because it exceeded its memory.

        The task itself may be FAILED: only its step says why.
        """
        tasks = set()
        for some in _portions(job_ids):
            out, _ = self._asked("sacct", ["sacct", "-n", "-P", "-o", "JobID,State", "-j", some])
            for line in out.splitlines():
                key, _, state = line.partition("|")
                if state.startswith("OUT_OF_MEMORY"):
                    tasks.add(key.partition(".")[0])
        return tasks

    def cancel(self, keys: Sequence[str]) -> None:
        """Cancel jobs (``JOBID``) or array tasks (``JOBID_INDEX``). It is not an error if one has ended meanwhile.

        Raises:
            HpcrlError: Slurm does not answer, or a key is not valid.
        """
        for key in keys:
            if not re.fullmatch(r"\d+(_\d+)?", key):
                raise HpcrlError(f"{key!r} is not the id of a Slurm job: was the ledger edited?")
        for first in range(0, len(keys), 1000):
            self._checked("scancel", *keys[first : first + 1000])

    def host_names(self, nodes: str) -> list[str]:
        """Expand a node list such as ``c[001-003]``."""
        return self._checked("scontrol", "show", "hostnames", nodes).split()

    def release(self, keys: Sequence[str]) -> None:
        """Release jobs that Slurm holds."""
        for key in keys:
            self._checked("scontrol", "release", key)

    def requeue(self, key: str) -> None:
        self._checked("scontrol", "requeue", key)


@contextmanager
def spoken(say: Say, text: str, seconds: float = SAY_SECONDS) -> Iterator[None]:
    """Print a line if the work in this context takes long."""
    timer = threading.Timer(seconds, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _words(done: Completed) -> str:
    return _one_line(done.err or done.out) or f"exit code {done.code}"


def _portions(names: Iterable[str]) -> Iterator[str]:
    """Join names by commas, as many at a time as one argument can hold."""
    some: list[str] = []
    length = 0
    for name in dict.fromkeys(names):
        if some and length + len(name) > _NAMES:
            yield ",".join(some)
            some, length = [], 0
        some.append(name)
        length += len(name) + 1
    if some:
        yield ",".join(some)


def array_key(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the key of the job in which this process runs; None outside of Slurm."""
    if "SLURM_ARRAY_JOB_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment.get("SLURM_JOB_ID")


def tasks_per_node(text: str) -> list[int]:
    """Read Slurm's ``2(x3),1``: three nodes of two tasks, one of one."""
    counts = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts
