"""Which records are new: of any number of plans, copies of plans among them."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    """Return the records that are new or have grown, how many others there are, and conflicts among copies of a plan.

    Of two files for one record, as copies of a plan directory have, the one that goes on from the other counts.
    """
    found: dict[str, Found] = {}
    conflicts = {}
    for directory, plan in opened:
        try:
            entries = sorted(os.scandir(directory / RECORDS), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        for entry in entries:
            if not entry.name.endswith(SUFFIX):
                continue
            stat = entry.stat()
            each = Found(f"{plan.id}/{entry.name}", entry.path, stat.st_size, stat.st_mtime_ns, plan.id)
            other = found.setdefault(each.name, each)
            if other is not each:
                shorter, longer = (each, other) if each.size <= other.size else (other, each)
                if _goes_on(shorter, longer):
                    found[each.name] = longer
                else:
                    reason = f"differs from {other.file}, which has the same name: one of them was changed by hand"
                    key = f"{each.name} in {directory}"
                    conflicts[key] = {**refusal(each, reason), "record": key, "conflict": "yes"}
    fresh = [each for each in found.values() if known.get(each.name, [None, None])[:2] != [each.size, each.time]]
    return fresh, len(found) - len(fresh), conflicts


def _goes_on(shorter: Found, longer: Found) -> bool:
    if shorter.size == longer.size:
        return filecmp.cmp(shorter.file, longer.file, shallow=False)
    with Path(shorter.file).open("rb") as first, Path(longer.file).open("rb") as second:
        while block := first.read(2**20):
            if block != second.read(len(block)):
                return False
    return True


def refusal(found: Found, reason: str) -> dict[str, str]:
    return {"record": found.name, "file": found.file, "reason": reason}
