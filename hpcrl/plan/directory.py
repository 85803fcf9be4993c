"""Write a plan directory as a whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.plan import LOGS, MANIFEST, RECORDS, Plan


@dataclass(frozen=True)
class PlanFiles:
    """A plan and the content of each of its files, by name."""

    plan: Plan
    files: Mapping[str, str | bytes]


def write_plan(files: PlanFiles, directory: Path) -> bool:
    """Write the plan directory as a whole, or not at all; return False where the same plan stands there already.

    Raises:
        UsageError: another plan, or something else, stands there.
        HpcrlError: it cannot be written.
    """
    if directory.exists() and any(directory.iterdir()):
        manifest = directory / MANIFEST
        if not manifest.is_file():
            raise UsageError(f"{directory}: exists and is not a plan directory: choose another with -o")
        if manifest.read_text(encoding="utf-8") == files.plan.to_text():
            return False
        raise UsageError(
            f"{directory}: holds another plan (`hpcrl plan diff` compares): choose another directory with -o"
        )
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
