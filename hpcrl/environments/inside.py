"""Run a module of hpcrl inside a built environment, with one thread, as a cell of one core has it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hpcrl.environments.commands import call
from hpcrl.errors import HpcrlError
from hpcrl.formats.plan import WORKER
from hpcrl.formats.worker import worker_zip


def variables(path: Path) -> dict[str, str]:
    """Return the variables with which the programs of the environment at `path` come first."""
    return {"PATH": f"{path / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}


def run_inside(
    path: Path,
    setup: Sequence[str],
    module: str,
    arguments: Sequence[str],
    extra: Mapping[str, str],
    failed: str,
    most_seconds: float | None = None,
) -> dict[str, Any]:
    """Run ``python -m module``, and return the JSON object in the last line of its output.

    PyTorch's compiler begins with an empty cache.

    Raises:
        HpcrlError: it fails, takes more than `most_seconds`, or prints something else; the message begins with `failed`.
    """
    with TemporaryDirectory(prefix="hpcrl-check-") as place:
        (Path(place) / WORKER).write_bytes(worker_zip())
        whole = variables(path) | {"PYTHONPATH": str(Path(place) / WORKER), "OMP_NUM_THREADS": "1"}
        whole |= {"TORCHINDUCTOR_CACHE_DIR": str(Path(place) / "inductor"), **extra}
        out = call(
            [path / "bin/python", "-m", module, *arguments], setup, whole, failed=failed, most_seconds=most_seconds
        )
    try:
        result = json.loads(out.splitlines()[-1])
    except (ValueError, IndexError, RecursionError):
        result = None
    if not isinstance(result, dict):
        raise HpcrlError(f"{failed}: expected a JSON object in the last line of its output, got {last_of(out)}")
    return result


def last_of(out: str) -> str:
    """Return the beginning of the last line of a program's output, for a message."""
    return repr(next(iter(out.splitlines()[-1:]), "")[:60])
