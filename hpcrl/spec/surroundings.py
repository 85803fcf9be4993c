"""`environment` of a study if it does not name one of hpcrl's: a directory, modules, a container, or none."""

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
    """An existing environment: exactly one of `path`, `modules`, `container`."""

    path: str | None = Field(
        None, min_length=1, description="a venv or conda environment; relative to the study's file, or absolute"
    )
    modules: tuple[Module, ...] | None = Field(None, description="environment modules to load, in this order")
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
            yield ("options",), "are for a `container`, which is missing: remove them"
        for name in ("path", "container"):
            text = getattr(self, name) or ""
            if "\0" in text:
                yield (name,), "contains a NUL character"
            if text.startswith("-"):
                yield (name,), f"{text} would be read as an option: write ./{text}"
        if self.path and ":" in self.path:
            yield ("path",), f"{self.path} contains a colon, which PATH does not allow: choose another directory"
        if secret := secret_among(self.options):
            yield ("options",), f"{secret} looks like a secret: remove it from the study and export it in your shell"
        for number, option in enumerate(self.options):
            if "\0" in option:
                yield ("options", number), "contains a NUL character"
            elif not option:
                yield ("options", number), "is empty"


def _tag(value: Any) -> str:
    return "tagged-name" if isinstance(value, str) else "tagged-standing"


EnvironmentOfStudy = Annotated[
    Annotated[Name, Tag("tagged-name")] | Annotated[Standing, Tag("tagged-standing")], Discriminator(_tag)
]


def surroundings_of(environment: str | Standing | None) -> Surroundings | None:
    """Return the environment in which a study's commands run; None if it is one of hpcrl's."""
    return read_surroundings(
        environment.model_dump(exclude_none=True) if isinstance(environment, Standing) else environment
    )


def surroundings_faults(study: Study) -> Iterator[tuple[Key, str]]:
    """Give the fault of an environment that built-in training cannot use, because hpcrl's own process must run in it."""
    how = surroundings_of(study.environment)
    if not study.workload.trains or how is None or how.path:
        return
    at: Key = ("environment",) if how.kind == NONE else ("environment", how.kind)
    yield (
        at,
        f"`{how.kind}` is for commands, and built-in training runs in hpcrl's own process: remove `environment`, or name a "
        "venv or conda environment with `path`",
    )
