"""Start all ranks of a cell on this machine: with mpirun if they use MPI, otherwise as plain processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any

from hpcrl.catalogue.registry import frameworks
from hpcrl.errors import UsageError

# Seconds until the other ranks are ended after one has failed.
_GRACE_SECONDS = 5.0
# When one rank has died, Open MPI's mpirun waits so many seconds, sends TERM to the others, waits as long again and kills them. The cell
# must end within ten seconds, and the others need some time for their checkpoints: mpirun's default of one second is too short.
KILL_SECONDS = 3


def start_ranks(
    command: Sequence[str], ranks: int, framework: str, parallelism: str, attempt: str, launch: str | None = None
) -> int:
    """Run a command once for each rank until all have ended, and return the exit code of the first failure. A failure ends the others.

    Horovod uses MPI if there is an mpirun. Otherwise, or if ``HOROVOD_CONTROLLER`` says so, it uses Gloo.

    Args:
        launch: "mpi" if the ranks belong to one MPI program.

    Raises:
        UsageError: the cell needs MPI, but there is no mpirun here.
    """
    shared = {"HPCRL_RANKS": str(ranks), "HPCRL_ATTEMPT": attempt}
    mpirun = shutil.which("mpirun")
    wants_gloo = os.environ.get("HOROVOD_CONTROLLER", "").lower() == "gloo"
    with ExitStack() as stack:
        if launch == "mpi":
            if not mpirun:
                raise UsageError(
                    "mpirun: not found on PATH, but the ranks of this cell talk over MPI: install an MPI library, or load its module"
                )
            return _watch([_mpirun(mpirun, command, ranks, shared)])
        if parallelism == "horovod" and mpirun and not wants_gloo:
            return _watch([_mpirun(mpirun, command, ranks, shared)])
        known = frameworks().get(framework)
        if known and parallelism in known.needs_mpi:
            raise UsageError(
                f"{framework}: has no Horovod binding and averages over MPI, but there is no mpirun here: install Open MPI "
                "(openmpi-bin), or use parallelism native"
            )
        if parallelism == "horovod":
            own = _gloo(stack, ranks)
        else:
            addresses = ",".join(f"127.0.0.1:{port}" for port in _free_ports(ranks))

            def own(rank: int) -> dict[str, str]:
                return {"HPCRL_ADDRESSES": addresses}

        return _watch(
            [
                subprocess.Popen(command, env={**os.environ, **shared, "HPCRL_RANK": str(rank), **own(rank)})
                for rank in range(ranks)
            ]
        )


def _mpirun(mpirun: str, command: Sequence[str], ranks: int, shared: dict[str, str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **shared}
    words = [mpirun, "-np", str(ranks)]
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" in version or "OpenRTE" in version:
        words += ["--bind-to", "none", "--oversubscribe"]
        words += ["--mca", "odls_base_sigkill_timeout", str(KILL_SECONDS)]
        # All ranks are on this machine: they communicate through shared memory, and do not listen.
        words += ["--mca", "pml", "ob1", "--mca", "btl", "self,vader", "--mca", "oob_tcp_if_include", "lo"]
        if os.geteuid() == 0:
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.Popen([*words, *command], env=environment)


def _gloo(stack: ExitStack, ranks: int) -> Callable[[int], dict[str, str]]:
    """Start Horovod's rendezvous server, which Gloo's ranks use to find each other. Return each rank's variables."""
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ModuleNotFoundError as error:
        raise UsageError(
            f"horovod: {error.name} is not installed in this environment: build it with hpcrl env create --horovod"
        ) from None
    # Horovod's own RendezvousServer would listen on every address.
    server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, 0)
    port = server.server_address[1]
    stack.callback(server.shutdown)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    slots = get_host_assignments(parse_hosts(f"localhost:{ranks}"), ranks)
    server.init(slots)

    def variables(rank: int) -> dict[str, str]:
        slot: Any = slots[rank]
        return {
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_RANK": str(slot.rank),
            "HOROVOD_SIZE": str(slot.size),
            "HOROVOD_LOCAL_RANK": str(slot.local_rank),
            "HOROVOD_LOCAL_SIZE": str(slot.local_size),
            "HOROVOD_CROSS_RANK": str(slot.cross_rank),
            "HOROVOD_CROSS_SIZE": str(slot.cross_size),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_GLOO_IFACE": "lo",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }

    return variables


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(bound.getsockname()[1]) for bound in sockets]


def _watch(children: list[subprocess.Popen[bytes]]) -> int:
    import psutil

    def hand_on(number: int, frame: FrameType | None) -> None:
        """Send a signal to the ranks themselves, because mpirun would end them at once."""
        for child in children:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(child.pid)
                for target in process.children() if "mpirun" in child.args[0] else [process]:  # type: ignore[operator,index]
                    target.send_signal(number)

    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, hand_on)
    failed, deadline = 0, 0.0
    while None in (codes := [child.poll() for child in children]):
        if not failed and (failed := next((code for code in codes if code), 0)):
            deadline = time.monotonic() + _GRACE_SECONDS
            for child in children:
                child.terminate()
        if failed and time.monotonic() > deadline:
            for child in children:
                child.kill()
        time.sleep(0.1)
    return failed or next((code for code in codes if code), 0)
