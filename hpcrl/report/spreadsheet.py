"""CSV for spreadsheets, which do not read any value of it as a formula."""

from __future__ import annotations

import pandas as pd

_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r", "\n")


def harmless(value: object) -> object:
    """Return a value for a cell, with an apostrophe before text that a spreadsheet would run as a formula."""
    if not isinstance(value, str) or not value.startswith(_BEGINNINGS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def to_csv(table: pd.DataFrame) -> str:
    """Return a table as CSV without its index."""
    changed = {}
    for name in table.columns:
        values = table[name]
        if values.dtype == object or isinstance(values.dtype, pd.StringDtype):
            known = {each: harmless(each) for each in values if isinstance(each, str)}
            if any(each is not new for each, new in known.items()):
                changed[name] = values.map(harmless)
    found = table.assign(**changed) if changed else table
    return str(found.rename(columns=harmless).to_csv(index=False))
