"""Values of a cell that are computed from its other values: ``total_batch: tasks * batch_size``.

Expressions are a small part of Jinja's, in its sandbox: numbers, texts, names, operators, comparisons,
``a if b else c``, and a few filters. Their time and the size of their results are limited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import StrictUndefined, nodes
from jinja2.exceptions import TemplateError, UndefinedError
from jinja2.sandbox import SandboxedEnvironment

from hpcrl.errors import suggestion
from hpcrl.spec.explain import Key
from hpcrl.spec.resources import Scalar

_LONGEST = 500  # characters of an expression
_LONGEST_TEXT = 1000  # of a result
_LARGEST = 2**63
_FILTERS = frozenset({"abs", "float", "int", "lower", "max", "min", "round", "string", "upper"})
_NODES = (
    nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.Neg, nodes.Pos, nodes.Concat,
    nodes.And, nodes.Or, nodes.Not, nodes.Compare, nodes.Operand, nodes.CondExpr, nodes.Const, nodes.Name, nodes.Filter,
    nodes.List, nodes.Tuple,
)  # fmt: skip


class ComputeError(ValueError):
    """An expression has no value. The message says why."""


class _Sandbox(SandboxedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        both = (left, right)
        if operator == "+" and all(isinstance(operand, str) for operand in both):
            return _bounded(left + right)
        if not all(isinstance(operand, int | float) for operand in both):
            raise ComputeError(f"{operator}: expected two numbers, got {_shown(left)} and {_shown(right)}")
        if operator == "**" and abs(left) > 1 and right * math.log2(abs(left)) > 1024:
            raise ComputeError("the result is too large")
        return _bounded(super().call_binop(context, operator, left, right))


_SANDBOX = _Sandbox(undefined=StrictUndefined, autoescape=False)


@dataclass(frozen=True)
class Expression:
    """A compiled expression and the names that it uses."""

    names: frozenset[str]
    evaluate: Callable[..., Any]

    def value(self, values: Mapping[str, Any]) -> Scalar:
        """Return its value.

        Raises:
            ComputeError: it has no value, or one that is not a number, text, true or false.
        """
        if missing := sorted(self.names - set(values)):
            raise ComputeError(f"{missing[0]} is missing in some cells")
        try:
            result = self.evaluate(**{name: values[name] for name in self.names})
        except ZeroDivisionError:
            raise ComputeError("divides by zero") from None
        except OverflowError:
            raise ComputeError("is too large for a number") from None
        except (ArithmeticError, ValueError, TypeError, TemplateError, RecursionError) as error:
            raise ComputeError(str(error)) from None
        if not isinstance(result, str | int | float):
            raise ComputeError(f"expected a number, a text, true or false, got {_shown(result)}")
        checked: Scalar = _bounded(result)
        return checked


@cache
def expression(text: str) -> Expression:
    """Compile an expression.

    Raises:
        ComputeError: the text is not an expression, or contains something that is not allowed.
    """
    if len(text) > _LONGEST:
        raise ComputeError(f"expected an expression of at most {_LONGEST} characters, got {len(text)}")
    if not text.strip():
        raise ComputeError("expected an expression, got an empty text")
    if any(mark in text for mark in ("{{", "}}", "{%", "{#", "\n")):
        raise ComputeError("expected an expression without braces, such as tasks * batch_size")
    try:
        tree = _SANDBOX.parse("{{ (" + text + ") }}")
        (output,) = tree.body
        names = set()
        for node in output.find_all(nodes.Node):
            _check(node)
            if isinstance(node, nodes.Name):
                names.add(node.name)
        evaluate = _SANDBOX.compile_expression(text, undefined_to_none=False)
    except UndefinedError as error:
        raise ComputeError(str(error)) from None
    except TemplateError as error:
        raise ComputeError(f"is not an expression: {error.message}") from None
    except (ValueError, RecursionError, OverflowError, MemoryError, SyntaxError) as error:
        if isinstance(error, ComputeError):
            raise
        raise ComputeError("is not an expression, or is nested too deeply") from None
    return Expression(frozenset(names), evaluate)


def _check(node: nodes.Node) -> None:
    if isinstance(node, nodes.Filter):
        if node.name not in _FILTERS:
            raise ComputeError(f"has no filter {node.name!r}; {suggestion(node.name, _FILTERS)}")
    elif isinstance(node, nodes.Const) and isinstance(node.value, str | int | float):
        _bounded(node.value)
    elif not isinstance(node, _NODES) and not isinstance(node, nodes.TemplateData):
        raise ComputeError(f"{type(node).__name__.lower()} is not allowed: use numbers, names, operators and filters")


def computed_faults(computed: Mapping[str, str], known: set[str]) -> Iterator[tuple[Key, str]]:
    """Give the faults of expressions before they are evaluated. Each may use the known names and the expressions before it."""
    names = set(known)
    for name, text in computed.items():
        try:
            used = expression(text).names
        except ComputeError as error:
            yield ("computed", name), str(error)
        else:
            for unknown in sorted(used - names):
                later = f"{unknown} is computed later: move it up" if unknown in computed else f"no value {unknown!r}"
                yield ("computed", name), later if unknown in computed else f"{later}; {suggestion(unknown, names)}"
        names.add(name)


def computed_values(computed: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the computed values of a cell.

    Raises:
        ComputeError: an expression has no value; the first argument of the error is its name.
    """
    results: dict[str, Scalar] = {}
    for name, text in computed.items():
        try:
            results[name] = expression(text).value({**values, **results})
        except ComputeError as error:
            raise ComputeError(name, str(error)) from None
    return results


def names_in(computed: Mapping[str, str]) -> set[str]:
    """Return the names in all valid expressions."""
    names: set[str] = set()
    for text in computed.values():
        try:
            names |= expression(text).names
        except ComputeError:
            continue
    return names


def _bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        raise ComputeError(f"expected a text of at most {_LONGEST_TEXT} characters, got a longer one")
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise ComputeError("expected a whole number of at most 63 bits, got a larger one")
    if isinstance(value, float) and not math.isfinite(value):
        raise ComputeError("is not a finite number")
    if isinstance(value, complex):
        raise ComputeError("is not a real number")
    return value


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    return str(value)[:40] if isinstance(value, int | float) else f"a {type(value).__name__}"
