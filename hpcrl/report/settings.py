"""What studies set for all of their cells: what is common to a study, and what differs between its plans."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pandas as pd

from hpcrl.report.design import display

_MOST = 12  # settings in a sentence
_FIRST = ("algorithm", "command", "environment", "max_episode_steps", "total_steps")
_LONGEST = 60  # characters of a value


def with_differences(cells: pd.DataFrame) -> pd.DataFrame:
    """Return attempts with those settings in `config` that differ within their study: plans that differ in them are no repeats of each other.

    Attempts whose settings are not known, from datasets of older versions, stay as they are.
    """
    if "settings" not in cells or cells["settings"].isna().all():
        return cells
    configs = cells["config"].astype(object).copy()
    for _, of_study in cells[cells["settings"].notna()].groupby("study", observed=True):
        differing = _differing(of_study["settings"].unique())
        for (config, settings), rows in of_study.groupby(["config", "settings"], observed=True) if differing else ():
            own, known = json.loads(str(config)), json.loads(str(settings))
            added = {name: _plain(known[name]) for name in differing if name in known and name not in own}
            configs[rows.index] = json.dumps(own | added, sort_keys=True)
    return cells.assign(config=configs)


def in_words(rows: pd.DataFrame, steps: bool) -> str:
    """Say what all attempts of a study have in common, "" if that is not known.

    Args:
        steps: whether to tell the environment steps of the runs, if the study does not set them.
    """
    known = [json.loads(text) for text in _texts(rows)]
    if not known:
        return ""
    axes = {name for text in rows["config"].unique() for name in json.loads(text)}
    common = {
        name: value
        for name, value in known[0].items()
        if name not in axes and all(config.get(name) == value for config in known)
    }
    ran = rows["steps"].dropna().unique()
    if steps and len(ran) == 1 and not any("total_steps" in names for names in (axes, *known)):
        common["total_steps"] = int(ran[0])
    names = [name for name in _FIRST if name in common] + sorted(set(common) - set(_FIRST))
    told = [f"{name.replace('_', ' ')} {_in_words(common[name])}" for name in names[:_MOST]]
    more = f" and {len(names) - _MOST} more settings" if len(names) > _MOST else ""
    return f" All with {', '.join(told)}{more}." if told else ""


def changed(new: pd.DataFrame, old: pd.DataFrame) -> str:
    """Say which settings of a line differ from those of the same line of an older dataset; "" if none does, or if they are not known."""
    here, there = (set(_texts(rows)) for rows in (new, old))
    if not here or not there or here & there:
        return ""
    after, before = json.loads(min(here)), json.loads(min(there))
    axes = {name for rows in (new, old) for text in rows["config"].unique() for name in json.loads(text)}
    names = [name for name in sorted({*after, *before} - axes) if after.get(name) != before.get(name)]
    return ", ".join(f"{name} was {_or_none(before.get(name))} and is {_or_none(after.get(name))}" for name in names)


def _texts(rows: pd.DataFrame) -> list[str]:
    return list(rows["settings"].dropna().unique()) if "settings" in rows else []


def _differing(texts: Iterable[str]) -> list[str]:
    known = [json.loads(text) for text in texts]
    names = sorted({name for config in known for name in config})
    return [name for name in names if any(config.get(name) != known[0].get(name) for config in known)]


def _plain(value: Any) -> Any:
    """Return a value as an axis has it: a number, a truth value or a text."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


def _in_words(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = display(_plain(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _or_none(value: Any) -> str:
    return "not set" if value is None else _in_words(value)
