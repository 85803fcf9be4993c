"""The reports of all studies of some datasets as a static site: an index page, and a directory for each study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrl.errors import UsageError
from hpcrl.formats.files import write_atomically
from hpcrl.report.page import render
from hpcrl.report.sections import Section
from hpcrl.report.write import make_sections, read_cells, write_files
from hpcrl.spec.library import Library


@dataclass(frozen=True)
class Entry:
    """A study of the site: what the index says of it, and the directory of its report."""

    section: Section
    place: str


def write_site(
    datasets: Sequence[Path],
    output: Path,
    study: str | None = None,
    formats: Sequence[str] = (),
    library: Library | None = None,
    grid_intensity: float | None = None,
) -> list[Entry]:
    """Write `output/index.html`, and for each study `output/PLACE/index.html` with its tables; return the studies.

    PLACE is the study's name. Where several datasets have a study of that name, the dataset's follows it.

    Args:
        study: only this one of each dataset.
        grid_intensity: grams of CO2 equivalent for each kilowatt-hour, if emissions are to be estimated.

    Raises:
        UsageError: there is no dataset, no such study, or a study of two datasets of one name.
        HpcrlError: the site cannot be written.
    """
    library = library or Library()
    every = [(dataset, read_cells(dataset, study)) for dataset in datasets]
    names = [str(name) for _, cells in every for name in sorted(cells["study"].unique())]
    places: list[str] = []
    entries = []
    for dataset, cells in every:
        for section in make_sections(dataset, cells, library, grid_intensity):
            several = names.count(section.study) > 1
            place = f"{section.study}-{dataset.resolve().name}" if several else section.study
            if place in places:
                raise UsageError(
                    f"{dataset}: another dataset of that name has a study {section.study!r}: rename a directory"
                )
            places.append(place)
            write_files(section, cells[cells["study"] == section.study], output / place, formats)
            write_atomically(output / place / "index.html", render(library, [section]))
            entries.append(Entry(section, place))
    write_atomically(output / "index.html", render(library, [], template="site", entries=entries))
    return entries
