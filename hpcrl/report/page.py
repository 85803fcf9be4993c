"""Render the page from `templates/report/`, whose files are found along the search path as all other templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hpcrl import __version__
from hpcrl.errors import SpecError, printable
from hpcrl.formats.version import full_version
from hpcrl.report.comparison import WORDS
from hpcrl.report.design import at_least, capitalised
from hpcrl.report.figures.drawing import Figure, as_table, for_screen
from hpcrl.report.renderer import escaped
from hpcrl.report.sections import Section
from hpcrl.report.topologies import heads_of, rows_of
from hpcrl.report.usability import UsabilityTable
from hpcrl.spec.blocks import check_blocks
from hpcrl.spec.document import display
from hpcrl.spec.library import Library, packaged

ROWS = 100  # of a table, on one of its pages


def render(
    library: Library,
    sections: Sequence[Section],
    baseline: Path | None = None,
    template: str = "report",
    bundle: str = "",
    usability: UsabilityTable | None = None,
    **more: Any,
) -> str:
    """Return the HTML of some studies. It needs no network.

    Args:
        bundle: the JavaScript that draws the figures. Without it, figures are tables of their values.
        usability: what the frameworks cost their users.

    Raises:
        SpecError: a template has a fault; with file and line.
    """
    environment = _environment(library)
    drawn = (
        {} if not bundle else {_id(section, figure): figure for section in sections for figure in section.figures.every}
    )
    panels = {
        f"{name}-{number}": for_screen(panel, " · ".join(filter(None, [figure.title, panel.title])))
        for name, figure in drawn.items()
        for number, panel in enumerate(figure.panels)
    }
    environment.globals |= {
        "figure_id": _id,
        "values_of": as_table,
        "role_heads": heads_of,
        "role_rows": rows_of,
        "capitalised": capitalised,
        "at_least": at_least,
    }
    check_blocks(environment, f"report/{template}.html.j2")
    try:
        return environment.get_template(f"report/{template}.html.j2").render(
            sections=sections,
            baseline=baseline,
            specs=_script(panels),
            tables=_script(
                {section.study: {"rows": section.table.rows, "axes": section.table.axes} for section in sections}
            ),
            library=bundle.replace("</script", "<\\/script"),
            version=full_version(__version__),
            words=WORDS,
            page_rows=ROWS,
            usability=usability,
            **more,
        )
    except jinja2.TemplateSyntaxError as error:
        where = display(Path(error.filename)) if error.filename else str(error.name)
        raise SpecError([f"{where}:{error.lineno}: template: {error.message}"]) from None
    except (jinja2.UndefinedError, SecurityError, OverflowError) as error:
        raise SpecError([f"report/{template}.html.j2: template: {error}"]) from None


def _environment(library: Library) -> jinja2.Environment:
    loader = jinja2.ChoiceLoader(
        [
            jinja2.FileSystemLoader(library.template_directories()),
            jinja2.PrefixLoader({"packaged": jinja2.FileSystemLoader(packaged() / "templates")}),
        ]
    )
    return ImmutableSandboxedEnvironment(
        loader=loader,
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _id(section: Section, figure: Figure) -> str:
    return f"figure-{section.study}-{figure.name}"


def _script(value: Any) -> str:
    """Return JSON that is safe in a script element: "</script" would end the element, "<!--<script" would hide its end."""
    return json.dumps(escaped(value), separators=(",", ":"), allow_nan=False, default=str).replace("<", "\\u003c")
