"""Check the blocks of a template that extends another: a block that does not exist there would never be used."""

from __future__ import annotations

from pathlib import Path

import jinja2
from jinja2 import nodes

from hpcrl.errors import SpecError, UsageError, suggestion
from hpcrl.spec.document import display


def check_blocks(jinja: jinja2.Environment, template: str) -> None:
    """Check the syntax of a template and of all that it extends, and the names of their blocks.

    Raises:
        SpecError: a template is not valid, extends itself, or overrides a block that does not exist; with file and line.
        UsageError: the template does not exist.
    """
    _blocks(jinja, template, ())


def _blocks(jinja: jinja2.Environment, template: str, below: tuple[str, ...]) -> set[str]:
    assert jinja.loader is not None
    try:
        source, file, _ = jinja.loader.get_source(jinja, template)
    except jinja2.TemplateNotFound as error:
        raise UsageError(f"no template {error.name!r}; {suggestion(str(error.name), jinja.list_templates())}") from None
    where = display(Path(file)) if file else template
    try:
        tree = jinja.parse(source)
    except jinja2.TemplateSyntaxError as error:
        raise SpecError([f"{where}:{error.lineno}: template: {error.message}"]) from None
    own = list(tree.find_all(nodes.Block))
    extends = tree.find(nodes.Extends)
    if extends is None or not isinstance(extends.template, nodes.Const):
        return {block.name for block in own}
    base = str(extends.template.value)
    if base == template or base in below:
        raise SpecError(
            [f"{where}:{extends.lineno}: template: extends itself: write packaged/{base.removeprefix('packaged/')}"]
        )
    known = _blocks(jinja, base, (*below, template))
    inner = {nested.name for block in own for nested in block.find_all(nodes.Block)}
    if unknown := [block for block in own if block.name not in known | inner]:
        raise SpecError(
            [
                f"{where}:{block.lineno}: template: {base} has no block {block.name!r}; {suggestion(block.name, known)}"
                for block in unknown
            ]
        )
    return known | inner
