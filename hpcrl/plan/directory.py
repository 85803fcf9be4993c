"""Write a plan directory as a whole, or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.files import write_atomically
from hpcrl.formats.lease import Say, held_lease
from hpcrl.formats.plan import LOGS, MANIFEST, RECORDS, Plan, old_manifest
from hpcrl.plan.before import Changes


@dataclass(frozen=True)
class PlanFiles:
    """A plan and the content of each of its files, by name; `changes` from the generation before, where there is one.

    `executable` names the files that are programs.
    """

    plan: Plan
    files: Mapping[str, str | bytes]
    changes: Changes | None = None
    executable: frozenset[str] = frozenset()


def write_plan(files: PlanFiles, directory: Path, say: Say = lambda text: None) -> bool:
    """Write the plan directory as a whole, or not at all; return False where the same plan stands there already.

    A next generation is written beside the one that stands there, and the manifest last: until then the old plan is whole.
    It waits for a `submit` or another `plan` at work there; `say` is told for whom.

    Raises:
        UsageError: another plan, or something else, stands there.
        HpcrlError: it cannot be written.
    """
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MANIFEST).is_file():
            raise UsageError(f"{directory}: exists and is not a plan directory: choose another with -o")
        if (directory / MANIFEST).read_text(encoding="utf-8") == files.files[MANIFEST]:
            _write_files(files, directory)  # what was removed of it
            return False
        with held_lease(directory, "plan", say):
            _write_beside(files, directory)
        return True
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = directory.with_name(f".{directory.name}.{secrets.token_hex(6)}")
        temporary.mkdir()
    except OSError as error:
        raise HpcrlError(f"{directory}: cannot be made: {error.strerror}") from None
    try:
        if directory.exists():
            shutil.copymode(directory, temporary)
        for name, content in files.files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            if name in files.executable:
                path.chmod(path.stat().st_mode | (path.stat().st_mode & 0o444) >> 2)  # who may read it may run it
        for name in (LOGS, RECORDS):
            (temporary / name).mkdir()
        if directory.exists():
            directory.rmdir()
        os.replace(temporary, directory)  # noqa: PTH105
    except OSError as error:
        raise HpcrlError(f"{directory}: cannot be written: {error.strerror}; nothing was left half-written") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def _write_beside(files: PlanFiles, directory: Path) -> None:
    standing = (directory / MANIFEST).read_text(encoding="utf-8")
    if standing != files.files.get(old_manifest(files.plan.generation - 1)):
        raise UsageError(
            f"{directory}: holds another plan (`hpcrl plan diff` compares): plan again, or choose another directory with -o"
        )
    # A run that was killed may have left scripts of this generation that are none any more.
    for path in (directory / "scripts").glob(f"*-g{files.plan.generation}.sbatch"):
        if f"scripts/{path.name}" not in files.files:
            path.unlink()
    _write_files(files, directory)


def _write_files(files: PlanFiles, directory: Path) -> None:
    """Write what differs, the manifest last."""
    for name in sorted(files.files, key=lambda name: name == MANIFEST):
        content = files.files[name]
        data = content.encode() if isinstance(content, str) else content
        path = directory / name
        if not path.is_file() or path.read_bytes() != data:
            write_atomically(path, data, executable=name in files.executable)
