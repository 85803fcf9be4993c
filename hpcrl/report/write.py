"""Write the report: one HTML file without external resources, figures as PNG, SVG and PDF, tables as CSV and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from hpcrl.errors import UsageError, suggestion
from hpcrl.formats.files import plain_name, write_atomically
from hpcrl.formats.tables import load_table, read_index
from hpcrl.formats.usability import read_usability
from hpcrl.report import against, spreadsheet
from hpcrl.report.baseline import SCORE, Change, compare, judge
from hpcrl.report.claims import Verdict
from hpcrl.report.comparison import for_terminal, to_csv, to_latex
from hpcrl.report.figures import papers
from hpcrl.report.figures.drawing import for_paper
from hpcrl.report.groups import with_groups
from hpcrl.report.machines import side_by_side
from hpcrl.report.page import render
from hpcrl.report.profiles import compared, profiles_of
from hpcrl.report.renderer import FORMATS, Renderer, RendererError
from hpcrl.report.scaling import as_frame
from hpcrl.report.score import Score
from hpcrl.report.search import without_trials
from hpcrl.report.sections import Section, make_section, search_section
from hpcrl.report.settings import with_differences
from hpcrl.report.topologies import to_csv as to_csv_of_roles
from hpcrl.report.usability import UsabilityTable, usability_table
from hpcrl.report.usability import to_csv as to_csv_of_usability
from hpcrl.report.videos import Player, clips, plans_by_id
from hpcrl.spec.document import display
from hpcrl.spec.library import Library

_OF_TRAINING = ("episodes", "precise_phases", "tensorboard", "calibration_environment", "evaluation_time")


@dataclass(frozen=True)
class Written:
    """The report's main file, its table for the terminal, the changes since the baseline, and the judged claims.

    `trouble` is the reason for missing figures, "" if none is missing. `notes` say which papers have no file of claims, and where it
    was looked for. `incomparable` is the reason why nothing could be compared with the baseline, "" if something was.
    """

    html: Path
    columns: list[str]
    rows: list[list[str]]
    changes: list[Change] = field(default_factory=list)
    claims: list[Verdict] = field(default_factory=list)
    trouble: str = ""
    notes: list[str] = field(default_factory=list)
    incomparable: str = ""


def write_report(
    dataset: Path,
    study: str | None,
    output: Path,
    formats: tuple[str, ...] = tuple(FORMATS),
    baseline: Path | None = None,
    library: Library | None = None,
    grid_intensity: float | None = None,
    usability: Path | None = None,
    videos: tuple[Path, ...] = (),
    play: Player | None = None,
) -> Written:
    """Write the report of a dataset, or of one of its studies.

    Args:
        formats: formats of the figures' files, from :data:`FORMATS`.
        baseline: an older dataset to compare with.
        library: the search path for templates.
        grid_intensity: grams of CO2 equivalent per kilowatt-hour, to estimate emissions.
        usability: a file of `hpcrl env measure`, for the table of what a framework costs its user.
        videos: plan directories whose trained agents are filmed by `play`.

    Raises:
        UsageError: the dataset or the study does not exist, or has no records yet, or `usability` is not such a file.
        HpcrlError: the report cannot be written.
    """
    library = library or Library()
    plans = plans_by_id(videos)
    measured = None if usability is None else read_usability(usability)
    cells = read_cells(dataset, study)
    with Renderer() as renderer:
        renderer.begin()
        sections, changes, incomparable = _judged(dataset, study, cells, library, baseline, grid_intensity)
        if play and plans:
            sections = [
                replace(section, videos=clips(cells[cells["study"] == section.study], plans, play))
                for section in sections
            ]
        html = output / "report.html"
        costs = None if measured is None else usability_table(measured)
        trouble = write_page(html, renderer, sections, library, baseline, costs)
        _write_tables(sections, cells, output)
        if measured is not None:
            write_atomically(output / "usability.csv", to_csv_of_usability(measured))
        for section in sections:
            missing = _write_figures(section, output, formats, renderer)
            trouble = trouble or missing
    every = [line for section in sections for line in section.lines]
    claims = [verdict for section in sections for verdict in section.claims]
    trains = any(section.score.trains for section in sections)
    with_goal = {section.study for section in sections if "at goal" in section.table.columns}
    notes = claims_notes(sections, library)
    return Written(html, *for_terminal(every, trains, with_goal), changes, claims, trouble, notes, incomparable)


def claims_notes(sections: Sequence[Section], library: Library) -> list[str]:
    """Say which papers of the studies have no file of claims, and where it was looked for."""
    looked = ", ".join(dict.fromkeys(map(display, library.path)))
    missing = dict.fromkeys(section.no_claims for section in sections if section.no_claims)
    return [f"{note} in {looked}: name another directory with --path" for note in missing]


def _judged(
    dataset: Path,
    study: str | None,
    cells: pd.DataFrame,
    library: Library,
    baseline: Path | None,
    grid_intensity: float | None,
) -> tuple[list[Section], list[Change], str]:
    """Sum up each study, and compare it with the baseline; also return why nothing could be compared, "" if something was."""
    sections = list(make_sections(dataset, cells, library, grid_intensity, study))
    if not baseline:
        return sections, [], ""
    older = read_cells(baseline, study)
    scores = {section.study: section.score for section in sections}
    changes = judge(
        [
            change
            for name, rows in cells.groupby("study", sort=True)
            for change in compare(rows, older[older["study"] == name], scores[str(name)].more_is_better)
        ]
    )
    changes = [change if scores[change.study].trains else _plain(change, scores[change.study]) for change in changes]
    told = []
    for section in sections:
        own = [change for change in changes if change.study == section.study]
        found = [*against.first_sentences(own, baseline), *section.findings]
        told.append(replace(section, changes=own, findings=found))
    return told, changes, against.incomparable(changes, cells, older, dataset, baseline)


def write_page(
    path: Path,
    renderer: Renderer,
    sections: Sequence[Section],
    library: Library,
    baseline: Path | None = None,
    usability: UsabilityTable | None = None,
) -> str:
    """Write the page of some studies. Return the reason if its figures cannot be drawn, otherwise ""."""
    bundle, trouble = "", ""
    try:
        bundle = renderer.bundle()
    except RendererError as error:
        trouble = f"{path}: has no figures: {error}"
    write_atomically(path, render(library, sections, baseline, bundle=bundle, usability=usability))
    return trouble


def _plain(change: Change, score: Score) -> Change:
    """Name the measure of a study that trains nothing."""
    names = {"training_time": "time of the command", SCORE: score.title}
    why = re.sub(r"\bseed(s?)\b", r"repeat\1", change.why)
    kind = change.kind.replace("seeds", "repeats")
    return replace(change, measure=names.get(change.column, change.measure), why=why, kind=kind)


def read_cells(dataset: Path, study: str | None) -> pd.DataFrame:
    """Return the newest attempts of a dataset, or of one of its studies, as `with_groups` does, and with `shared`.

    Attempts under a profiler are left out (:func:`hpcrl.report.profiles.compared`), and so are the trials of searches: nothing may be left.

    Raises:
        UsageError: the dataset or the study does not exist, or has no records yet.
    """
    cells = load_table(dataset, "cells")
    if study is not None:
        known = sorted(cells["study"].unique())
        if study not in known:
            raise UsageError(f"{dataset}: has no study {study!r}; {suggestion(study, known)}")
    # Cells of another study may have run beside these.
    cells = cells.assign(shared=side_by_side(cells, load_table(dataset, "samples")))
    if study is not None:
        cells = cells[cells["study"] == study]
    if cells.empty:
        raise UsageError(f"{dataset}: holds no attempt yet: run cells, then hpcrl collect")
    return with_groups(without_trials(compared(with_differences(cells)), read_index(dataset)["studies"]))


def make_sections(
    dataset: Path, cells: pd.DataFrame, library: Library, grid_intensity: float | None = None, study: str | None = None
) -> Iterator[Section]:
    """Sum up each study of a dataset, or one; `cells` are those of :func:`read_cells`, which have no trial of a search."""
    tables = {name: load_table(dataset, name) for name in ("episodes", "samples", "phases")}
    studies = read_index(dataset)["studies"]
    attempts, profiles = load_table(dataset, "cells"), load_table(dataset, "profiles")
    if attempts["profile"].notna().any():
        attempts = attempts.assign(shared=side_by_side(attempts, tables["samples"]))
    compared = dict(iter(cells.groupby("study", sort=True)))
    papers_of = {key: str(studies.get(key, {}).get("paper") or "") for key in compared}
    told: set[str] = set()
    for key in studies_of(dataset, cells, study):
        own, facts = attempts[attempts["study"] == key], studies.get(key, {})
        if key not in compared:
            yield search_section(key, own, tables, facts)
            continue
        profiled = profiles_of(own, compared[key], profiles)
        section = make_section(key, compared[key], tables, facts, library, grid_intensity, own, profiled)
        if (paper := papers_of[key]) not in told:
            told.add(paper)
            of_paper = cells[cells["study"].map(papers_of) == paper]
            section = replace(section, paper_table=papers.table(paper, of_paper))
        yield section


def studies_of(dataset: Path, cells: pd.DataFrame, study: str | None = None) -> list[str]:
    """Return the names of the studies that have a section: also of those that have nothing but trials of a search.

    Args:
        cells: those of :func:`read_cells` for this `study`, or for all.
    """
    searched = {name for name, facts in read_index(dataset)["studies"].items() if facts.get("search")}
    there = set(load_table(dataset, "cells")["study"]) & (searched if study is None else searched & {study})
    return sorted(there | set(cells["study"]))


def write_files(section: Section, cells: pd.DataFrame, output: Path, formats: Sequence[str], renderer: Renderer) -> str:
    """Write what lies beside the page of one study: tables, its cells, figures; return why some of these are missing."""
    _write_tables([section], cells, output)
    return _write_figures(section, output, formats, renderer)


def _write_tables(sections: Sequence[Section], cells: pd.DataFrame, output: Path) -> None:
    lines = [line for section in sections for line in section.lines]
    trains = any(section.score.trains for section in sections)
    write_atomically(output / "summary.csv", to_csv(lines, trains))
    write_atomically(output / "cells.csv", spreadsheet.to_csv(_told(cells, trains)))
    if claims := [verdict for section in sections for verdict in section.claims]:
        write_atomically(output / "claims.csv", spreadsheet.to_csv(pd.DataFrame(map(vars, claims))))
    if roles := [role for section in sections for role in section.roles]:
        write_atomically(output / "roles.csv", to_csv_of_roles(roles))
    if found := [section.paper_table for section in sections if section.paper_table]:
        frames = [pd.DataFrame(table.rows, columns=table.heads) for table in found]
        write_atomically(output / "paper.csv", spreadsheet.to_csv(pd.concat(frames, ignore_index=True)))
    if any(section.series for section in sections):
        frames = [as_frame(section.series).assign(study=section.study) for section in sections if section.series]
        frame = pd.concat(frames, ignore_index=True)
        frame.insert(0, "study", frame.pop("study"))
        write_atomically(output / "scaling.csv", spreadsheet.to_csv(frame))


def _told(cells: pd.DataFrame, trains: bool) -> pd.DataFrame:
    """Return the cells as a file beside the page has them: of commands without what only training has."""
    cells = cells.drop(columns=["hex", "task"])
    if trains:
        return cells
    said = [name for name in cells.columns if name not in _OF_TRAINING and cells[name].notna().any()]
    names = {"training_time": "command_time", "final_score": "score", "seed": "repeat"}
    return cells[said].rename(columns=names)


def _write_figures(section: Section, output: Path, formats: Sequence[str], renderer: Renderer) -> str:
    """Write the files of the figures; return which could not be drawn and why, "" where all were."""
    write_atomically(output / f"{section.study}.tex", to_latex(section.table))
    missing: list[str] = []
    why = ""
    for figure in section.figures.every if formats else ():
        spec = for_paper(figure)
        for kind in formats:
            path = output / "figures" / f"{section.study}-{plain_name(figure.name)}.{kind}"
            try:
                write_atomically(path, renderer.draw(spec, kind))
            except RendererError as error:
                path.unlink(missing_ok=True)  # of an earlier report
                missing.append(path.name)
                why = str(error)
    if not missing:
        return ""
    more = f" and {len(missing) - 1} more files" if len(missing) > 1 else ""
    return f"{output / 'figures' / missing[0]}{more}: not drawn: {why}"
