"""Watch a rank from its parent process, because a rank that a signal kills cannot report it.

The ranks of a cell end together, and the reader needs the first cause: a kernel out of memory, an administrator, a crash
in a library. Only the parent of a process learns which signal ended it.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from hpcrl.telemetry.processes import die_with_parent, name_runner


def fork_rank(ended: Callable[[dict[str, Any]], object]) -> int | None:
    """Fork. The child is the rank, and continues. The parent passes signals on to it and waits for it.

    Call it before the process has threads.

    Args:
        ended: called in the parent with the facts for the footer of a rank that a signal killed.

    Returns:
        None in the rank. In the parent the exit code of the rank, or 128 plus the signal that killed it.
    """
    kills = oom_kills()
    rank = os.fork()
    if rank == 0:
        die_with_parent()
        return None
    name_runner()

    def hand_on(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(rank, number)

    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, hand_on)
    code = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
    if code >= 0:
        return code
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    starved = name == "SIGKILL" and oom_kills() > kills
    reason = f"killed by {name}" + (", because the kernel was out of memory" if starved else "")
    ended({"outcome": "oom" if starved else "failed", "reason": reason, "killed_by": name})
    return 128 - code


def oom_kills() -> int:
    """Return how many processes the kernel of this machine has ended for lack of memory."""
    try:
        match = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return int(match[1]) if match else 0
