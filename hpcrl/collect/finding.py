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
from hpcrl.formats.record import SUFFIX


class Found(NamedTuple):
    """A record that is new or has grown: its name in the dataset, its file, size and time, its plan."""

    name: str
    file: str
    size: int
    time: int
    plan: str

    @property
    def file_name(self) -> str:
        return self.name.partition("/")[2]


def find(
    opened: Sequence[tuple[Path, Plan]], known: Mapping[str, list[Any]]
) -> tuple[list[Found], int, dict[str, dict[str, str]]]:
    """Return the records that are new or have grown, the number of the others, and the entries that cannot be records.

    The latter are entries that are not regular files, and conflicts between copies of a plan.

    Copies of a plan directory have two files for one record. If one continues the other, the longer one counts.
    """
    found: dict[str, Found] = {}
    odd: dict[str, dict[str, str]] = {}
    for directory, plan in opened:
        folder = directory / RECORDS
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))  # noqa: PTH208, of 100,000 files
        except FileNotFoundError:
            continue
        except OSError as error:
            raise HpcrlError(f"{folder}: cannot be read: {error.strerror}") from None
        for name in names:
            path = f"{folder}/{name}"
            try:
                about = os.lstat(path)
            except FileNotFoundError:
                continue
            each = Found(f"{plan.id}/{name}", path, about.st_size, about.st_mtime_ns, plan.id)
            if not stat.S_ISREG(about.st_mode):
                key = f"{each.name} in {directory}"
                odd[key] = {
                    **refusal(each, f"is {_kind(about.st_mode)}, not a regular file"),
                    "record": key,
                    "strange": "yes",
                }
                continue
            other = found.setdefault(each.name, each)
            if other is not each:
                shorter, longer = (each, other) if each.size <= other.size else (other, each)
                if _goes_on(shorter, longer):
                    found[each.name] = longer
                else:
                    reason = f"differs from {other.file}, which has the same name: one of them was changed by hand"
                    key = f"{each.name} in {directory}"
                    odd[key] = {**refusal(each, reason), "record": key, "conflict": "yes"}
    fresh = [each for each in found.values() if known.get(each.name, [None, None])[:2] != [each.size, each.time]]
    return fresh, len(found) - len(fresh), odd


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


def refusal(found: Found, reason: str) -> dict[str, str]:
    return {"record": found.name, "file": found.file, "reason": reason}
