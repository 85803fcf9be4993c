"""The axes of a study as columns, by which a large study is searched, filtered, grouped and drawn."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from hpcrl.report.design import digits_of, natural
from hpcrl.report.groups import kinds
from hpcrl.report.names import FIRST

_RESOURCES = ("cluster", "cpus", "gpus", "gpu_type", "nodes", "tasks", "parallelism")
_COUNTED = {"cpus": "cores", "tasks": "ranks"}


def axes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a column for each axis with several values in the cells of a study, in the order of the study.

    Resources are axes, too, and so is the machine where cells with the same kind of GPU, or without one, ran on several kinds; the seed is no axis,
    and neither is what :func:`of_algorithms` tells.

    Args:
        rows: cells of one study with the columns of `with_groups`.
    """
    table = _settings(rows)
    table = table.drop(columns=_of_algorithms(table))
    for name in _RESOURCES:
        if name not in table:
            told = _COUNTED.get(name, name)
            table[name if told in table else told] = rows[name]  # a command may have an axis of that name
    if "machine" not in table:
        table["machine"] = [text[2:-1] or None for text in machine_kinds(rows)]
    several = [name for name in table.columns if table[name].nunique(dropna=False) > 1]
    return table[sorted(several, key=lambda name: name not in ("framework", "execution"))]


def of_algorithms(rows: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Return the settings of each algorithm, if there are several, that differ between algorithms and have one value for each."""
    table = _settings(rows)
    names = _of_algorithms(table)
    told = table[names].apply(texts_of) if names else table[names]
    return {
        str(algorithm): {name: told.loc[own.index[0], name] for name in names if own[name].notna().all()}
        for algorithm, own in (table.groupby("algorithm") if names else ())
    }


def _settings(rows: pd.DataFrame) -> pd.DataFrame:
    flat = [
        {
            name: value
            for name, value in json.loads(text).items()
            if name != "seed" and not isinstance(value, dict | list)
        }
        for text in rows["config"]
    ]
    return pd.DataFrame(flat, index=rows.index)


def _of_algorithms(table: pd.DataFrame) -> list[str]:
    if "algorithm" not in table or table["algorithm"].isna().any() or table["algorithm"].nunique() < 2:
        return []
    several = [name for name in table.columns if name not in FIRST and table[name].nunique(dropna=False) > 1]
    values_of_one = table.groupby("algorithm")[several].nunique(dropna=False).max()
    return [name for name in several if values_of_one[name] == 1]


def machine_kinds(rows: pd.DataFrame) -> pd.Series[str]:
    """Return the kind of each cell's machine, in brackets after a space, where cells of a cluster with the same kind of GPU, or without one, ran on several."""
    device = rows["gpu_type"].fillna("any").where(rows["gpus"] > 0, "none")
    return kinds(rows.assign(device=device), ["cluster", "device"])


def numeric(table: pd.DataFrame, fewest: int = 3) -> list[str]:
    """Return the axes with at least `fewest` values that are all numbers, those with the most values first."""
    names = [
        str(name)
        for name in table.columns
        if pd.api.types.is_numeric_dtype(table[name])
        and not pd.api.types.is_bool_dtype(table[name])
        and table[name].notna().all()
        and table[name].nunique() >= fewest
    ]
    return sorted(names, key=lambda name: -table[name].nunique())


def values(column: pd.Series[Any]) -> list[str]:
    """Return the values of an axis as text, in natural order."""
    return sorted(set(texts_of(column)), key=natural)


def texts_of(column: pd.Series[Any]) -> list[str]:
    """Return the text of each row's value of an axis. Numbers have six digits, and more only if they distinguish values."""
    digits = digits_of(column.unique())
    return [_text_of(value, digits) for value in column]


def _text_of(value: object, digits: int) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return str(value)
