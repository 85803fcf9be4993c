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
    """A plan and the content of each of its files, by name; `changes` from the previous generation, if there is one.

    `executable` names the files that are programs. `unplaced_at` has the place in the study of what each of the plan's `unplaced`
    asks for in vain: file, line and key.
    """

    plan: Plan
    files: Mapping[str, str | bytes]
    changes: Changes | None = None
    executable: frozenset[str] = frozenset()
    unplaced_at: tuple[str, ...] = ()


def write_plan(files: PlanFiles, directory: Path, say: Say = lambda text: None) -> bool:
    """Write the plan directory completely, or not at all. Return False if it already contains the same plan.

    The next generation is written beside the old one, and its manifest last: until then the old plan stays valid.
    It waits while a `submit` or another `plan` works there, and tells `say` for which one.

    Raises:
        UsageError: the directory contains another plan, or is not a plan.
        HpcrlError: the directory cannot be written.
    """
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MANIFEST).is_file():
            raise UsageError(f"{directory}: exists and is not a plan directory: choose another with -o")
        if (directory / MANIFEST).read_text(encoding="utf-8") == files.files[MANIFEST]:
            _write_files(files, directory)  # again, if one was removed
            return False
        with held_lease(directory, "plan", say):
            _write_beside(files, directory)
        return True
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = directory.with_name(f".{directory.name}.{secrets.token_hex(6)}")
        temporary.mkdir()
    except OSError as error:
        raise HpcrlError(
            f"{directory}: cannot be created: {error.strerror}: choose another directory with -o"
        ) from None
    try:
        if directory.exists():
            shutil.copymode(directory, temporary)
        for name, content in files.files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            if name in files.executable:
                path.chmod(path.stat().st_mode | (path.stat().st_mode & 0o444) >> 2)  # users who may read it may run it
        for name in (LOGS, RECORDS):
            (temporary / name).mkdir()
        if directory.exists():
            directory.rmdir()
        os.replace(temporary, directory)  # noqa: PTH105
    except OSError as error:
        raise HpcrlError(f"{directory}: cannot be written: {error.strerror}; the directory was not created") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def _write_beside(files: PlanFiles, directory: Path) -> None:
    standing = (directory / MANIFEST).read_text(encoding="utf-8")
    if standing != files.files.get(old_manifest(files.plan.generation - 1)):
        raise UsageError(
            f"{directory}: contains another plan (compare with `hpcrl plan diff`): plan again, or choose another directory with -o"
        )
    # A killed `plan` may have left scripts of this generation that are no longer in it.
    for path in (directory / "scripts").glob(f"*-g{files.plan.generation}.sbatch"):
        if f"scripts/{path.name}" not in files.files:
            path.unlink()
    _write_files(files, directory)


def _write_files(files: PlanFiles, directory: Path) -> None:
    """Write the files that differ, the manifest last."""
    for name in sorted(files.files, key=lambda name: name == MANIFEST):
        content = files.files[name]
        data = content.encode() if isinstance(content, str) else content
        path = directory / name
        if not path.is_file() or path.read_bytes() != data:
            write_atomically(path, data, executable=name in files.executable)
