"""The section of one study on the page: what was compared, findings, table, figures, problems, provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from hpcrl.formats.runs import cores
from hpcrl.report import core_uses, energy, settings
from hpcrl.report.advice import advice
from hpcrl.report.axes import axes as axes_of
from hpcrl.report.axes import of_algorithms, values
from hpcrl.report.baseline import Change
from hpcrl.report.claims import Verdict, verdicts
from hpcrl.report.comparison import Table, for_page
from hpcrl.report.design import counted, display, enumerated, spread
from hpcrl.report.figures import Figures, figures
from hpcrl.report.figures.papers.data import PaperTable, asked_of
from hpcrl.report.figures.search import figures as search_figures
from hpcrl.report.findings import findings
from hpcrl.report.groups import Line, lines, with_groups
from hpcrl.report.machines import in_one_line, measuring, not_idle, provenance, uneven
from hpcrl.report.names import base
from hpcrl.report.profiles import Profiled
from hpcrl.report.scaling import Series, in_words, scaling, sizes
from hpcrl.report.score import Score, score_of
from hpcrl.report.search import search_of
from hpcrl.report.summary import sentences
from hpcrl.report.topologies import Role, roles
from hpcrl.report.videos import Clips
from hpcrl.spec.library import Library

MOST_PROBLEMS = 200  # cells that did not complete, on the page; cells.csv has them all
MOST_SERIES = 20  # of scaling that have a sentence
_MOST_NAMES = 8
_MOST_VALUES = 6
# The beginnings of why a part of a paper has no runs.
_NOT_RUN = ("not run", "no part of it was run", "no run ", "no cell with a GPU was run")


@dataclass(frozen=True)
class Section:
    """The section of a study.

    Args:
        compared: what was compared, in one sentence; ran_on: the machines; failed: cells that did not complete or were not run.
        scaling: gain and cost of more cores, and which use of them pays, in sentences; series: the same as numbers.
        search: the trials of a search for hyperparameters, in sentences.
        profiled: the attempts under a profiler, which are in no comparison.
        claims: the claims of the paper with the measurements; empty for a study without known claims.
        no_claims: that the study's paper has no file of claims, "" otherwise.
        videos: those of trained agents, if they are wanted.
        roles: the utilisation of learners and actors; empty without actors.
        paper_table: the paper's numbers beside those of all its studies, in the section of the first of these.
    """

    study: str
    title: str
    compared: str
    ran_on: str
    failed: str
    findings: list[str]
    lines: list[Line]
    table: Table
    score: Score
    score_level: float | None
    sentences: list[str]
    scaling: list[str]
    series: list[Series]
    search: list[str]
    profiled: Profiled
    advice: list[str]
    figures: Figures
    problems: list[dict[str, Any]]
    more_problems: int
    notes: list[str]
    compiled: list[tuple[str, str]]
    collectives: list[tuple[str, str]]
    provenance: list[dict[str, str]]
    measuring: str
    energy: str
    changes: list[Change] = field(default_factory=list)
    claims: list[Verdict] = field(default_factory=list)
    no_claims: str = ""
    videos: Clips | None = None
    roles: list[Role] = field(default_factory=list)
    paper_table: PaperTable | None = None


def make_section(
    name: str,
    rows: pd.DataFrame,
    tables: Mapping[str, pd.DataFrame],
    study: dict[str, Any],
    library: Library,
    grid_intensity: float | None = None,
    attempts: pd.DataFrame | None = None,
    profiled: Profiled | None = None,
) -> Section:
    """Sum up one study.

    Args:
        rows: its attempts with the columns of `with_groups`, and `shared`.
        tables: `episodes`, `samples` and `phases` of the dataset.
        study: its entry in the dataset's index.
        library: the search path for claims of papers.
        grid_intensity: grams of CO2 equivalent per kilowatt-hour, to estimate emissions.
        attempts: all of the study as the dataset has them: also the trials of its search, and what ran under a profiler.
        profiled: its attempts under a profiler.
    """
    attempts = rows if attempts is None else attempts
    searched = search_of(attempts, tables["episodes"], study) if study.get("search") else None
    score = score_of(study, rows, tables["episodes"])
    series = scaling(rows, sizes(study))
    compared = lines(rows)
    axes = axes_of(rows)
    drawn = figures(
        rows,
        **tables,
        study=study,
        score=score,
        series=series,
        searched=searched,
        dispatched=profiled.updates if profiled else None,
    )
    bad = rows[rows["outcome"] != "completed"]
    columns = ["cluster", "what", "where", "seed", "outcome", "reason", "cell"]
    return Section(
        study=name,
        title=str(study.get("title") or name),
        compared=_compared(rows, axes, compared, score.runs) + settings.in_words(rows, score.trains),
        ran_on=in_one_line(rows),
        failed=failed(rows, attempts, study, drawn.empty),
        findings=findings(rows, score, series),
        lines=compared,
        table=for_page(compared, rows, axes, score, not score.command and study.get("goal") is not None),
        score=score,
        score_level=min(
            (line.final.level for line in compared if line.final and line.final.low is not None), default=None
        ),
        sentences=sentences(rows, score),
        scaling=[*in_words(series, most=MOST_SERIES), *core_uses.in_words(rows)],
        series=series,
        search=searched.sentences if searched else [],
        profiled=profiled or Profiled(),
        advice=advice(rows, score.trains),
        figures=drawn,
        problems=[
            {str(key): value for key, value in row.items()}
            for row in bad[columns]
            .head(MOST_PROBLEMS)
            .astype(object)
            .where(bad[columns].notna(), "")
            .to_dict("records")
        ],
        more_problems=max(0, len(bad) - MOST_PROBLEMS),
        notes=_notes(rows),
        compiled=_said(rows, "compiled"),
        collectives=_said(rows, "collective"),
        provenance=provenance(rows, score.trains),
        measuring=measuring(rows),
        energy=energy.in_words(rows, grid_intensity),
        claims=verdicts(rows, **tables, name=name, study=study, library=library),
        no_claims=library.no_claims(str(study.get("paper") or "")),
        roles=roles(rows, tables["phases"]),
    )


def search_section(
    name: str, trials: pd.DataFrame, tables: Mapping[str, pd.DataFrame], study: dict[str, Any]
) -> Section:
    """Sum up a study whose search has no run of its best configuration yet: its trials are no result, and are compared with nothing.

    Args:
        trials: attempts of the study as the dataset has them. The others are those of :func:`make_section`.
    """
    searched = search_of(trials, tables["episodes"], study)
    rows = with_groups(trials.assign(shared=False))
    score = score_of(study, rows, tables["episodes"])
    return Section(
        study=name,
        title=str(study.get("title") or name),
        compared="The trials of a search for hyperparameters, which are no result.",
        ran_on=in_one_line(rows),
        failed="Its best configuration has not been run on other seeds yet.",
        findings=[],
        lines=[],
        table=Table([], []),
        score=score,
        score_level=None,
        sentences=[],
        scaling=[],
        series=[],
        search=searched.sentences if searched else [],
        profiled=Profiled(),
        advice=[],
        figures=Figures(None, [], [], search_figures(searched) if searched else [], [], []),
        problems=[],
        more_problems=0,
        notes=_notes(rows),
        compiled=[],
        collectives=[],
        provenance=provenance(rows, score.trains),
        measuring=measuring(rows),
        energy="",
    )


def _compared(rows: pd.DataFrame, axes: pd.DataFrame, compared: list[Line], runs: str) -> str:
    """Return the differences of the cells in words: number of configurations, and their axes."""
    parts = []
    for name in axes.columns:
        told = [display(value) for value in values(axes[name])]
        label = str(name).replace("_", " ")
        if len(told) > _MOST_VALUES:
            parts.append(f"{len(told)} values of {label} from {told[0]} to {told[-1]}")
        else:
            parts.append(f"{label} ({', '.join(told)})")
    seeds = rows.groupby(["cluster", "what", "where"])["seed"].nunique()
    few, many = int(seeds.min()), int(seeds.max())
    of_seeds = f"{few} to {many} {runs}" if few != many else counted(many, runs.removesuffix("s"))
    text = f"{counted(len(compared), 'configuration')} with {of_seeds} each, {counted(len(rows), 'cell')} in all"
    of_each = of_algorithms(rows).items()
    settled = "".join(f" {display(name)} with {_in_a_list(settings)}." for name, settings in of_each if settings)
    of_names = base([json.loads(config) for config in rows["config"]])
    return f"{text}{': ' if parts else ''}{'; '.join(parts)}.{settled}{' ' if of_names else ''}{of_names}"


def _in_a_list(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def failed(
    rows: pd.DataFrame, attempts: pd.DataFrame, study: Mapping[str, Any], empty: Sequence[tuple[str, str]]
) -> str:
    """Say which cells did not complete, and what was not run.

    Args:
        rows: attempts of one study with the columns of `with_groups`; attempts: all of its attempts.
        study: its entry in the dataset's index.
        empty: title and reason of each figure of its paper that has no values.
    """
    bad = rows[rows["outcome"] != "completed"]
    if bad.empty:
        text = f"All {len(rows):,} cells completed." if len(rows) > 1 else "The cell completed."
    else:
        names = (bad["what"] + " on " + bad["where"]).value_counts()
        told = [f"{name} ({number:,})" for name, number in list(names.items())[:_MOST_NAMES]]
        more = f" and {len(names) - _MOST_NAMES:,} more configurations" if len(names) > _MOST_NAMES else ""
        outcomes = spread({str(name): int(number) for name, number in bad["outcome"].value_counts().items()})
        text = f"{len(bad):,} of {len(rows):,} cells did not complete ({outcomes}): {', '.join(told)}{more}."
    if waiting := _not_begun(attempts, study):
        text += f" {waiting}"
    if sizes := _not_run(attempts, study):
        text += f" Not run: cells of {', '.join(sizes)}."
    missing = [(title.partition(":")[0], why.startswith(_NOT_RUN)) for title, why in empty]
    for what, is_not_run in (("runs", True), ("values", False)):
        if parts := [title for title, not_run in missing if not_run == is_not_run]:
            text += f" No {what} for these parts of the paper: {', '.join(parts)}."
    small = rows[rows["crowded"]]
    if len(small):
        threads = " or ".join(f"{int(number):,}" for number in sorted(small["threads"].unique()))
        text += (
            f" {counted(len(small), 'cell')} had more cores to use than the machine has ({threads} threads), "
            "as on a simulated cluster. Their times say nothing about so many cores: scaling and the paper's claims about times and CPU leave them out."
        )
    return " ".join([text, *uneven(rows), *not_idle(rows)])


def _not_begun(attempts: pd.DataFrame, study: Mapping[str, Any]) -> str:
    """Say how many cells of the study's only plan have no attempt; of several plans, which may share cells, that is not known."""
    planned = study.get("planned") or {}
    if len(planned) != 1:
        return ""
    ((plan, number),) = planned.items()
    missing = number - attempts.loc[attempts["plan"] == plan, "cell"].nunique()
    return f"{missing:,} of the {counted(number, 'cell')} of its plan have not been run." if missing > 0 else ""


