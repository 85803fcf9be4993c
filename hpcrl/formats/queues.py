"""The local queues of a plan: which process runs which submissions, and whether it still lives.

    PLAN/queues/<token of its first submission>     who it is and what it has, touched every few seconds

A queue on this host is looked up among the processes; one on another host lives while its file is touched.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpcrl.formats.files import open_regular, server_time, write_atomically
from hpcrl.formats.lease import DEAD_SECONDS, HEARTBEAT_SECONDS
from hpcrl.formats.processes import lives, this_process

FOLDER = "queues"


class Queue:
    """The queue that this process is."""

    def __init__(self, directory: Path, tokens: Sequence[str]) -> None:
        self._path = directory / FOLDER / tokens[0]
        self._beaten = time.monotonic()
        write_atomically(self._path, json.dumps({"tokens": list(tokens), **this_process()}))

    def beat(self) -> None:
        """Show that this process lives; call it often."""
        if time.monotonic() - self._beaten > HEARTBEAT_SECONDS:
            self._beaten = time.monotonic()
            with suppress(OSError):
                os.utime(self._path)


def read_queues(directory: Path) -> dict[str, bool]:
    """Return, for each token that a local queue took up, whether that queue lives."""
    found: dict[str, bool] = {}
    for path in sorted((directory / FOLDER).glob("hpcrl-*")):
        try:
            with open_regular(path) as file:
                queue = json.load(file)
            alive = lives(queue)
            if alive is None:
                alive = server_time(directory) - path.stat().st_mtime < DEAD_SECONDS
            for token in queue["tokens"]:
                found[token] = alive or found.get(token, False)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found
