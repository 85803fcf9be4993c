"""A submission: one sbatch call, or one hand-over to the local executor, and the file that grants its attempts.

``PLAN/submissions/<token>`` is written before sbatch is called: a line of JSON, then one line of 16 characters for
each cell (task of the plan's job, number of the attempt), so that one seek finds the cells of an array index. Array
index *i* runs the lines *i x cells_per_task* and following. With these files and Slurm's answers a lost ledger is
rebuilt.

The token is ``hpcrl-<plan>-<number>-<random>``. It is the end of the job's name, because every site keeps names in its accounting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcrl.catalogue.registry import Scheduler, schedulers
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.files import open_of_stranger, write_atomically
from hpcrl.formats.plan import LOGS, format_tasks, parse_tasks
from hpcrl.formats.shapes import shown

SUBMISSIONS = "submissions"
FORMAT = 1
ELSEWHERE = "elsewhere"  # state of submissions that this copy of a plan leaves to the original
_TOKEN = re.compile(r"hpcrl-[0-9a-f]{8}-\d+-[0-9a-f]{6}")
_LINE = 16
# The ledger adds these; they are not in the file.
_LATER = ("state", "job_ids", "message")


@dataclass(frozen=True)
class Submission:
    """Some tasks of one job of the plan, granted one attempt each.

    Args:
        executor: the name of its scheduler in the catalogue.
        granted: number of the attempt -> the tasks that get it, as Slurm writes ranges.
        time, memory: what each cell asks for where that differs from the plan (seconds; MiB for each rank).
        exclude: nodes that it must not run on.
        cause: why the attempts were granted: ``first``, ``again``, or how the ones before had ended.
        environments: keys of those that the stage `environments` builds; None: all of the plan, as older versions of hpcrl did, or another job.
        state: ``intent`` (sbatch has not answered), ``submitted``, ``refused``, ``gone`` (it never reached Slurm) or
            ``elsewhere`` (this plan is a copy, and the original continues with it).
        job_ids: under which ids Slurm has it; more than one where a client asked twice.
    """

    token: str
    number: int
    plan: str
    job: str
    executor: str
    granted: dict[int, str]
    array: bool = True
    cells_per_task: int = 1
    at: float = 0.0
    user: str = ""
    host: str = ""
    directory: str = ""
    time: int | None = None
    memory: int | None = None
    exclude: tuple[str, ...] = ()
    cause: str = "first"
    environments: tuple[str, ...] | None = None
    state: str = "intent"
    job_ids: tuple[str, ...] = field(default=())
    message: str | None = None

    @property
    def name(self) -> str:
        """The name of its Slurm job."""
        return f"{self.job}.{self.token}"

    @property
    def scheduler(self) -> Scheduler:
        return schedulers()[self.executor]

    def attempt(self, index: int, job_id: str | None = None) -> str:
        """Return the name that an attempt has in records and logs, without its restarts.

        Args:
            index: its place in the array.
            job_id: None: the first id under which the scheduler has the submission.
        """
        known_id = job_id or next(iter(self.job_ids), "?")
        return self.scheduler.attempt(self.token, known_id, index if self.array else None)

    def log(self, index: int, job_id: str | None = None) -> str:
        """Return the path of an attempt's log in the plan directory."""
        return f"{LOGS}/{self.job}-{self.attempt(index, job_id)}.out"

    @cached_property
    def entries(self) -> list[tuple[int, int]]:
        """(task, attempt) in the order of the tasks."""
        if len(self.granted) == 1:
            ((attempt, text),) = self.granted.items()
            return [(task, attempt) for task in parse_tasks(text)]
        return sorted((task, attempt) for attempt, text in self.granted.items() for task in parse_tasks(text))

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Give (index in the array, task, attempt) in the order of the tasks."""
        return ((place // self.cells_per_task, *entry) for place, entry in enumerate(self.entries))

    def entries_at(self, index: int) -> list[tuple[int, int]]:
        """Return (task, attempt) of the cells that one array task runs."""
        return self.entries[index * self.cells_per_task : (index + 1) * self.cells_per_task]

    @property
    def array_size(self) -> int:
        return -(-len(self.entries) // self.cells_per_task)

    def facts(self) -> str:
        """Return what the file's first line says."""
        kept = {name: value for name, value in asdict(self).items() if name not in _LATER}
        return json.dumps({"format": FORMAT, **kept}, sort_keys=True, ensure_ascii=False)


def grant(tasks: Iterable[tuple[int, int]]) -> dict[int, str]:
    """Group (task, attempt) by attempt, in Slurm's ranges."""
    by_attempt: dict[int, list[int]] = {}
    for task, attempt in tasks:
        by_attempt.setdefault(attempt, []).append(task)
    return {attempt: format_tasks(group) for attempt, group in sorted(by_attempt.items())}


