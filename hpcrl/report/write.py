"""Write the report: one HTML file that needs no network, figures as PNG and SVG, the table as CSV."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

import hpcrl
from hpcrl.errors import UsageError, suggestion
from hpcrl.formats.files import write_atomically
from hpcrl.formats.tables import load_table, read_index
from hpcrl.report.figures import figures, style, to_png, to_svg
from hpcrl.report.groups import Line, lines, with_groups
from hpcrl.report.summary import sentences
from hpcrl.spec.library import packaged

COLUMNS = (
    "configuration", "resources", "cells", "final score", "at goal", "goal at step", "goal after (s)", "training (s)", "set-up (s)", "compile (s)",
    "CPU (%)", "RAM (GiB)", "GPU (%)",
)  # fmt: skip


NOTHING = "–"


@dataclass(frozen=True)
class Written:
    """The report's main file, and its table for the terminal."""

    html: Path
    columns: list[str]
    rows: list[list[str]]


def write_report(dataset: Path, study: str | None, output: Path) -> Written:
    """Write the report of a dataset, or of one of its studies.

    Raises:
        UsageError: there is no dataset, no such study, or nothing in it yet.
        HpcrlError: the report cannot be written.
    """
    cells = load_table(dataset, "cells")
    if study is not None:
        known = sorted(cells["study"].unique())
        if study not in known:
            raise UsageError(f"{dataset}: has no study {study!r}; {suggestion(study, known)}")
        cells = cells[cells["study"] == study]
    if cells.empty:
        raise UsageError(f"{dataset}: holds no attempt yet: run cells, then hpcrl collect")
    episodes = load_table(dataset, "episodes")
    goals = _goals(dataset)
    several = cells["cluster"].nunique() > 1
    columns = [*(["cluster"] if several else []), *COLUMNS]
    sections: list[dict[str, Any]] = []
    everything: list[Line] = []
    for name, part in cells.groupby("study", sort=True):
        rows = with_groups(part)
        compared = lines(rows)
        shown = [_shown(line, several) for line in compared]
        everything += compared
        drawn = []
        for figure in figures(rows, episodes, goals.get(str(name))):
            spec = style(figure.chart)
            stem = f"{name}-{figure.name}"
            write_atomically(output / "figures" / f"{stem}.png", to_png(spec))
            write_atomically(output / "figures" / f"{stem}.svg", to_svg(spec))
            drawn.append({"id": f"figure-{stem}", "title": figure.title, "text": figure.text, "spec": spec})
        bad = rows[rows["outcome"] != "completed"]
        sections.append(
            {
                "study": name,
                "summary": _sentence(rows),
                "sentences": sentences(rows),
                "rows": shown,
                "figures": drawn,
                "problems": bad[["cluster", "what", "where", "seed", "outcome", "reason", "cell"]]
                .fillna("")
                .to_dict("records"),
                "compiled": _said(rows, "compiled"),
                "collectives": _said(rows, "collective"),
                "provenance": _provenance(rows),
            }
        )
    keep = _used(columns, [row for section in sections for row in section["rows"]])
    columns = [columns[index] for index in keep]
    for section in sections:
        section["rows"] = [[row[index] for index in keep] for row in section["rows"]]
    html = output / "report.html"
    write_atomically(html, _html(columns, sections))
    write_atomically(output / "summary.csv", pd.DataFrame(map(vars, everything)).to_csv(index=False))
    return Written(html, *_for_terminal(everything))


def _said(rows: pd.DataFrame, column: str) -> list[tuple[str, str]]:
    """Return what a column says of each configuration, and of its place where ranks average."""
    found = set()
    for row in rows.to_dict("records"):
        if isinstance(row[column], str):
            found.add((f"{row['what']}, {row['parallelism']}" if column == "collective" else row["what"], row[column]))
    return sorted(found)


def _used(columns: list[str], rows: list[list[str]]) -> list[int]:
    """Return the columns that say something in some row."""
    return [index for index in range(len(columns)) if any(row[index] != NOTHING for row in rows)]


def _for_terminal(compared: list[Line]) -> tuple[list[str], list[list[str]]]:
    """Return the table in short words: places only where they differ, means without their ranges."""
    names = ["study", "cluster", "configuration", "resources", "cells", "final", "at goal", "goal step", "goal s"]
    names += ["train s", "set-up s", "compile s", "CPU %", "RAM GiB", "GPU %"]
    rows = []
    for line in compared:
        cells = _shown(line, several=True)
        cells[4] = _number(line.final_score)
        rows.append([line.study, *cells])
    constant = [index for index in (0, 1, 3) if len({row[index] for row in rows}) == 1]
    keep = [index for index in _used(names, rows) if index not in constant]
    return [names[index] for index in keep], [[row[index] for index in keep] for row in rows]


def _goals(dataset: Path) -> dict[str, float]:
    """Return the goal of each study, as collect noted it in the dataset."""
    goals: dict[str, float] = read_index(dataset)["goals"]
    return goals


def _number(value: float | None, digits: int = 1) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _shown(line: Line, several: bool) -> list[str]:
    score = _number(line.final_score)
    if line.final_range and line.final_range[0] != line.final_range[1]:
        score += f" ({line.final_range[0]:.0f} to {line.final_range[1]:.0f})"
    done = str(line.cells) if line.completed == line.cells else f"{line.completed} of {line.cells}"
    return [
        *([line.cluster] if several else []),
        line.what,
        line.where,
        done,
        score,
        f"{line.at_goal} of {line.cells}" if line.final_score is not None or line.at_goal else NOTHING,
        _number(line.goal_step, 0),
        _number(line.goal_time),
        _number(line.training_time),
        _number(line.setup_time),
        _number(line.compile_time),
        _number(line.cpu, 0),
        _number(line.rss / 1024**3 if line.rss else None, 2),
        _number(line.gpu, 0),
    ]


def _sentence(rows: pd.DataFrame) -> str:
    counts = rows["outcome"].value_counts()
    outcomes = ", ".join(f"{count} {name}" for name, count in counts.items())
    clusters = ", ".join(sorted(rows["cluster"].unique()))
    return f"{len(rows)} cells on {clusters}: {outcomes}."


def _provenance(rows: pd.DataFrame) -> list[dict[str, str]]:
    found = {}
    for row in rows.to_dict("records"):
        if not isinstance(row["hardware"], str):
            continue
        hardware, versions = json.loads(row["hardware"]), json.loads(row["versions"])
        gpus = ", ".join(hardware["gpus"]) or "no GPU"
        machine = f"{hardware['cpu']}, {hardware['threads']} threads, {hardware['memory'] / 1024**3:.0f} GiB, {gpus}, Linux {hardware['kernel']}"
        software = ", ".join(f"{name} {version}" for name, version in versions.items())
        found[(row["cluster"], row["environment"], machine)] = software
    return [
        {"cluster": cluster, "environment": environment, "machine": machine, "software": software}
        for (cluster, environment, machine), software in sorted(found.items())
    ]


def _html(columns: list[str], sections: list[dict[str, Any]]) -> str:
    import vl_convert

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(packaged() / "templates" / "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    specs = {figure["id"]: figure["spec"] for section in sections for figure in section["figures"]}
    # "</" would end the script element that holds the data.
    return environment.get_template("report.html.j2").render(
        columns=columns,
        sections=sections,
        specs=json.dumps(specs).replace("</", "<\\/"),
        library=vl_convert.javascript_bundle().replace("</script", "<\\/script"),  # type: ignore[call-arg]
        version=hpcrl.__version__,
    )
