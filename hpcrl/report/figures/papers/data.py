"""What a paper's figures are made of, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from hpcrl.errors import count
from hpcrl.report.figures.drawing import Figure

Empty = tuple[str, str]  # title of a figure without values, and the reason
SEVERAL = "a name of the paper means several configurations of this study"


@dataclass(frozen=True)
class PaperData:
    """The runs of a study, for its paper's figures.

    Args:
        rows: attempts with the columns of `with_groups`, and `shared`: whether another cell ran on the machine at the same time.
        episodes, samples, phases: tables of the dataset.
        goal: the study's goal.
        asked: cores and GPUs of its cells, also of those that were not run; nothing in older datasets.
    """

    rows: pd.DataFrame
    episodes: pd.DataFrame
    samples: pd.DataFrame
    goal: float | None = None
    phases: pd.DataFrame = field(default_factory=pd.DataFrame)
    asked: tuple[tuple[int, int], ...] = ()


def asked_of(study: Mapping[str, object]) -> tuple[tuple[int, int], ...]:
    """Return the cores and GPUs of the cells of a study, from the dataset's index."""
    match study.get("asked"):
        case [*sizes]:
            pairs = [(size.get("cores"), size.get("gpus")) for size in sizes if isinstance(size, Mapping)]
            return tuple((cores, gpus) for cores, gpus in pairs if isinstance(cores, int) and isinstance(gpus, int))
    return ()


def of_one_kind(rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the runs on one kind of machine of each cluster, and how many others there are, in words ("" for none).

    Times on two kinds do not compare, and a seed that ran on both is one seed. The kind with the most completed runs counts, apart
    for cells with and without GPUs.
    """
    keys = ["cluster", "device"]
    own = rows.assign(device=rows["gpus"] > 0)
    done = own["outcome"] == "completed"
    most = own[done].groupby([*keys, "machine"]).size().sort_values(ascending=False, kind="stable")
    first = most.reset_index().drop_duplicates(keys)
    chosen = pd.MultiIndex.from_frame(own[[*keys, "machine"]]).isin(pd.MultiIndex.from_frame(first[[*keys, "machine"]]))
    kept = rows[chosen | ~done]
    left = len(rows) - len(kept)
    return kept, f" Left out: {count(left, 'run')} on other kinds of machines." if left else ""


def configurations(rows: pd.DataFrame, keys: Sequence[str]) -> pd.Series[int]:
    """Return of how many configurations of the study the completed runs with the `keys` of each row are.

    A paper has one name for them, but a study that extends the paper's may have several, which are not one line.

    Args:
        rows: attempts with `configuration`. keys: two or more columns.
    """
    done = rows[rows["outcome"] == "completed"]
    numbers = done.groupby(list(keys), observed=True)["configuration"].nunique().to_dict()
    return pd.Series([numbers.get(key, 0) for key in rows[[*keys]].itertuples(index=False, name=None)], rows.index, int)


def of_one_configuration(rows: pd.DataFrame, keys: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """Return the runs whose `keys` mean one configuration, and how many others there are, in words ("" for none)."""
    several = configurations(rows, keys) > 1
    left = int(several.sum())
    return rows[~several], f" Left out: {count(left, 'run')}, because {SEVERAL}." if left else ""


def at_home(rows: pd.DataFrame, home: str) -> pd.DataFrame:
    """Return the rows of one cluster: the paper's own if it was run, otherwise the first by name."""
    names = sorted(rows["cluster"].astype(str).unique(), key=lambda name: (not name.startswith(home), name))
    return rows[rows["cluster"] == names[0]] if names else rows


def one_of_each_seed(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the newest run of each seed of what has equal values `by`.

    A score does not depend on the machine: a seed that ran on two clusters or kinds of machines is one.
    """
    newest = rows.sort_values("started", kind="stable", na_position="first")
    return newest.drop_duplicates([*by, "seed"], keep="last").sort_index()


def with_text(figures: Iterable[Figure | Empty], text: str) -> Iterator[Figure | Empty]:
    """Add a text to the captions."""
    for figure in figures:
        yield replace(figure, text=figure.text + text) if isinstance(figure, Figure) else figure


@dataclass(frozen=True)
class PaperFigures:
    """The figures of a paper with values, and for the others: title and reason."""

    drawn: list[Figure]
    empty: list[Empty]


@dataclass(frozen=True)
class PaperTable:
    """A paper's numbers beside those of all its studies in a dataset: heads, rows, and what the columns mean."""

    heads: list[str]
    rows: list[list[str]]
    text: str
