"""The profiles of a plan's cells, as their records have them, and their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcrl.collect.batches import read_found
from hpcrl.collect.finding import Found
from hpcrl.collect.reading import Reader
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.files import open_of_stranger
from hpcrl.formats.finding import find_cell
from hpcrl.formats.plan import RECORDS, Plan, read_plan
from hpcrl.formats.profiles import PROFILES, Profile
from hpcrl.formats.record import SUFFIX, RecordError, read_frames
from hpcrl.formats.traces import TRACE, XSPACE, TraceError, chrome_trace, read_xspace
from hpcrl.profilers import FRAMEWORK, KEY


@dataclass(frozen=True)
class CellProfile:
    """The profile of one rank of an attempt. `path` is its file; None if there is none here."""

    cell: str
    attempt: str
    node: str
    rank: int
    started: float
    profile: Profile
    path: Path | None


def profiles_of(directory: Path, cell: str | None = None) -> list[CellProfile]:
    """Return the profiles of a plan, or of one of its cells (the beginning of its id), the newest attempt last.

    Records that cannot be read are left out: `hpcrl collect` says why.

    Raises:
        UsageError: it is no plan, or there is no such cell.
        HpcrlError: the records cannot be read.
    """
    plan = read_plan(directory)
    wanted = None if cell is None else find_cell(directory, plan, cell, older=True)[0].id
    profiles = []
    reader = Reader()
    for path in _records(directory, wanted):
        try:
            data = read_found(_as_found(plan, path), {plan.id: {path.name.partition(".")[0]}}, reader)
        except RecordError:
            continue
        head = data.header
        if data.profile is None:
            continue
        facts = {name: value for name, value in data.profile.items() if value is not None}
        profile = Profile(**facts)
        file = None if profile.file is None else directory / PROFILES / profile.file
        path_here = file if file is not None and _is_here(file) else None
        profiles.append(
            CellProfile(head["cell"], head["attempt"], head["node"], head["rank"], head["started"], profile, path_here)
        )
    return sorted(profiles, key=lambda profile: (profile.cell, profile.started, profile.rank))


def newest(profiles: list[CellProfile], directory: Path, cell: str) -> CellProfile:
    """Return the profile of the first rank of a cell's newest profiled attempt.

    Raises:
        UsageError: the cell has none.
    """
    if not profiles:
        raise UsageError(
            f"cell {cell} of {directory}: has no profile: run it with `hpcrl run {directory} --cell {cell} --profile cprofile`, or plan the study with "
            f"`{KEY}: cprofile`"
        )
    last = profiles[-1].attempt
    return next(profile for profile in profiles if profile.attempt == last)


def content_of(profile: CellProfile) -> bytes:
    """Read the profiler's own file. It is not interpreted.

    Raises:
        HpcrlError: there is none, or it cannot be read.
    """
    if profile.path is None:
        why = (
            profile.profile.note
            or "its file is not in the plan's directory: was it removed, or not copied, or may you not read it?"
        )
        raise HpcrlError(f"cell {profile.cell}, attempt {profile.attempt}: {why}")
    try:
        with open_of_stranger(profile.path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise HpcrlError(f"{profile.path}: cannot be read: {error.strerror}") from None
    if (size := profile.profile.size) not in (None, len(content)):
        raise HpcrlError(
            f"{profile.path}: has {len(content):,} bytes, and the cell wrote {size:,}: somebody changed it, so do not open it"
        )
    return content


def trace_of(profile: CellProfile) -> bytes:
    """Return the trace of a framework's profiler as gzipped JSON, for Perfetto and Chrome.

    Raises:
        HpcrlError: there is none, or it cannot be read.
    """
    name = profile.profile.file or ""
    if profile.path is not None and not name.endswith((TRACE, XSPACE)):
        raise HpcrlError(
            f"{profile.path}: has no times of single events, only `profile: {FRAMEWORK}` has: use --export flame"
        )
    content = content_of(profile)
    if name.endswith(TRACE):
        return content
    try:
        return chrome_trace(read_xspace(content))
    except TraceError as error:
        raise HpcrlError(f"{profile.path}: {error}") from None


def _records(directory: Path, cell: str | None) -> list[Path]:
    """Return the records of a cell, or of all attempts under a profiler, also of those whose profile has no file."""
    folder = directory / RECORDS
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HpcrlError(f"{folder}: cannot be read: {error.strerror}") from None
    if cell is not None:
        return [path for path in paths if path.name.startswith(f"{cell}.")]
    return [path for path in paths if _is_profiled(path)]


def _is_here(path: Path) -> bool:
    """Tell whether there is a file that may be seen, and no link to one."""
    try:
        return path.is_file() and not path.is_symlink()
    except OSError:
        return False


def _is_profiled(record: Path) -> bool:
    try:
        header = next(read_frames(record, frozenset({"header"})), None)
    except RecordError:
        return False
    return header is not None and isinstance(header.layout.facts.get(KEY), str)


def _as_found(plan: Plan, path: Path) -> Found:
    return Found(plan.id, str(path.parent), path.name, 0, 0)
