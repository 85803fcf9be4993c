"""Write the report: one HTML file that needs no network; figures as PNG, SVG and PDF; tables as CSV and LaTeX."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

import hpcrl
from hpcrl.errors import UsageError, count, suggestion
from hpcrl.formats.files import write_atomically
from hpcrl.formats.tables import load_table, read_index
from hpcrl.report.advice import advice
from hpcrl.report.baseline import Change, compare, judge
from hpcrl.report.claims import Verdict, verdicts
from hpcrl.report.comparison import for_page, for_terminal, to_latex
from hpcrl.report.figures import figures
from hpcrl.report.figures.drawing import style, to_pdf, to_png, to_svg
from hpcrl.report.groups import Line, lines, with_groups
from hpcrl.report.summary import sentences
from hpcrl.spec.library import packaged

FORMATS = {"png": to_png, "svg": to_svg, "pdf": to_pdf}
MOST_PROBLEMS = 200  # cells that did not complete, on the page; cells.csv has them all
_CALIBRATION = {
    "calibration_matrix": "{:.0f} GFLOP/s",
    "calibration_memory": "{:.1f} GB/s",
    "calibration_python": "{:.0f} M turns/s",
    "calibration_environment": "{:,.0f} CartPole steps/s",
}


@dataclass(frozen=True)
class Written:
    """The report's main file, its table for the terminal, what became worse than the baseline, and the claims judged."""

    html: Path
    columns: list[str]
    rows: list[list[str]]
    changes: list[Change] = field(default_factory=list)
    claims: list[Verdict] = field(default_factory=list)


def write_report(
    dataset: Path,
    study: str | None,
    output: Path,
    formats: tuple[str, ...] = tuple(FORMATS),
    baseline: Path | None = None,
) -> Written:
    """Write the report of a dataset, or of one of its studies.

    Args:
        formats: of the figures' files, some of :data:`FORMATS`.
        baseline: an older dataset to compare with.

    Raises:
        UsageError: there is no dataset, no such study, or nothing in it yet.
        HpcrlError: the report cannot be written.
    """
    cells = with_groups(_cells(dataset, study))
    older = with_groups(_cells(baseline, study)) if baseline else None
    tables = {name: load_table(dataset, name) for name in ("episodes", "samples", "phases")}
    studies = read_index(dataset)["studies"]
    sections: list[dict[str, Any]] = []
    everything: list[Line] = []
    changes: list[Change] = []
    for key, rows in cells.groupby("study", sort=True):
        name = str(key)
        compared = lines(rows)
        everything += compared
        columns, shown = for_page(compared)
        if older is not None:
            changes += compare(rows, older[older["study"] == name])
        drawn = []
        for figure in figures(rows, **tables, study=studies.get(name, {})):
            spec = style(figure.chart)
            stem = f"{name}-{figure.name}"
            for kind in formats:
                write_atomically(output / "figures" / f"{stem}.{kind}", FORMATS[kind](spec))
            drawn.append({"id": f"figure-{stem}", "title": figure.title, "text": figure.text, "spec": spec})
        write_atomically(output / f"{name}.tex", to_latex(columns, shown))
        sections.append(
            {
                "study": name,
                "title": studies.get(name, {}).get("title") or name,
                "summary": _sentence(rows),
                "score_level": min((line.final_level for line in compared if line.final_level), default=None),
                "columns": columns,
                "rows": shown,
                "sentences": sentences(rows),
                "advice": advice(rows),
                "figures": drawn,
                "claims": verdicts(rows, name, studies.get(name, {})),
                **_problems(rows),
                "notes": _notes(rows),
                "compiled": _said(rows, "compiled"),
                "collectives": _said(rows, "collective"),
                "provenance": _provenance(rows),
                "measuring": _measuring(rows),
            }
        )
    changes = judge(changes)
    for section in sections:
        section["changes"] = [each for each in changes if each.study == section["study"]]
    html = output / "report.html"
    write_atomically(html, _html(sections, baseline))
    write_atomically(output / "summary.csv", pd.DataFrame(map(vars, everything)).to_csv(index=False))
    claims = [verdict for section in sections for verdict in section["claims"]]
    if claims:
        write_atomically(output / "claims.csv", pd.DataFrame(map(vars, claims)).to_csv(index=False))
    write_atomically(output / "cells.csv", cells.to_csv(index=False))
    return Written(html, *for_terminal(everything), changes, claims)


