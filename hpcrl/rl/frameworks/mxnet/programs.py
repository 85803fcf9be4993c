"""Functions of arrays as MXNet runs them: imperative, or as symbols that are bound to their arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
from mxnet import autograd

from hpcrl.rl.frameworks.mxnet.layers import Flat
from hpcrl.rl.staging import Inputs, Kinds


class Program:
    """`call(F, inputs, networks)` of inputs and the arrays of several groups: imperative, or a symbol bound to them, one for inputs of the same kinds.

    A symbol finds its arrays once. A cached graph of Gluon takes them with each call, which takes as long as a small network.
    """

    def __init__(
        self, call: Callable[[Any, Sequence[Any], Sequence[Sequence[Any]]], Any], flats: Sequence[Flat], lazy: bool
    ) -> None:
        self._call, self._flats, self._lazy = call, flats, lazy
        self._executors: dict[Kinds, Any] = {}

    def __call__(self, inputs: Inputs) -> list[Any]:
        """Return the outputs."""
        if not self._lazy:
            return _listed(self._call(mx.nd, inputs.arrays, [flat.views for flat in self._flats]))
        executor = self._executor(inputs, is_loss=False)
        executor.forward(is_train=True)
        outputs: list[Any] = executor.outputs
        return outputs

    def backward(self, inputs: Inputs) -> list[Any]:
        """Return the outputs, and leave the gradient of the first by the first group in that group's gradients."""
        if not self._lazy:
            with autograd.record():
                outputs = _listed(self._call(mx.nd, inputs.arrays, [flat.views for flat in self._flats]))
            outputs[0].backward()
            return outputs
        executor = self._executor(inputs, is_loss=True)
        executor.forward(is_train=True)
        executor.backward()
        bound: list[Any] = executor.outputs
        return bound

    def compiled(self) -> int:
        """Return how many symbols were bound."""
        return len(self._executors)

    def _executor(self, inputs: Inputs, is_loss: bool) -> Any:
        if inputs.kinds not in self._executors:
            self._executors[inputs.kinds] = self._bound(inputs.arrays, is_loss)
        return self._executors[inputs.kinds]

    def _bound(self, inputs: list[Any], is_loss: bool) -> Any:
        """Return the executor of the symbol with these inputs.

        A symbol that acts is bound as for training, too. Else oneDNN keeps what it made of the first weights for ever.
        """
        given = [mx.sym.var(f"input{number}") for number in range(len(inputs))]
        networks = [
            [mx.sym.var(f"group{number}_{part}") for part in range(len(flat.views))]
            for number, flat in enumerate(self._flats)
        ]
        first, *others = _listed(self._call(mx.sym, given, networks))
        symbol = mx.sym.Group([mx.sym.MakeLoss(first) if is_loss else first, *others])
        arrays = _named(given, inputs)
        for variables, flat in zip(networks, self._flats, strict=True):
            arrays |= _named(variables, flat.views)
        gradients = _named(networks[0], self._flats[0].gradients)
        needed = {name: "write" if name in gradients else "null" for name in symbol.list_arguments()}
        return symbol.bind(inputs[0].context, arrays, args_grad=gradients, grad_req=needed)


def _named(variables: list[Any], arrays: list[Any]) -> dict[str, Any]:
    return {variable.name: array for variable, array in zip(variables, arrays, strict=True)}


def _listed(outputs: Any) -> list[Any]:
    """Return the outputs of a function that gives one, or several."""
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]
