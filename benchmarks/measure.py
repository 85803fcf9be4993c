"""CPU seconds of a process, children included: steadier than wall time on a shared machine."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Sequence
from pathlib import Path


def cpu_seconds(
    arguments: Sequence[str], cwd: Path | None = None, env: dict[str, str] | None = None, repeats: int = 3
) -> float:
    """Run a command some times and return the least CPU seconds (user and system) that it took.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    best = float("inf")
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(arguments, cwd=cwd, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return best
