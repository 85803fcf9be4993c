"""Templates: Jinja with shell quoting on by default, found along the library's path.

Every ``{{ value }}`` is quoted for the shell unless a filter says otherwise, the way autoescape does for HTML:

    {{ value }}                       one shell word, whatever it contains
    {{ lines | trusted }}             unchanged: shell text that a profile's author wrote
    {{ root | expandable }}           inside "...": only $NAME and ${NAME} are expanded
    {{ name | directive(value) }}     an #SBATCH option
    {{ value | bare }}                a name or number that needs no quotes, or an error

A site overrides one block of a packaged template with a file of the same name that begins
``{% extends "packaged/sbatch/cells.sbatch.j2" %}``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from hpcrl.errors import SpecError, UsageError, suggestion
from hpcrl.secrets import looks_secret
from hpcrl.spec.blocks import check_blocks
from hpcrl.spec.document import display
from hpcrl.spec.library import Library, packaged

_SAFE = re.compile(r"[A-Za-z0-9_./:=,@%+-]*")
# A shell's names are ASCII: $HOMEé is the variable HOME and a letter.
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ASSIGNMENT = re.compile(r"(?:^|[\s;])(?:export\s+|env\s+|--export=(?:[^\s]*,)?)?([A-Za-z_]\w*)=", re.MULTILINE)


class Renderer:
    """Renders templates found along a library's search path."""

    def __init__(self, library: Library) -> None:
        self._checked: set[str] = set()
        loader = jinja2.ChoiceLoader(
            [
                jinja2.FileSystemLoader(library.template_directories()),
                jinja2.PrefixLoader({"packaged": jinja2.FileSystemLoader(packaged() / "templates")}),
            ]
        )
        self._jinja = ImmutableSandboxedEnvironment(
            loader=loader,
            autoescape=True,  # only so that what a block or macro returns is marked as finished
            finalize=_quote,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self._jinja.filters.update(
            trusted=Markup, expandable=_expandable, directive=_directive, bare=_bare, requirement=_requirement
        )

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Render one template.

        Raises:
            SpecError: the template is not valid, or a value is not allowed in its place; the message gives file and line.
            UsageError: the template does not exist, or the text would contain a secret.
        """
        self.check(template)
        try:
            text = self._jinja.get_template(template).render(values)
        except jinja2.TemplateSyntaxError as error:
            where = display(Path(error.filename)) if error.filename else template
            raise SpecError([f"{where}:{error.lineno}: template: {error.message}"]) from None
        except SecurityError as error:
            raise SpecError(
                [f"{_where(error, template)}: template: {error}: a template may only read the values that it is given"]
            ) from None
        except (jinja2.UndefinedError, ValueError, TypeError, OverflowError) as error:
            message = str(error)
            if isinstance(error, jinja2.UndefinedError) and (match := re.match(r"'(\w+)' is undefined", message)):
                message = f"{match[1]!r} is not defined; {suggestion(match[1], values)}"
            raise SpecError([f"{_where(error, template)}: template: {message}"]) from None
        for name in _ASSIGNMENT.findall(text):
            if looks_secret(name):
                raise UsageError(
                    f"{template}: would write {name} into a file, and the name looks like a secret: export it in your shell instead"
                )
        return text

    def check(self, template: str) -> None:
        """Check a template's syntax and its blocks (:func:`hpcrl.spec.blocks.check_blocks`)."""
        if template not in self._checked:
            check_blocks(self._jinja, template)
            self._checked.add(template)


def _where(error: BaseException, template: str) -> str:
    trace = error.__traceback__
    place = template
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.endswith(".j2"):
            place = f"{display(Path(file))}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _quote(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    if isinstance(value, jinja2.Undefined):
        return str(value)  # raises: StrictUndefined
    text = str(value)
    if "\0" in text:
        raise ValueError("a value contains a NUL character, which a shell cannot take")
    return Markup(shlex.quote(text))


def _bare(value: Any) -> Markup:
    text = str(value)
    if not _SAFE.fullmatch(text):
        raise ValueError(f"{text!r} is not a plain name or number")
    return Markup(text)


def _expandable(value: str) -> Markup:
    parts = []
    end = 0
    for match in _VARIABLE.finditer(value):
        parts += [_escaped(value[end : match.start()]), f"${{{match[1] or match[2]}}}"]
        end = match.end()
    return Markup("".join([*parts, _escaped(value[end:])]))


def _escaped(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError(f"{text!r} contains a control character")
    return re.sub(r'([\\"$`])', r"\\\1", text)


def _requirement(value: str) -> Markup:
    if _CONTROL.search(value):
        raise ValueError(f"{value!r} contains a control character")
    return Markup(value)


def _directive(name: str, value: Any) -> Markup:
    if value is True:
        return Markup(f"#SBATCH --{name}")
    text = str(value)
    if _CONTROL.search(text):
        raise ValueError(f"--{name}: {text!r} contains a control character, which an #SBATCH line cannot take")
    if not _SAFE.fullmatch(text) or not text:
        text = '"' + re.sub(r'([\\"])', r"\\\1", text) + '"'
    return Markup(f"#SBATCH --{name}={text}")