def token_of(job_name: str) -> str | None:
    """Return the token at the end of a Slurm job's name, None where it is not one of ours."""
    last = job_name.rpartition(".")[2]
    return last if _TOKEN.fullmatch(last) else None


def plan_prefix(plan_id: str) -> str:
    """Return how the tokens of a plan begin."""
    return f"hpcrl-{plan_id[:8]}-"


def write_submission(directory: Path, submission: Submission) -> None:
    """Write the file that the cells read.

    Raises:
        HpcrlError: the plan directory cannot be written.
    """
    lines = [f"{task:08d} {attempt:06d}\n" for task, attempt in submission.entries]
    write_atomically(directory / SUBMISSIONS / submission.token, "\n".join([submission.facts(), "".join(lines)]))


def read_entry(directory: Path, token: str, index: int, slot: int = 0) -> tuple[int, int] | None:
    """Return (task, attempt) of a place in a submission's array; None if its array index has fewer cells.

    Raises:
        UsageError: there is no such submission.
    """
    path = _path(directory, token)
    try:
        with open_of_stranger(path, "rb") as file:
            submission = from_facts(file.readline().decode(errors="replace"), path)
            if slot >= submission.cells_per_task:
                return None  # the script has more slots than this submission uses
            file.seek((index * submission.cells_per_task + slot) * _LINE, 1)
            line = file.read(_LINE)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}: was the plan directory moved?") from None
    if len(line) < _LINE:
        return None
    task, _, attempt = line.decode(errors="replace").partition(" ")
    try:
        return int(task), int(attempt)
    except ValueError:
        raise UsageError(f"{path}: is damaged: run `hpcrl submit` again: it writes a new one") from None


def read_submission(directory: Path, token: str) -> Submission:
    """Read one submission by its token.

    Raises:
        UsageError: there is no such submission, or it is damaged.
    """
    path = _path(directory, token)
    try:
        with open_of_stranger(path, "rb") as file:
            return from_facts(file.readline().decode(errors="replace"), path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}: was the plan directory moved?") from None


def _path(directory: Path, token: str) -> Path:
    if not _TOKEN.fullmatch(token):
        raise UsageError(f"{token!r} is not a submission's token")
    return directory / SUBMISSIONS / token


def read_submissions(directory: Path, damaged: list[Path] | None = None) -> Iterator[Submission]:
    """Read all submissions in their order; other files are ignored.

    A copy of a file under another name counts once; so does a file that was renamed.

    Args:
        damaged: collects the damaged files, which are then left out.

    Raises:
        UsageError: one is damaged.
        HpcrlError: one cannot be read.
    """
    by_token: dict[str, Submission] = {}
    for path in (directory / SUBMISSIONS).glob("hpcrl-*"):
        if not _TOKEN.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            continue
        try:
            with open_of_stranger(path, "rb") as file:
                made = from_facts(file.readline().decode(errors="replace"), path)
        except OSError as error:
            raise HpcrlError(f"{path}: cannot be read: {error.strerror}") from None
        except UsageError:
            if damaged is None:
                raise
            damaged.append(path)
            continue
        if made.token == path.name or made.token not in by_token:
            by_token[made.token] = made
    yield from sorted(by_token.values(), key=lambda submission: submission.number)


def from_facts(text: str, where: object) -> Submission:
    """Read what :meth:`Submission.facts` wrote.

    Raises:
        UsageError: it is damaged, or of another version.
    """
    try:
        content: dict[str, Any] = json.loads(text)
        version = content.pop("format")
        if version != FORMAT:
            raise UsageError(f"{where}: submission format {version}, but this hpcrl reads format {FORMAT}")
        if content["executor"] not in schedulers():
            raise UsageError(f"{where}: this hpcrl does not know the scheduler {shown(content['executor'])!r}")
        content["granted"] = {int(attempt): str(tasks) for attempt, tasks in content["granted"].items()}
        content["exclude"] = tuple(content["exclude"])
        built = content.get("environments")  # older versions of hpcrl do not write it
        content["environments"] = None if built is None else tuple(map(str, built))
        return Submission(
            **{
                attribute.name: content[attribute.name]
                for attribute in fields(Submission)
                if attribute.name not in _LATER
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{where}: is damaged: run `hpcrl submit` again") from None


def with_state(
    submission: Submission, state: str, job_ids: tuple[str, ...] = (), message: str | None = None
) -> Submission:
    """Return a submission with what the ledger adds."""
    return replace(submission, state=state, job_ids=job_ids, message=message)