def _not_run(attempts: pd.DataFrame, study: Mapping[str, Any]) -> list[str]:
    """Name the cores and GPUs of the cells of which not one was run."""
    ran = set(zip(cores(attempts), attempts["gpus"].fillna(0), strict=True))
    missing = [size for size in asked_of(study) if size not in ran]
    told = [counted(number, "core") + (f" with {counted(gpus, 'GPU')}" if gpus else "") for number, gpus in missing]
    more = [f"{len(told) - _MOST_NAMES:,} more sizes"] if len(told) > _MOST_NAMES else []
    return told[:_MOST_NAMES] + more


def _notes(rows: pd.DataFrame) -> list[str]:
    """Return the notes of records, each with its number of cells."""
    notes = rows["notes"].dropna().value_counts()
    told = [f"{text} ({counted(int(number), 'cell')})" for text, number in notes.head(20).items()]
    if repeated := int((rows["repeats"] > 1).sum()):
        told.append(
            f"run in several plans or software environments; the latest run counts ({counted(repeated, 'cell')})"
        )
    if shared := int(rows["shared"].sum()):
        told.append(f"ran beside another cell on the same machine ({counted(shared, 'cell')})")
    return told


def _said(rows: pd.DataFrame, column: str) -> list[tuple[str, str]]:
    """Return each text of a column with the configurations that have it, of many only their number; with their place if ranks average."""
    have: dict[str, set[str]] = {}
    for row in rows[rows[column].notna()][["what", "parallelism", column]].drop_duplicates().to_dict("records"):
        who = f"{row['what']}, {display(row['parallelism'])}" if column == "collective" else row["what"]
        have.setdefault(str(row[column]), set()).add(str(who))
    few = {
        text: enumerated(sorted(names)) if len(names) <= _MOST_NAMES else f"{len(names)} configurations"
        for text, names in have.items()
    }
    return sorted((names, text) for text, names in few.items())
