"""The claims of a paper: the text, its place in the paper, and the comparison of your own runs that tests it.

Each paper has one file, ``jobs/claims/NAME.yaml``; a study names it as its ``paper``. The report judges the claims
(:mod:`hpcrl.report.claims`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from hpcrl.errors import SpecError, suggestion
from hpcrl.spec.document import Document, validate
from hpcrl.spec.quantities import Name
from hpcrl.spec.study import Model

Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Measure = Literal[
    "training_time",
    "wall_time",
    "goal_time",
    "goal_wall_time",
    "final_score",
    "cpu",
    "memory",
    "machine_cpu",
    "machine_memory",
    "gpu",
    "gpu_memory",
    "energy",
]


def _names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[
    tuple[Text, ...], BeforeValidator(_names, json_schema_input_type=str | list[str]), Field(min_length=1)
]


class Place(Model):
    """The resources that a paper means by the name of a place. A missing key matches any value."""

    device: Literal["cpu", "gpu"]
    parallelism: Literal["none", "horovod", "native"] | None = None
    cpus: int | None = Field(None, ge=1)
    gpus: int | None = Field(None, ge=0)
    tasks: int | None = Field(None, ge=1)
    nodes: int | None = Field(None, ge=1)


class Selection(Model):
    """Some of the paper's configurations. A missing key means all values that the file lists."""

    framework: Names | None = None
    execution: Names | None = None
    place: Names | None = None


class Reaches(Model):
    """Most runs of each configuration reach the score in an evaluation (`expected: all`), or few do (`none`)."""

    kind: Literal["reaches"]
    configurations: tuple[Selection, ...] = Field(min_length=1)
    score: float
    expected: Literal["all", "none"] = "all"


class Fails(Model):
    """Most runs of each configuration end without a result."""

    kind: Literal["fails"]
    configurations: tuple[Selection, ...] = Field(min_length=1)


class Differs(Model):
    """Each configuration has less (or more) of a measure than the configuration that `than` replaces it by."""

    kind: Literal["less", "more"]
    measure: Measure
    this: Selection = Selection()
    than: Selection


class Extreme(Model):
    """Some configurations have the minimum (or the maximum) of a measure among others."""

    kind: Literal["least", "most"]
    measure: Measure
    this: Selection
    among: Selection = Selection()


class Ranking(Model):
    """The order of the frameworks by a measure, lowest first, in each execution mode and place."""

    kind: Literal["ranking"]
    measure: Measure
    order: tuple[Text, ...] = Field(min_length=2)
    where: Selection = Selection()


class Untestable(Model):
    """No data of a dataset can test it."""

    kind: Literal["untestable"]
    why: Text


Test = Annotated[Reaches | Fails | Differs | Extreme | Ranking | Untestable, Field(discriminator="kind")]


class Claim(Model):
    id: Name
    text: Text = Field(description="the claim in our words")
    quote: Text | None = Field(None, description="the paper's own words, where they matter")
    where: Text = Field(description="section, figure or page of the paper")
    shown_by: Test
    instead: Measure | None = Field(
        None, description="the measure of the job that is shown if the machine's cannot be used"
    )
    stand_ins: bool = Field(True, description="whether the file's substitutes for places apply to this claim")


class Configuration(Model):
    """One bar of the paper's figures."""

    framework: str
    execution: str
    place: str


class Claims(Model):
    paper: Name
    title: Text
    frameworks: dict[Name, Text] = Field(min_length=1, description="framework: its name in the paper")
    executions: Names
    places: dict[Text, Place] = Field(min_length=1)
    stand_ins: dict[Text, Place] = Field(
        {}, description="place: its substitute, shown beside the verdict if the place itself was not run"
    )
    claims: tuple[Claim, ...] = Field(min_length=1)

    def configurations(self, *selections: Selection) -> list[Configuration]:
        """Return the configurations of the selections, in the order of the file, each once."""
        every = [
            Configuration(framework=framework, execution=execution, place=place)
            for each in selections
            for framework, execution, place in product(
                each.framework or self.frameworks, each.execution or self.executions, each.place or self.places
            )
        ]
        return list(dict.fromkeys(every))

    def pairs(self, test: Differs | Extreme | Ranking) -> list[tuple[Configuration, Configuration]]:
        """Return the pairs whose first member has less of the measure, by the claim."""
        if isinstance(test, Ranking):
            return [
                (each.model_copy(update={"framework": low}), each.model_copy(update={"framework": high}))
                for each in self.configurations(test.where.model_copy(update={"framework": test.order[:1]}))
                for low, high in zip(test.order, test.order[1:], strict=False)
            ]
        named = self.configurations(test.this)
        if isinstance(test, Extreme):
            pairs = [(one, other) for one in named for other in self.configurations(test.among) if other not in named]
        else:
            given = {key: value for key, value in vars(test.than).items() if value is not None}
            pairs = [
                (one, one.model_copy(update=dict(zip(given, values, strict=True))))
                for one in named
                for values in product(*given.values())
            ]
        return pairs if test.kind in ("less", "least") else [(other, one) for one, other in pairs]


def read_claims(document: Document) -> Claims:
    """Turn a document into claims.

    Raises:
        SpecError: with one line for each fault, including names that the file does not list.
    """
    claims = validate(Claims, document)
    if problems := list(dict.fromkeys(_unknown_names(claims, document))):
        raise SpecError(problems)
    return claims


def _unknown_names(claims: Claims, document: Document) -> Iterator[str]:
    known = {"framework": claims.frameworks, "execution": claims.executions, "place": claims.places}

    def problem(path: tuple[str | int, ...], text: str) -> str:
        at = document.origin(path)
        return f"{at.file}:{at.line}: {'.'.join(map(str, path))}: {text}"

    for place in claims.stand_ins:
        if place not in claims.places:
            yield problem(("stand_ins", place), f"no place {place!r}; {suggestion(place, claims.places)}")
    seen: set[str] = set()
    for number, claim in enumerate(claims.claims):
        path = ("claims", number)
        if claim.id in seen:
            yield problem((*path, "id"), f"{claim.id!r} is the id of an earlier claim: choose another")
        seen.add(claim.id)
        for below, selection in _selections(claim.shown_by):
            for key, names in known.items():
                for name in getattr(selection, key) or ():
                    if name not in names:
                        at = (*path, "shown_by", *below, key)
                        yield problem(at, f"no {key} {name!r} in this file; {suggestion(name, names)}")
        for name in claim.shown_by.order if isinstance(claim.shown_by, Ranking) else ():
            if name not in claims.frameworks:
                at = (*path, "shown_by", "order")
                yield problem(at, f"no framework {name!r} in this file; {suggestion(name, claims.frameworks)}")


def _selections(test: Model) -> Iterator[tuple[tuple[str | int, ...], Selection]]:
    for key, value in vars(test).items():
        if isinstance(value, Selection):
            yield (key,), value
        elif key == "configurations":
            yield from (((key, number), each) for number, each in enumerate(value))
