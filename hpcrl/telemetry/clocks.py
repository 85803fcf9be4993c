"""How far the wall clocks of a job's nodes are apart.

The first node answers over TCP with its time for as long as the cell runs, and says where in a file of the plan
directory, which every node sees. The other nodes ask as NTP does (RFC 5905, section 8): of the offsets measured over
several round trips the one of the shortest is taken, and half that trip bounds its error.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

_TIME = struct.Struct(">d")
_ROUNDS = 20


def serve(file: Path, clock: Callable[[], float] = time.time) -> None:
    """Answer with this node's time, from a thread that ends with the process."""
    server = socket.create_server(("", 0))
    threading.Thread(target=_answer, args=(server, clock), daemon=True).start()
    places = [(address, server.getsockname()[1]) for address in _addresses()]
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.new")
    temporary.write_text(json.dumps(places))
    temporary.replace(file)


def _addresses() -> list[str]:
    found = [
        each.address
        for entries in psutil.net_if_addrs().values()
        for each in entries
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ]
    return [*found, "127.0.0.1"]  # the last one for nodes that are one machine


def _answer(server: socket.socket, clock: Callable[[], float]) -> None:
    while True:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.settimeout(5)
            while connection.recv(1):
                connection.sendall(_TIME.pack(clock()))


def offset(file: Path, patience: float = 10.0, clock: Callable[[], float] = time.time) -> tuple[float, float] | None:
    """Return by how many seconds this node's clock is ahead of the first node's, and the error's bound.

    None if the first node does not say where it is, or cannot be reached, within `patience` seconds.
    """
    until = time.monotonic() + patience
    while time.monotonic() < until:
        with suppress(OSError, ValueError):
            for address, port in json.loads(file.read_text()):
                with suppress(OSError), socket.create_connection((address, port), timeout=1) as connection:
                    return min((_once(connection, clock) for _ in range(_ROUNDS)), key=lambda each: each[1])
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
