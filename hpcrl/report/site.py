"""Write the reports of all studies of some datasets as a static site: an index page, and a directory for each study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from hpcrl.errors import UsageError
from hpcrl.formats.files import write_atomically
from hpcrl.formats.usability import read_usability
from hpcrl.report.page import render
from hpcrl.report.renderer import Renderer
from hpcrl.report.sections import Section
from hpcrl.report.usability import to_csv, usability_table
from hpcrl.report.videos import Player, clips, plans_by_id
from hpcrl.report.write import claims_notes, make_sections, read_cells, studies_of, write_files, write_page
from hpcrl.spec.library import Library


@dataclass(frozen=True)
class Entry:
    """A study of the site: its entry in the index, the directory of its report, the reason for missing figures, what the user should know,
    and the name of its dataset if another one has the same study.
    """

    section: Section
    place: str
    trouble: str = ""
    notes: tuple[str, ...] = ()
    dataset: str = ""


def write_site(
    datasets: Sequence[Path],
    output: Path,
    study: str | None = None,
    formats: Sequence[str] = (),
    library: Library | None = None,
    grid_intensity: float | None = None,
    usability: Path | None = None,
    videos: tuple[Path, ...] = (),
    play: Player | None = None,
) -> list[Entry]:
    """Write `output/index.html`, and for each study `output/PLACE/index.html` with its tables; return the studies.

    PLACE is the study's name. If several datasets have a study of that name, the dataset's name follows it, and the index shows it. A
    dataset that is named twice is taken once.

    Args:
        study: only this one of each dataset.
        grid_intensity: grams of CO2 equivalent per kilowatt-hour, to estimate emissions.
        usability: a file of `hpcrl env measure`, for the index's table of what a framework costs its user.
        videos: plan directories whose trained agents are filmed by `play`, for the studies that have their cells.

    Raises:
        UsageError: a dataset or the study does not exist, two datasets of one name have the same study, or `usability` is not such a file.
        HpcrlError: the site cannot be written.
    """
    library = library or Library()
    plans = plans_by_id(videos)
    measured = None if usability is None else read_usability(usability)
    once = {dataset.resolve(): dataset for dataset in datasets}
    every = [(dataset, read_cells(dataset, study)) for dataset in once.values()]
    with Renderer() as renderer:
        renderer.begin()
        entries = _write_studies(every, study, output, formats, library, grid_intensity, renderer, plans, play)
    costs = None if measured is None else usability_table(measured)
    write_atomically(output / "index.html", render(library, [], template="site", usability=costs, entries=entries))
    if measured is not None:
        write_atomically(output / "usability.csv", to_csv(measured))
    return entries


def _write_studies(
    every: Sequence[tuple[Path, pd.DataFrame]],
    study: str | None,
    output: Path,
    formats: Sequence[str],
    library: Library,
    grid_intensity: float | None,
    renderer: Renderer,
    plans: Mapping[str, Sequence[Path]],
    play: Player | None,
) -> list[Entry]:
    names = [name for dataset, cells in every for name in studies_of(dataset, cells, study)]
    places: list[str] = []
    entries = []
    for dataset, cells in every:
        for section in make_sections(dataset, cells, library, grid_intensity, study):
            several = names.count(section.study) > 1
            place = f"{section.study}-{dataset.resolve().name}" if several else section.study
            if place in places:
                raise UsageError(
                    f"{dataset}: another dataset with this name has a study {section.study!r}, too: rename one of the directories"
                )
            places.append(place)
            own = cells[cells["study"] == section.study]
            if play and own["plan"].isin(list(plans)).any():
                section = replace(section, videos=clips(own, plans, play))
            trouble = write_page(output / place / "index.html", renderer, [section], library)
            missing = write_files(section, own, output / place, formats, renderer)
            told = tuple(claims_notes([section], library))
            entries.append(Entry(section, place, trouble or missing, told, dataset.resolve().name if several else ""))
    return entries
