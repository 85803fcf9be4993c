"""The processes that read batches of records, and what they share with the one that started them: pickles over pipes.

multiprocessing would run the caller's script again in each process, and it can keep a new process from importing modules
of the working directory, which may be a stranger's, only through a variable that all threads of the caller share.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias

import pyarrow as pa

from hpcrl.collect.batches import merge_batch
from hpcrl.collect.finding import Found
from hpcrl.errors import HpcrlError
from hpcrl.telemetry.processes import die_with_parent

_LARGE = 8 * 1024**2  # bytes of a record

Batch: TypeAlias = tuple[int, list[Found]]  # its number, and its records
Refused: TypeAlias = dict[str, str]  # the reason for each record that was refused
Merge: TypeAlias = Callable[[Sequence[Batch]], Iterable[Refused]]


@contextmanager
def workers(count: int, dataset: Path, cells: dict[str, set[str]], lease: Path) -> Iterator[Merge]:
    """Give a function that merges batches, in their order, in so many other processes; 0: in this one.

    Args:
        cells: the ids of the cells of each plan.
        lease: of the dataset, see :func:`hpcrl.collect.parts.write_part`.

    Raises:
        HpcrlError: a process was killed.
    """
    if not count:
        yield lambda batches: (_merged(dataset, number, batch, cells, lease) for number, batch in batches)
        return
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    processes: list[subprocess.Popen[bytes]] = []
    threads = ThreadPoolExecutor(count)

    def merge(batch: Batch) -> Refused:
        process = idle.get()
        try:
            return _answer(process, batch)
        finally:
            idle.put(process)

    try:
        for _ in range(count):
            processes.append(process := _start())
            _send(process, (dataset, cells, lease))
            idle.put(process)
        yield lambda batches: threads.map(merge, batches)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()  # it is idle, or its work is no longer wanted
        threads.shutdown()
        for process in processes:
            with suppress(BrokenPipeError):  # what a killed process did not read
                process.__exit__(None, None, None)


def use_system_memory() -> None:
    """Let Arrow take memory from the system in this process: its own pool keeps what is freed, and is no faster here."""
    pa.set_memory_pool(pa.system_memory_pool())


def _merged(dataset: Path, number: int, batch: list[Found], cells: dict[str, set[str]], lease: Path) -> Refused:
    large = any(record.size > _LARGE for record in batch)
    if large:
        pa.default_memory_pool().release_unused()  # what the batches before it needed
    refused = merge_batch(dataset, number, batch, cells, lease)
    if large:
        pa.default_memory_pool().release_unused()
    return refused


def _start() -> subprocess.Popen[bytes]:
    words = [sys.executable, "-P", "-m", __name__]  # -P: not from the working directory
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | path)


def _send(process: subprocess.Popen[bytes], value: Any) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it was killed, and so gives no answer
        pickle.dump(value, process.stdin)
        process.stdin.flush()


def _answer(process: subprocess.Popen[bytes], batch: Batch) -> Refused:
    assert process.stdout is not None
    _send(process, batch)
    try:
        refused, error = pickle.load(process.stdout)  # of this program, not of a stranger
    except (EOFError, pickle.UnpicklingError):
        raise HpcrlError(
            "a process that read records was killed, perhaps for lack of memory: try --processes 1"
        ) from None
    if error is not None:
        raise error
    result: Refused = refused
    return result


# --- in a process that reads


def main() -> None:
    """Merge batches until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that collects handles Ctrl-C
    die_with_parent()  # else it would write a part into a dataset that another process holds meanwhile
    use_system_memory()
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a library must not mix with the answers
    dataset, cells, lease = pickle.load(requests)
    while True:
        try:
            number, batch = pickle.load(requests)
        except EOFError:
            return
        try:
            answer: tuple[Refused, Exception | None] = _merged(dataset, number, batch, cells, lease), None
        except Exception as error:
            answer = {}, error
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
