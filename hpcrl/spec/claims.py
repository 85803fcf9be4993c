"""The claims of a paper: the text, its place in the paper, and the comparison of your own runs that tests it.

Each paper has one file, ``jobs/claims/NAME.yaml``; a study names it as its ``paper``. The report judges the claims
(:mod:`hpcrl.report.claims`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import product

from pydantic import Field

from hpcrl.errors import SpecError, suggestion
from hpcrl.spec.claim_tests import (
    Differs,
    Extreme,
    Measure,
    Names,
    Place,
    Ranking,
    Same,
    Selection,
    Test,
    Text,
    selections,
)
from hpcrl.spec.document import Document, validate
from hpcrl.spec.quantities import Name
from hpcrl.spec.resources import Model


class Claim(Model):
    id: Name
    text: Text = Field(description="the claim in our words")
    quote: Text | None = Field(None, description="the paper's own words, where they matter")
    where: Text = Field(description="section, figure or page of the paper")
    note: Text | None = Field(None, description="how the claim is read, or what limits its test; shown with the claim")
    shown_by: Test
    instead: Measure | None = Field(
        None, description="the measure of the job that is shown if the machine's cannot be used"
    )
    stand_ins: bool = Field(True, description="whether substitutes for places and clusters apply to this claim")

    @property
    def compares_clusters(self) -> bool:
        """Whether the claim names clusters. Then it is judged once, with the runs of all clusters."""
        return any(selection.cluster for _, selection in selections(self.shown_by))


class Configuration(Model):
    """One bar of the paper's figures."""

    framework: str
    execution: str
    algorithm: str | None
    place: str
    cluster: str | None


class Claims(Model):
    paper: Name
    title: Text
    frameworks: dict[Name, Text] = Field(min_length=1, description="framework: its name in the paper")
    executions: Names | dict[Name, Names] = Field(
        description="the execution modes; as `framework: modes` if each framework has its own"
    )
    algorithms: dict[Name, Text] = Field({}, description="algorithm: its name in the paper")
    clusters: dict[Text, Names] = Field({}, description="a platform of the paper: the profiles that it means")
    places: dict[Text, Place] = Field(min_length=1)
    stand_ins: dict[Text, Place] = Field(
        {}, description="place: its substitute, shown beside the verdict if the place itself was not run"
    )
    stand_in_measures: dict[Measure, Measure] = Field(
        {}, description="measure: what is measured instead of it where a substitute for a place is shown"
    )
    claims: tuple[Claim, ...] = Field(min_length=1)

    def as_text(self) -> str:
        """Return a file of these claims, complete: without `extends`."""
        return json.dumps(self.model_dump(mode="json", exclude_unset=True), indent=1, ensure_ascii=False) + "\n"

    def configurations(self, *selections: Selection) -> list[Configuration]:
        """Return the configurations of the selections, in the order of the file, each once."""
        every = [
            Configuration(framework=framework, execution=execution, algorithm=algorithm, place=place, cluster=cluster)
            for selection in selections
            for framework in selection.framework or self.frameworks
            for execution, algorithm, place, cluster in product(
                [mode for mode in self.modes(framework) if mode in (selection.execution or self.modes(framework))],
                selection.algorithm or self.algorithms or (None,),
                selection.place or self.places,
                selection.cluster or (None,),
            )
        ]
        return list(dict.fromkeys(every))

    def modes(self, framework: str) -> Names:
        """Return the execution modes of a framework in the paper."""
        return self.executions[framework] if isinstance(self.executions, dict) else self.executions

    def _with(self, configuration: Configuration, **changes: str) -> Configuration:
        """Change a configuration. A framework that lacks its execution mode gets its own first one."""
        changed = configuration.model_copy(update=changes)
        modes = self.modes(changed.framework)
        return changed if changed.execution in modes else changed.model_copy(update={"execution": modes[0]})

    def pairs(self, test: Differs | Same | Extreme | Ranking) -> list[tuple[Configuration, Configuration]]:
        """Return the pairs whose first member has less of the measure, or the same, by the claim."""
        if isinstance(test, Ranking):
            return [
                (self._with(configuration, framework=low), self._with(configuration, framework=high))
                for configuration in self.configurations(test.where.model_copy(update={"framework": test.order[:1]}))
                for low, high in zip(test.order, test.order[1:], strict=False)
            ]
        named = self.configurations(test.this)
        if isinstance(test, Extreme):
            pairs = [(one, other) for one in named for other in self.configurations(test.among) if other not in named]
        else:
            given = {key: value for key, value in vars(test.than).items() if value is not None}
            others = [dict(zip(given, values, strict=True)) for values in product(*given.values())]
            pairs = [
                (one, other) for one in named for changes in others if (other := self._with(one, **changes)) != one
            ]
        return pairs if test.kind in ("less", "least", "same") else [(other, one) for one, other in pairs]


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
    modes = claims.executions
    known: dict[str, Iterable[str]] = {
        "framework": claims.frameworks,
        "execution": sorted({mode for own in modes.values() for mode in own}) if isinstance(modes, dict) else modes,
        "algorithm": claims.algorithms,
        "place": claims.places,
        "cluster": claims.clusters,
    }

    def problem(path: tuple[str | int, ...], text: str) -> str:
        at = document.origin(path)
        return f"{at.file}:{at.line}: {'.'.join(map(str, path))}: {text}"

    for place in claims.stand_ins:
        if place not in claims.places:
            yield problem(("stand_ins", place), f"no place {place!r}; {suggestion(place, claims.places)}")
    if isinstance(modes, dict):
        for framework in claims.frameworks.keys() - modes.keys():
            yield problem(("executions",), f"has no modes of {framework!r}, which is one of `frameworks`")
        for framework in modes.keys() - claims.frameworks.keys():
            text = f"no framework {framework!r} in this file; {suggestion(framework, claims.frameworks)}"
            yield problem(("executions", framework), text)
    seen: set[str] = set()
    for number, claim in enumerate(claims.claims):
        path = ("claims", number)
        if claim.id in seen:
            yield problem((*path, "id"), f"{claim.id!r} is the id of an earlier claim: choose another")
        seen.add(claim.id)
        for below, selection in selections(claim.shown_by):
            for key, names in known.items():
                for name in getattr(selection, key) or ():
                    if name not in names:
                        at = (*path, "shown_by", *below, key)
                        yield problem(at, f"no {key} {name!r} in this file; {suggestion(name, names)}")
        test = claim.shown_by
        if isinstance(test, Differs | Same) and test.than.cluster and not test.this.cluster:
            yield problem((*path, "shown_by", "than", "cluster"), "`this` names no cluster: name the one to compare")
        for name in claim.shown_by.order if isinstance(claim.shown_by, Ranking) else ():
            if name not in claims.frameworks:
                at = (*path, "shown_by", "order")
                yield problem(at, f"no framework {name!r} in this file; {suggestion(name, claims.frameworks)}")
