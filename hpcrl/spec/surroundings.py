"""`environment` of a study where it is not the name of one of hpcrl's: a directory, modules, a container, or none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from hpcrl.secrets import secret_among
from hpcrl.spec.explain import Faults, Key
from hpcrl.spec.quantities import Name
from hpcrl.spec.resources import Model
from hpcrl.surroundings import NONE, Surroundings, read_surroundings

if TYPE_CHECKING:
    from hpcrl.spec.study import Study

_KINDS = ("path", "modules", "container")
Module = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+/:=@~-]*$")]


class Standing(Model):
    """An environment that stands already: one of `path`, `modules`, `container`."""

    path: str | None = Field(
        None, min_length=1, description="a venv or conda environment; relative to the study's file, or absolute"
    )
    modules: tuple[Module, ...] | None = Field(None, description="environment modules, loaded in this order")
    container: str | None = Field(
        None, min_length=1, description="an image for `apptainer exec`: a file, or an address such as docker://..."
    )
    options: tuple[str, ...] = Field((), description="further options of `apptainer exec`")

    @model_validator(mode="after")
    def _one_kind(self) -> Standing:
        if faults := list(self._faults()):
            raise Faults(faults)
        return self

    def _faults(self) -> Iterator[tuple[Key, str]]:
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            yield (), f"expected one of {', '.join(_KINDS)}, got {' and '.join(given) or 'none of them'}"
        if self.modules == ():
            yield ("modules",), "is empty: name at least one, or write `environment: none`"
        if self.options and self.container is None:
            yield ("options",), "are of a `container`, and there is none"
        for name in ("path", "container"):
            text = getattr(self, name) or ""
            if "\0" in text:
                yield (name,), "holds a NUL character"
            if text.startswith("-"):
                yield (name,), f"{text} would be read as an option: write ./{text}"
        if self.path and ":" in self.path:
            yield ("path",), f"{self.path} holds a colon, which no entry of PATH may hold"
        if found := secret_among(self.options):
            yield ("options",), f"{found} looks like a secret: export it in your shell, never write it into a study"
        for number, option in enumerate(self.options):
            if "\0" in option:
                yield ("options", number), "holds a NUL character"
            elif not option:
                yield ("options", number), "is empty"


def _tag(value: Any) -> str:
    return "tagged-name" if isinstance(value, str) else "tagged-standing"


EnvironmentOfStudy = Annotated[
    Annotated[Name, Tag("tagged-name")] | Annotated[Standing, Tag("tagged-standing")], Discriminator(_tag)
]


def surroundings_of(environment: str | Standing | None) -> Surroundings | None:
    """Return what a study's commands are entered into, None where that is an environment of hpcrl's."""
    return read_surroundings(
        environment.model_dump(exclude_none=True) if isinstance(environment, Standing) else environment
    )


def surroundings_faults(study: Study) -> Iterator[tuple[Key, str]]:
    """Give what built-in training cannot run in: hpcrl's own process would have to be in it."""
    how = surroundings_of(study.environment)
    if study.workload.algorithm is None or how is None or how.path:
        return
    at: Key = ("environment",) if how.kind == NONE else ("environment", how.kind)
    yield (
        at,
        f"`{how.kind}` is for commands: built-in training runs inside hpcrl's own process: leave `environment` out, or name a "
        "venv or conda environment with `path`",
    )
