"""Write a plan directory as a whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.files import write_atomically
from hpcrl.formats.plan import LOGS, MANIFEST, RECORDS, Plan, old_manifest
from hpcrl.plan.before import Changes


@dataclass(frozen=True)
class PlanFiles:
    """A plan and the content of each of its files, by name; `changes` from the generation before, where there is one."""

    plan: Plan
    files: Mapping[str, str | bytes]
    changes: Changes | None = None


def write_plan(files: PlanFiles, directory: Path) -> bool:
    """Write the plan directory as a whole, or not at all; return False where the same plan stands there already.

    A next generation is written beside the one that stands there, and the manifest last: until then the old plan is whole.

    Raises:
        UsageError: another plan, or something else, stands there.
        HpcrlError: it cannot be written.
    """
    if directory.exists() and any(directory.iterdir()):
        return _write_beside(files, directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    except OSError as error:
        raise HpcrlError(f"{directory}: cannot be made: {error.strerror}") from None
    try:
        temporary.chmod(0o755)
        for name, content in files.files.items():
            path = temporary / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
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


def _write_beside(files: PlanFiles, directory: Path) -> bool:
    manifest = directory / MANIFEST
    if not manifest.is_file():
        raise UsageError(f"{directory}: exists and is not a plan directory: choose another with -o")
    standing = manifest.read_text(encoding="utf-8")
    same = standing == files.files[MANIFEST]
    if not same and standing != files.files.get(old_manifest(files.plan.generation - 1)):
        raise UsageError(
            f"{directory}: holds another plan (`hpcrl plan diff` compares): plan again, or choose another directory with -o"
        )
    if not same:
        # A run that was killed may have left scripts of this generation that are none any more.
        for path in (directory / "scripts").glob(f"*-g{files.plan.generation}.sbatch"):
            if f"scripts/{path.name}" not in files.files:
                path.unlink()
    for name in sorted(files.files, key=lambda name: name == MANIFEST):
        content = files.files[name]
        data = content.encode() if isinstance(content, str) else content
        path = directory / name
        if not path.is_file() or path.read_bytes() != data:
            write_atomically(path, data)
    return not same
