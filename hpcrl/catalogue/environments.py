"""hpcrl's own environments, by the names that studies give them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcrl.catalogue.fields import check, flag, integer, names
from hpcrl.errors import UsageError


@dataclass(frozen=True)
class OwnEnvironment:
    """An environment of hpcrl, described where its packages are not installed.

    `entry` is where Gymnasium finds its class, and `arguments` are the class's arguments. It has `actions` discrete actions, observations of
    `shape` and `dtype`, and episodes of at most `limit` steps, and of `more_steps` more than a study's own limit. `options` is the
    dataclass of what a study may set, from which `made` makes the description. `arrays`: hpcrl also has many of it as NumPy arrays.
    `drawn`: MuJoCo draws what it shows, with a GL library.
    """

    entry: str
    arguments: dict[str, Any]
    actions: int
    shape: tuple[int, ...]
    dtype: str
    limit: int
    more_steps: int = 0
    options: type[Any] | None = None
    made: Callable[[Any], OwnEnvironment] | None = None
    arrays: bool = False
    drawn: bool = False

    def with_options(self, name: str, given: Mapping[str, Any]) -> OwnEnvironment:
        """Return the environment `name` with these options.

        Raises:
            UsageError: an option is unknown or invalid.
        """
        if not self.options or not self.made:
            if given:
                raise UsageError(f"{name}: has no options, got {', '.join(given)}")
            return self
        return self.made(check(name, self.options, given, "option"))


@dataclass(frozen=True)
class DoorsOptions:
    """The options of Doors-v0.

    The grid is `size` x `size`, and its wall has `doors` doors. The others are faults of the published JAX environment: with `same_column`
    the goal is always straight above the agent, with `extra_step` an episode has one step more than its limit, and with
    `reward_bumping` the agent is rewarded as if the wall had not stopped it.
    """

    size: int = integer(15, 3, 100)
    doors: int = integer(3, 1, 100)
    same_column: bool = flag(False)
    extra_step: bool = flag(False)
    reward_bumping: bool = flag(False)


def _box_slider(size: int) -> OwnEnvironment:
    entry, shape = "hpcrl.rl.envs.box_slider:BoxSlider", (size, size, 3)
    return OwnEnvironment(entry, {"size": size}, 25, shape, "uint8", 80, drawn=True)


def _doors(options: DoorsOptions) -> OwnEnvironment:
    if options.doors > options.size:
        raise UsageError(f"Doors-v0: doors: expected at most size, which is {options.size}, got {options.doors}")
    arguments = {name: getattr(options, name) for name in names(DoorsOptions) if name != "extra_step"}
    return OwnEnvironment(
        entry="hpcrl.rl.envs.doors:Doors",
        arguments=arguments,
        actions=5,
        shape=(options.size**2,),
        dtype="uint8",
        limit=38,
        more_steps=int(options.extra_step),
        options=DoorsOptions,
        made=_doors,
        arrays=True,
    )


OWN_ENVIRONMENTS = {
    "BoxSlider-v0": _box_slider(128),
    "BoxSlider64-v0": _box_slider(64),
    "Doors-v0": _doors(DoorsOptions()),
}


def option_names(environment: str | None, given: Iterable[str]) -> set[str]:
    """Return the options that axes of a study may have: those of an environment of hpcrl, and those `given` in the workload."""
    own = OWN_ENVIRONMENTS.get(environment or "")
    return {*given, *(names(own.options) if own and own.options else ())}