def _cells(dataset: Path, study: str | None) -> pd.DataFrame:
    cells = load_table(dataset, "cells")
    if study is not None:
        known = sorted(cells["study"].unique())
        if study not in known:
            raise UsageError(f"{dataset}: has no study {study!r}; {suggestion(study, known)}")
        cells = cells[cells["study"] == study]
    if cells.empty:
        raise UsageError(f"{dataset}: holds no attempt yet: run cells, then hpcrl collect")
    return cells


def _problems(rows: pd.DataFrame) -> dict[str, Any]:
    bad = rows[rows["outcome"] != "completed"]
    columns = ["cluster", "what", "where", "seed", "outcome", "reason", "cell"]
    return {
        "problems": bad[columns].head(MOST_PROBLEMS).fillna("").to_dict("records"),
        "more_problems": max(0, len(bad) - MOST_PROBLEMS),
    }


def _notes(rows: pd.DataFrame) -> list[str]:
    """Return what records say besides numbers, and of how many cells."""
    notes = rows["notes"].dropna().value_counts()
    told = [f"{text} ({count(int(number), 'cell')})" for text, number in notes.head(20).items()]
    if repeated := int((rows["repeats"] > 1).sum()):
        told.append(f"run in several plans, of which the newest run counts ({count(repeated, 'cell')})")
    return told


def _said(rows: pd.DataFrame, column: str) -> list[tuple[str, str]]:
    """Return what a column says of each configuration, and of its place where ranks average."""
    found = set()
    for row in rows[rows[column].notna()][["what", "parallelism", column]].drop_duplicates().to_dict("records"):
        found.add((f"{row['what']}, {row['parallelism']}" if column == "collective" else row["what"], row[column]))
    return sorted(found)


def _sentence(rows: pd.DataFrame) -> str:
    counts = rows["outcome"].value_counts()
    outcomes = ", ".join(f"{number} {name}" for name, number in counts.items())
    clusters = ", ".join(sorted(rows["cluster"].unique()))
    return f"{len(rows)} cells on {clusters}: {outcomes}."


def _provenance(rows: pd.DataFrame) -> list[dict[str, str]]:
    found = {}
    known = rows[rows["hardware"].notna()]
    for row in known.drop_duplicates(["cluster", "environment", "hardware", "versions"]).to_dict("records"):
        hardware, versions = json.loads(row["hardware"]), json.loads(row["versions"])
        gpus = ", ".join(hardware.get("gpus") or []) or "no GPU"
        if driver := hardware.get("gpu_driver"):
            gpus += f" (driver {driver})"
        memory = f"{(hardware.get('memory') or 0) / 1024**3:.0f} GiB"
        machine = f"{hardware.get('cpu')}, {hardware.get('threads')} threads, {memory}, {gpus}, Linux {hardware.get('kernel')}"
        speed = ", ".join(form.format(row[name]) for name, form in _CALIBRATION.items() if not pd.isna(row[name]))
        software = ", ".join(f"{name} {version}" for name, version in versions.items())
        found[row["cluster"], row["environment"], machine] = {"speed": speed, "software": software}
    return [
        {"cluster": cluster, "environment": environment, "machine": machine, **said}
        for (cluster, environment, machine), said in sorted(found.items())
    ]


def _measuring(rows: pd.DataFrame) -> str:
    """Say what measuring cost, all cells together, and how far nodes' clocks were apart."""
    known = rows[(rows["wall_time"] > 0) & rows["sampler_cpu_seconds"].notna()]
    if known.empty:
        return "no sampler ran."
    share = known["sampler_cpu_seconds"].sum() / (known["wall_time"] * known["nodes"]).sum()
    memory = known["sampler_memory"].max() / 2**20
    text = f"the sampler took {share:.2%} of one core of each node, its start included, and at most {memory:.0f} MiB"
    timed = rows[rows["phase_time"].notna()]
    if not timed.empty:
        text += f"; timing phases took {timed['phase_time'].sum() / timed['wall_time'].sum():.2%} of the wall time"
    if (apart := rows["clock_offset"].abs().max()) > 0:
        text += f"; nodes' clocks were at most {1e3 * apart:.1f} ms apart, for which samples' times are corrected"
    return f"{text}."


def _html(sections: list[dict[str, Any]], baseline: Path | None) -> str:
    import vl_convert

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(packaged() / "templates" / "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    specs = {figure["id"]: figure["spec"] for section in sections for figure in section["figures"]}
    # "</" would end the script element that holds the data.
    return environment.get_template("report.html.j2").render(
        sections=sections,
        baseline=baseline,
        specs=json.dumps(specs).replace("</", "<\\/"),
        library=vl_convert.javascript_bundle().replace("</script", "<\\/script"),  # type: ignore[call-arg]
        version=hpcrl.__version__,
    )
