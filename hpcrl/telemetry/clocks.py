"""How far the wall clocks of a job's nodes are apart.

The first node answers over TCP with its time while the cell runs, and writes its address to a file of the plan
directory, which every node sees. The other nodes ask as NTP does (RFC 5905, section 8): the offset of the shortest of
several round trips counts, and half of that trip is the bound of its error. The first node listens only on its address
towards the job's other nodes, and answers only clients that know the token in that file.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpcrl.formats.files import private

_TIME = struct.Struct(">d")
_ROUNDS = 20
_PATIENCE = 5.0  # seconds per node
_MOST_THREADS = 64


def serve(file: Path, towards: str, clock: Callable[[], float] = time.time) -> None:
    """Answer with this node's time, in threads that end with the process.

    Args:
        towards: another node of the job.
    """
    address = _address(towards)
    server = socket.create_server((address, 0))
    token = secrets.token_hex(16)
    threading.Thread(target=_accept, args=(server, token.encode(), clock), daemon=True).start()
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.new")
    with open(temporary, "w", encoding="ascii", opener=private) as opened:
        json.dump([address, server.getsockname()[1], token], opened)
    temporary.replace(file)


def _address(towards: str) -> str:
    """Return this node's address on the network that leads to another node; nothing is sent."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def _accept(server: socket.socket, token: bytes, clock: Callable[[], float]) -> None:
    while True:
        connection, _ = server.accept()
        if threading.active_count() > _MOST_THREADS:
            connection.close()
        else:
            threading.Thread(target=_answer, args=(connection, token, clock), daemon=True).start()


def _answer(connection: socket.socket, token: bytes, clock: Callable[[], float]) -> None:
    """Answer one node: read the token, and then a byte per question. A slow client delays no other."""
    until = time.monotonic() + _PATIENCE
    with connection, suppress(OSError):
        connection.settimeout(_PATIENCE)
        said = b""
        while len(said) < len(token) and time.monotonic() < until:
            if not (more := connection.recv(len(token) - len(said))):
                return
            said += more
        if not hmac.compare_digest(said, token):
            return
        while time.monotonic() < until and connection.recv(1):
            connection.sendall(_TIME.pack(clock()))


def offset(file: Path, patience: float = 10.0, clock: Callable[[], float] = time.time) -> tuple[float, float] | None:
    """Return by how many seconds this node's clock is ahead of the first node's, and the error's bound.

    None if the first node's address is not known, or the node cannot be reached, within `patience` seconds.
    """
    until = time.monotonic() + patience
    while time.monotonic() < until:
        with suppress(OSError, ValueError, TypeError):
            address, port, token = json.loads(file.read_text())
            with suppress(OSError), socket.create_connection((address, port), timeout=1) as connection:
                connection.sendall(str(token).encode())
                return min((_once(connection, clock) for _ in range(_ROUNDS)), key=lambda answer: answer[1])
        time.sleep(0.05)
    return None


def _once(connection: socket.socket, clock: Callable[[], float]) -> tuple[float, float]:
    sent = clock()
    connection.sendall(b"?")
    answer = b""
    while len(answer) < _TIME.size:
        answer += connection.recv(_TIME.size - len(answer)) or _gone()
    received = clock()
    return (sent + received) / 2 - _TIME.unpack(answer)[0], (received - sent) / 2


def _gone() -> bytes:
    raise ConnectionError("the first node is gone")
