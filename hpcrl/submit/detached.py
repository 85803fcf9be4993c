"""Start the local queue through submitit, in a session of its own.

Run as ``python -m hpcrl.submit.detached PLAN MINUTES TOKEN...``. submitit's controller keeps the terminal, pipes and
process group of the process that starts it. Here it has none of the caller's, so that the caller's pipes close when the
caller ends, and its Ctrl-C does not reach the jobs.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpcrl.errors import HpcrlError
from hpcrl.formats.queues import QUEUE_LOGS, read_queues
from hpcrl.submit.settling import STARTER

START_SECONDS = 120.0


def start_queue(directory: Path, tokens: Sequence[str], minutes: int) -> None:
    """Start the local queue for some submissions; the ledger then says under which process id.

    Raises:
        HpcrlError: it did not start.
    """
    folder = directory / QUEUE_LOGS
    folder.mkdir(exist_ok=True)
    log = folder / "start.log"
    log.unlink(missing_ok=True)  # whatever it contains
    with log.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-P", "-m", STARTER, str(directory.resolve()), str(minutes), *tokens],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            check=False,
        )
    if done.returncode != 0:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise HpcrlError(f"the local queue did not start: {lines[-1] if lines else f'see {log}'}")


def main(directory: str, minutes: str, *tokens: str) -> None:
    import submitit

    from hpcrl.submit.local import drain
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
