"""Find the new records of any number of plans, some of which may be copies of one plan."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcrl.errors import HpcrlError
from hpcrl.formats.files import open_of_stranger
from hpcrl.formats.plan import RECORDS, Plan
from hpcrl.formats.record import SUFFIX, read_frames


class Found(NamedTuple):
    """A record that is new or has changed. There may be 100,000, so it has only what cannot be computed."""

    plan: str
    folder: str
    file_name: str
    size: int
    time: int

    @property
    def name(self) -> str:
        """Its name in the dataset."""
        return f"{self.plan}/{self.file_name}"

    @property
    def file(self) -> str:
        return f"{self.folder}/{self.file_name}"


class Refusal(NamedTuple):
    """A file that was left out. There may be 100,000 of them, too."""

    plan: str
    folder: str
    file_name: str
    reason: str
    kind: str = ""  # "strange" if it is not a regular file, "conflict" if another copy of the plan has another one

    @property
    def record(self) -> str:
        """Its name in the dataset, or one of its own if it cannot be in a dataset."""
        own = f" in {self.folder.rpartition('/')[0]}" if self.kind else ""
        return f"{self.plan}/{self.file_name}{own}"

    @property
    def file(self) -> str:
        return f"{self.folder}/{self.file_name}"

    @property
    def entry(self) -> dict[str, str]:
        """The entry in ``quarantine.json``."""
        entry = {"record": self.record, "file": self.file, "reason": self.reason}
        return entry | ({self.kind: "yes"} if self.kind else {})

    @classmethod
    def of(cls, entry: dict[str, str]) -> Refusal:
        folder, _, name = entry["file"].rpartition("/")
        kind = next((kind for kind in ("strange", "conflict") if kind in entry), "")
        return cls(entry["record"].partition("/")[0], folder, name, entry["reason"], kind)


def find(opened: Sequence[tuple[Path, Plan]], known: Mapping[str, list[Any]]) -> tuple[list[Found], int, list[Refusal]]:
    """Return the records that are new or have changed, the number of the others, and the files that cannot be records.

    The latter are not regular files, or conflicts between copies of a plan.

    Copies of a plan directory have two files for one record. If one continues the other, the longer one counts. So it does if the dataset has
    it from an earlier call.

    Args:
        known: size, time of change and part of each record of the dataset; no part: it was refused.
    """
    records: dict[str, dict[str, Found]] = {}
    odd: list[Refusal] = []
    for directory, plan in opened:
        folder = str(directory / RECORDS)
        own = records.setdefault(plan.id, {})
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))  # noqa: PTH208, of 100,000 files
        except FileNotFoundError:
            continue
        except OSError as error:
            raise HpcrlError(f"{folder}: cannot be read: {error.strerror}") from None
        for name in names:
            try:
                about = os.lstat(f"{folder}/{name}")
            except FileNotFoundError:
                continue
            record = Found(plan.id, folder, name, about.st_size, about.st_mtime_ns)
            if not stat.S_ISREG(about.st_mode):
                odd.append(Refusal(*record[:3], f"is {_kind(about.st_mode)}, not a regular file", "strange"))
                continue
            other = own.setdefault(name, record)
            if other is not record:
                shorter, longer = (record, other) if record.size <= other.size else (other, record)
                if _goes_on(shorter, longer):
                    own[name] = longer
                else:
                    reason = f"differs from {other.file}, which has the same name: one of them was changed by hand"
                    odd.append(Refusal(*record[:3], reason, "conflict"))
    every = [record for own in records.values() for record in own.values()]
    fresh = [record for record in every if _has_changed(record, known.get(record.name))]
    return fresh, len(every) - len(fresh), odd


def _has_changed(record: Found, before: Sequence[Any] | None) -> bool:
    """Tell whether a record is not in the dataset as it is here. An older copy of one that the dataset has does not count.

    A record grows. It gets shorter only if a footer replaces what was half-written when its writer was killed.
    """
    if before is None:
        return True
    size, time, part = before
    if part is None or record.size >= size:
        return [record.size, record.time] != [size, time]
    return record.time > time and _has_footer(record)


def _has_footer(record: Found) -> bool:
    try:
        return any(True for _ in read_frames(record.file, frozenset({"footer"})))
    except Exception:
        return True  # it was damaged since: reading it tells why


def _goes_on(shorter: Found, longer: Found) -> bool:
    try:
        with open_of_stranger(Path(shorter.file), "rb") as first, open_of_stranger(Path(longer.file), "rb") as second:
            while block := first.read(2**20):
                if block != second.read(len(block)):
                    return False
    except OSError:
        return False
    return True


def _kind(mode: int) -> str:
    kinds = {stat.S_ISLNK: "a symbolic link", stat.S_ISDIR: "a directory", stat.S_ISFIFO: "a FIFO"}
    return next((name for test, name in kinds.items() if test(mode)), "a device or socket")
