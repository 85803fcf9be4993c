"""The software environment: exact pins by flavour. The conda YAML and the requirements are rendered from it."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from hpcrl.errors import UsageError
from hpcrl.spec.quantities import Name

# A pin may have a marker. Names and versions follow PEP 508. `==1.0` also matches `1.0+cpu`, `===1.0` does not.
Pin = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[a-z0-9,_-]+\])?={2,3}[A-Za-z0-9.+!*_-]+( ?; ?[^;\n]+)?$"
    ),
]
Directory = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_*-]+(/[A-Za-z0-9_*-]+)*$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")]
CondaPackage = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*(=[0-9][0-9a-z.]*)?$")]
_CUDA = re.compile(r"^(nvidia-(?!ml-py)|cuda-|triton|jax-cuda|.*-cu1\d)")


# Modules that every cell imports from its environment.
_OF_TELEMETRY = ("numpy", "psutil")


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Flavour(Model):
    packages: tuple[Pin, ...] = Field(description="exact pins of every package, including dependencies")
    conda: tuple[CondaPackage, ...] = Field((), description="further conda packages, such as cudatoolkit=11.6")
    min_capability: float | None = Field(
        None, gt=0, description="least CUDA compute capability of GPUs that the packages have programs for"
    )
    find_links: tuple[str, ...] = Field((), description="pages with wheels that are not in the package index")
    libraries: dict[Directory, Directory] = Field(
        {},
        description="package: directories below site-packages (* allowed) whose shared libraries are linked into the package's directory",
    )


class Horovod(Model):
    """Additional packages for Horovod cells. `build` is a source distribution that is built in the environment."""

    packages: tuple[Pin, ...] = Field(
        (), description="pins, including dependencies and the packages that the build needs"
    )
    conda: tuple[Name, ...] = ()
    imports: tuple[str, ...] = ()
    build: Pin | None = None
    settings: dict[Variable, str] = Field({}, description="environment variables of the build")
    cuda_settings: dict[Variable, str] = Field({}, description="the same, for the cuda flavour only")

    def variables(self, flavour: str) -> dict[str, str]:
        """Return the variables of the build for one flavour."""
        return dict(sorted({**self.settings, **(self.cuda_settings if flavour == "cuda" else {})}.items()))


class SoftwareEnvironment(Model):
    name: Name
    title: str
    framework: Name | None = Field(
        None, description="framework whose built-in training must run before the environment is accepted"
    )
    python: Annotated[str, StringConstraints(pattern=r"^3\.\d+$")]
    imports: tuple[str, ...] = Field((), description="modules that must import before the environment is accepted")
    packages: tuple[Pin, ...] = Field((), description="pins that every flavour shares")
    conda: tuple[Name, ...] = Field((), description="conda packages that the Python packages need, such as a compiler")
    horovod: Horovod | None = None
    flavours: dict[Literal["cpu", "cuda"], Flavour]
    not_built: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$")] | None = Field(
        None, description="why this environment is only a description, which hpcrl renders and never builds"
    )

    @model_validator(mode="after")
    def _cpu_is_cpu(self) -> SoftwareEnvironment:
        flavour = self.flavours.get("cpu")
        for pin in (*self.packages, *(flavour.packages if flavour else ())):
            if _CUDA.match(pin):
                raise ValueError(f"the cpu flavour must not have CUDA packages: remove {pin}")
        return self

    @model_validator(mode="after")
    def _telemetry_runs(self) -> SoftwareEnvironment:
        for name, flavour in self.flavours.items():
            there = {re.split(r"[\[=]", pin)[0].lower() for pin in (*self.packages, *flavour.packages)}
            if missing := [package for package in _OF_TELEMETRY if package not in there]:
                raise ValueError(
                    f"packages: hpcrl's telemetry needs {' and '.join(missing)} in every environment, which flavour {name} lacks: add a pin"
                )
        return self

    def check_is_for_cells(self) -> None:
        """Check that hpcrl builds this environment.

        Raises:
            UsageError: it is only a description; the message has the reason.
        """
        if self.not_built:
            raise UsageError(f"environment {self.name} is not built: {self.not_built}: choose another environment")

    def pins(self, flavour: Literal["cpu", "cuda"], horovod: bool) -> list[str]:
        """Return every pin of one flavour, sorted."""
        chosen = self.flavours[flavour]
        extra = self.horovod.packages if horovod and self.horovod else ()
        return sorted({*self.packages, *chosen.packages, *extra}, key=str.lower)
