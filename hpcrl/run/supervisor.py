"""A rank that a signal kills cannot say so: the process that started it does.

The ranks of a cell end together, and who went first is what a reader must know: the kernel that is out of memory, an
administrator, a crash in a library. Only the parent of a process is told which signal ended it.
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
    """Fork. The child is the rank, and goes on; the parent hands signals on to it and waits for it.

    Call it before there are threads.

    Args:
        ended: is told, in the parent, what a footer says of a rank that a signal has killed.

    Returns:
        None in the rank; in the parent the exit code of the rank, 128 and the signal where one has killed it.
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
    reason = f"killed by {name}" + (": the kernel was out of memory for it" if starved else "")
    ended({"outcome": "oom" if starved else "failed", "reason": reason, "killed_by": name})
    return 128 - code


def oom_kills() -> int:
    """Return how many processes the kernel of this machine has ended for want of memory."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return int(found[1]) if found else 0
