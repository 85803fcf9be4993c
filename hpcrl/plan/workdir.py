"""The directory in which a study's commands start: the user's, or a copy of it in the plan."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrl.errors import UsageError, count
from hpcrl.formats.plan import MANIFEST, Environment
from hpcrl.spec.workload import Workload
from hpcrl.surroundings import Surroundings
from hpcrl.telemetry.provenance import code

_MOST_FILES = 5_000
_MOST_BYTES = 64 * 2**20
# Not copied, because it can be made again or is not code: caches, packages, virtual environments, plans, datasets.
_LEFT_OUT = frozenset({"__pycache__", "node_modules"})
_MARKERS = (
    "pyvenv.cfg",
    "conda-meta",
    MANIFEST,
    "dataset.json",
)  # the last one is from :mod:`hpcrl.formats.tables`, which is slow to import


@dataclass(frozen=True)
class WorkingDirectory:
    """The part of the plan for the directory of the code.

    Args:
        facts: entries of the plan's workload.
        files: content of the copied files, by name below the plan.
        executable: names of those that are programs.
        notes: sentences for the reader of the plan.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    executable: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def working_directory(workload: Workload) -> WorkingDirectory:
    """Return the directory in which the commands of a workload start.

    Raises:
        UsageError: it should be copied, but cannot be read or is too large.
    """
    place = workload.workdir
    if place is None:
        return WorkingDirectory()
    if not workload.copy_workdir:
        missing = "" if Path(place).is_dir() else ", which is not on this machine"
        note = (
            f"{_what(workload)} {place}{missing}: it must exist on the nodes, and later changes to it change what runs"
        )
        return WorkingDirectory(notes=(note,))
    return _copied(Path(place), _what(workload))


def check_readers(workload: Workload, environments: Sequence[Environment], surroundings: Surroundings | None) -> None:
    """Check that each environment can read the files of values that its programs write.

    A directory that the study names (`surroundings`) may not be on this machine: the cells note what it lacks.

    Raises:
        UsageError: an environment lacks the library.
    """
    if surroundings and surroundings.path:
        return
    for kind in ("tensorboard", "wandb"):
        if workload.metrics is None or getattr(workload.metrics, kind) is None:
            continue
        for environment in environments:
            if not re.search(rf"^{kind}==", environment.requirements, re.MULTILINE):
                raise UsageError(
                    f"workload.metrics.{kind}: environment {environment.name} lacks {kind}, which reads the files: add its pin to the packages"
                )


def _what(workload: Workload) -> str:
    if workload.start_in == "cell":
        return "each command starts in the directory of its cell; the code is in"
    return "commands start in"


def _copied(place: Path, what: str) -> WorkingDirectory:
    if not place.is_dir():
        raise UsageError(
            f"workload.workdir: {place}: no such directory on this machine: remove `copy_workdir`, or plan where the directory is"
        )
    content: dict[str, bytes] = {}
    programs = set()
    size = 0
    for path in _files(place):
        name = str(path.relative_to(place))
        try:
            content[name] = path.read_bytes()
            if os.access(path, os.X_OK):
                programs.add(name)
        except OSError as error:
            raise UsageError(f"{path}: cannot be copied into the plan: {error.strerror}") from None
        size += len(content[name])
        if len(content) > _MOST_FILES or size > _MOST_BYTES:
            raise UsageError(
                f"workload.copy_workdir: {place}: expected at most {_MOST_FILES} files and {_MOST_BYTES // 2**20} MiB, got more: keep data elsewhere, "
                "name a directory with code only, or remove `copy_workdir`"
            )
    digest = hashlib.sha256()
    for name, data in sorted(content.items()):
        digest.update(f"{name}\0{name in programs:d}{len(data)}\0".encode() + data)
    folder = f"workdir-{digest.hexdigest()[:12]}"
    facts = {"workdir": folder, "workdir_of": str(place), "code": code(place)}
    note = f"{what} a copy of {place}: {folder} ({count(len(content), 'file')}; without hidden files and environments)"
    if odd := _links(place):
        named = ", ".join(odd[:5]) + (", ..." if len(odd) > 5 else "")
        note += f"; not copied, because they are not regular files or are links to directories or to nothing: {named}"
    return WorkingDirectory(
        facts,
        {f"{folder}/{name}": data for name, data in content.items()},
        frozenset(f"{folder}/{name}" for name in programs),
        (note,),
    )


def _walk(place: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Give each directory to copy, with the names of its subdirectories and of its files, sorted."""
    for base, folders, names in os.walk(place):
        here = Path(base)
        folders[:] = sorted(name for name in folders if not _is_left_out(here / name))
        yield here, folders, sorted(name for name in names if not name.startswith("."))


def _files(place: Path) -> Iterator[Path]:
    """Give the regular files below a directory; links to directories are not followed."""
    for here, _, names in _walk(place):
        yield from (here / name for name in names if (here / name).is_file())


def _links(place: Path) -> list[str]:
    """Return the entries that are missing in a copy: links to directories, dangling links, sockets and similar."""
    links = []
    for here, folders, names in _walk(place):
        odd = [name for name in folders if (here / name).is_symlink()]
        odd += [name for name in names if not (here / name).is_file()]
        links += [str((here / name).relative_to(place)) for name in sorted(odd)]
    return links


def _is_left_out(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in _LEFT_OUT
    return hidden or any((folder / name).exists() for name in _MARKERS)
