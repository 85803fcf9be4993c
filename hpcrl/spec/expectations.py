"""The expected values of a study: what its cells should report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import Field

from hpcrl.errors import suggestion
from hpcrl.expected import tolerance
from hpcrl.spec.explain import Key
from hpcrl.spec.resources import Model

# Values that built-in training reports at its end.
OF_TRAINING = ("best_score", "final_score")


class Expectation(Model):
    """A reference value with a tolerance, or bounds."""

    value: float | None = Field(None, description="the reference value")
    within: float | str | None = Field(
        None, description="maximum distance from `value`: `5 %`, or a number in the value's unit"
    )
    at_least: float | None = None
    at_most: float | None = None

    def faults(self) -> Iterator[tuple[Key, str]]:
        bounds = self.at_least is not None or self.at_most is not None
        if (self.value is None) == (not bounds):
            yield (), "expected either `value` and `within`, or `at_least`, `at_most` or both"
        elif self.value is None and self.within is not None:
            yield ("within",), "`within` needs a `value`, which is missing"
        elif self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            yield (), f"expected `at_least` not above `at_most`, got {self.at_least:g} and {self.at_most:g}"
        elif self.value is not None:
            yield from self._tolerance_faults(self.value)

    def _tolerance_faults(self, value: float) -> Iterator[tuple[Key, str]]:
        if self.within is None:
            yield (), "`within` is missing: give the maximum distance from `value`, such as `within: 5 %`"
        elif (room := tolerance(self.within, value)) is None:
            yield ("within",), f"expected a share such as `5 %`, or a number of at least 0, got {self.within!r}"
        elif room == 0 and value == 0 and isinstance(self.within, str):
            yield ("within",), f"{self.within} of 0 is 0: give a number in the value's unit"


def expectation_faults(expected: Mapping[str, Expectation], trains: bool) -> Iterator[tuple[Key, str]]:
    """Give the faults of a study's `expect`, each with its place."""
    for name, expectation in expected.items():
        if trains and name not in OF_TRAINING:
            yield ("expect", name), f"built-in training has no value {name!r}; {suggestion(name, OF_TRAINING)}"
        for below, wrong in expectation.faults():
            yield ("expect", name, *below), wrong
