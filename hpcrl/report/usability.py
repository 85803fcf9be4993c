"""What a framework costs its user, as one table: one row per environment and execution mode, medians over runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

import pandas as pd

from hpcrl.catalogue.registry import algorithms, frameworks
from hpcrl.formats.usability import Measurement, Usability
from hpcrl.report import spreadsheet
from hpcrl.report.comparison import NOTHING
from hpcrl.report.design import counted, in_short

_FAILED = "why a run failed"
WORDS = ("framework", "mode", "device", "the traceback names the page", "last line of the traceback", _FAILED)
_UNKNOWN = "not recorded"
_IF_DIFFERENT = ("device",)  # left out if equal in all rows


@dataclass(frozen=True)
class UsabilityTable:
    """The table on the page: columns with information, rows, and where and how often was measured, in one sentence."""

    columns: list[str]
    rows: list[list[str]]
    measured: str
    words: tuple[str, ...] = WORDS


def usability_table(measured: Usability) -> UsabilityTable:
    """Return the table of some measurements. Columns without any value are left out."""
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for run in measured.runs:
        groups.setdefault((run.environment, run.device, run.execution), []).append(run)
    rows = [_row(runs) for runs in groups.values()]
    ran = {(environment, mode): row for (environment, _, mode), row in zip(groups, rows, strict=True)}
    for failure in measured.failures:
        if (failure.environment, failure.execution) not in ran:
            rows.append({"framework": _title(failure.framework), "mode": failure.execution})
        ran.get((failure.environment, failure.execution), rows[-1])[_FAILED] = failure.reason
    names = list(dict.fromkeys(name for row in rows for name in row))
    rows = [{name: row.get(name, NOTHING) for name in names} for row in rows]
    empty = [name for name in names if all(row[name] in (NOTHING, _UNKNOWN) for row in rows)]
    equal = [name for name in _IF_DIFFERENT if len({row.get(name) for row in rows} - {NOTHING}) == 1]
    names = [name for name in names if name not in (*empty, *equal)]
    counts = sorted({len(runs) for runs in groups.values()})
    runs = counted(counts[0], "run") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs" if counts else ""
    told = f"Medians of {runs}, each in new processes," if runs else "No run succeeded"
    where = f"{measured.machine.get('cpu') or 'an unknown processor'}, one thread"
    if len(devices := {run.device for run in measured.runs}) == 1 and (device := devices.pop()) != "cpu":
        where += f", {device}"
    text = f"{told} on {where}, by hpcrl {measured.hpcrl}."
    return UsabilityTable(names, [[row[name] for name in names] for row in rows], text)


def to_csv(measured: Usability) -> str:
    """Return every run as plain numbers, with units in the names of the columns. A failed run has its `reason` only."""
    rows = [vars(run) | {"lines": sum(run.lines.values())} for run in measured.runs]
    frame = pd.DataFrame(rows)
    if measured.failures:  # whole numbers stay so beside missing ones
        frame = pd.DataFrame([*rows, *map(vars, measured.failures)]).convert_dtypes()
    return spreadsheet.to_csv(frame.rename(columns={"size": "size_bytes", "peak_memory": "peak_memory_bytes"}))


def _row(runs: list[Measurement]) -> dict[str, str]:
    """Return a row; files and tracebacks are the same in every run."""
    last = runs[-1]

    def middle(value: Callable[[Measurement], float], scale: float = 1.0) -> str:
        return in_short(scale * median(map(value, runs)))

    pages = {name: lines for name, lines in last.lines.items() if name.removeprefix("fused_") in algorithms()}
    built = _UNKNOWN if last.build_seconds is None else in_short(last.build_seconds)
    return {
        "framework": f"{_title(last.framework)} {last.version}",
        "mode": last.execution,
        "device": last.device,
        "environment (MiB)": in_short(last.size / 2**20),
        "build (s)": built,
        "import (s)": middle(lambda measured: measured.import_seconds),
        "first update (s)": middle(lambda measured: measured.first_update_seconds),
        "later update (ms)": middle(lambda measured: measured.update_seconds, 1e3),
        "peak memory (MiB)": middle(lambda measured: measured.peak_memory, 2**-20),
        "lines: shared": _lines(value for name, value in last.lines.items() if name not in pages),
        "lines: algorithms": _lines(pages.values()),
        "traceback (lines)": str(last.traceback_lines),
        "traceback (characters)": f"{last.traceback_characters:,}",
        "the traceback names the page": "yes" if last.names_page else "no",
        "last line of the traceback": last.traceback_end,
    }


def _title(framework: str) -> str:
    entry = frameworks().get(framework)
    return entry.title if entry else framework


def _lines(values: Iterable[int]) -> str:
    return f"{total:,}" if (total := sum(values)) else NOTHING
