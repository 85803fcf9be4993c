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
            known = {text: harmless(text) for text in values if isinstance(text, str)}
            if any(text is not new for text, new in known.items()):
                changed[name] = values.map(harmless)
    result = table.assign(**changed) if changed else table
    return str(result.rename(columns=harmless).to_csv(index=False))
