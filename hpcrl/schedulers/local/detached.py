"""Start the local queue through submitit, in a session of its own.

Run as ``python -m hpcrl.schedulers.local.detached PLAN MINUTES TOKEN...``. submitit's controller keeps the terminal, pipes and
process group of the process that starts it. Here it has none of the caller's, so that the caller's pipes close when the
caller ends, and its Ctrl-C does not reach the jobs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from hpcrl.formats.queues import QUEUE_LOGS, read_queues

START_SECONDS = 120.0


def main(directory: str, minutes: str, *tokens: str) -> None:
    import submitit

    from hpcrl.schedulers.local.queue import drain
    from hpcrl.telemetry.provenance import visible_gpus

    path = Path(directory)
    executor = submitit.LocalExecutor(folder=path / QUEUE_LOGS)
    executor.update_parameters(timeout_min=int(minutes))
    job = executor.submit(drain, directory, list(tokens), list(visible_gpus()))
    deadline = time.monotonic() + START_SECONDS
    while not set(tokens) <= set(read_queues(path)):
        if time.monotonic() > deadline:
            raise SystemExit(f"it did not start within {START_SECONDS:.0f} s: see {job.paths.stderr}")
        if job.done():
            raise SystemExit(f"it ended at once: see {job.paths.stderr}")
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
