"""No process of a cell of several ranks listens where another machine could reach it."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.builders import SHARED_CACHE, built_environment, cells_of, planned
from tests.run.test_ranks import study

pytestmark = pytest.mark.slow


def listeners(root: psutil.Process) -> set[tuple[str, str]]:
    """Return (program, address) of each TCP port on which a process or one below it listens."""
    found = set()
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    found.add((process.name(), each.laddr.ip))
    return found


@pytest.mark.parametrize(
    ("framework", "parallelism", "variables"),
    [
        ("torch", "native", {}),
        ("jax", "native", {}),
        ("mxnet", "horovod", {"HOROVOD_CONTROLLER": "gloo"}),
        ("mxnet", "horovod", {}),
        ("jax", "horovod", {}),
    ],
)
def test_nothing_listens_on_every_address(
    tmp_path: Path, framework: str, parallelism: str, variables: dict[str, str]
) -> None:
    plan = planned(tmp_path / "plan", study(parallelism, framework), "sol")
    shutil.copy(Path(__file__).with_name("faulty.py"), plan)
    (cell,) = cells_of(plan)
    python = built_environment(framework, horovod=parallelism == "horovod").path / "bin/python"
    words = [python, "-m", "hpcrl.run", ".", "--cell", cell["id"], "--ranks", "2"]
    environment = {**os.environ, **SHARED_CACHE, "PYTHONPATH": "worker.zip", **variables}
    found: set[tuple[str, str]] = set()
    with subprocess.Popen(
        words, cwd=plan, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as cell_run:
        over = threading.Event()

        def watch() -> None:
            while not over.is_set():
                with suppress(psutil.Error):
                    found.update(listeners(psutil.Process(cell_run.pid)))
                time.sleep(0.1)  # a listener stays for seconds, and looking takes a core

        watcher = threading.Thread(target=watch)
        watcher.start()
        _, told = cell_run.communicate(timeout=600)
        over.set()
        watcher.join()
    assert cell_run.returncode == 0, told
    assert found, "nothing was seen to listen: the test sees nothing"
    # Open MPI's launcher binds its own port to every address, whatever it is told (docs/frameworks.md).
    everywhere = {name for name, address in found if address not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")}
    assert everywhere <= ({"mpirun"} if parallelism == "horovod" and not variables else set()), found
