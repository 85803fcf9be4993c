"""A site's billing rule: a small arithmetic expression, evaluated without `eval`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from hpcrl.errors import suggestion

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "ceil": math.ceil, "floor": math.floor}


def evaluate(expression: str, values: Mapping[str, float]) -> float:
    """Evaluate numbers, names, ``+ - * /`` and ``min max ceil floor``.

    Raises:
        ValueError: it contains anything else, a name is unknown, or it divides by zero.
    """
    try:
        tree = ast.parse(expression, mode="eval")
        return float(_value(tree.body, values))
    except SyntaxError:
        raise ValueError(f'"{expression}" is not an arithmetic expression') from None
    except ZeroDivisionError:
        raise ValueError(f'"{expression}" divides by zero') from None


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.Name(id=name):
            raise ValueError(f"unknown name {name!r} in a billing expression; {suggestion(name, values)}")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS and arguments:
            return _FUNCTIONS[name](*(_value(argument, values) for argument in arguments))
        case _:
            raise ValueError(
                f'"{ast.unparse(node)}" is not allowed: use numbers, names, + - * / and min max ceil floor'
            )
