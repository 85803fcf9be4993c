"""Names of the configurations of a study: what distinguishes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcrl.formats.labels import SETTLING
from hpcrl.profilers import KEY as PROFILE
from hpcrl.report.design import digits_of, display
from hpcrl.searches import ROLE

FIRST = ("algorithm", "framework", "execution", "topology", ROLE)  # by their value alone
_MANY = 4  # settings; with so many a name tells only what is unusual
_USUAL = 2 / 3  # of the configurations have a value that is usual
_BASE, _NOTHING = "base", "nothing of base"

_Config = Mapping[str, Any]
_Settled = tuple[Any, ...] | None


def names_of(configs: Sequence[_Config]) -> list[str]:
    """Return the names of the configurations of one study: two configurations have two names.

    What has one value for an algorithm or topology is left out. To lack a setting is a value, too. Where many settings differ and most
    configurations share a value of each, as in an ablation, a name tells what is not so, and :func:`base` those values.
    """
    naming = _Naming(configs)
    return [naming.name(config) for config in configs]


def base(configs: Sequence[_Config]) -> str:
    """Say which values the configurations have that names leave out, "" if names tell all."""
    return " ".join(_Naming(configs).sentences())


class _Naming:
    """What the names of some configurations tell."""

    def __init__(self, configs: Sequence[_Config]) -> None:
        keys = dict.fromkeys(key for config in configs for key in config if key not in (*FIRST, "seed"))
        self._digits = {key: digits_of(config.get(key) for config in configs) for key in keys}
        # By what settles other settings, and by the texts of all values, since a seed is no configuration.
        distinct: dict[_Settled, dict[tuple[str, ...], _Config]] = {}
        for config in configs:
            texts = tuple(str(config.get(key)) for key in (*FIRST, *keys))
            distinct.setdefault(_settled(config), {}).setdefault(texts, config)
        self._groups = {of: _Group(of, [*some.values()], keys) for of, some in distinct.items()}

    def name(self, config: _Config) -> str:
        first = [display(config[key]) for key in FIRST if config.get(key) is not None]
        group = self._groups[_settled(config)]
        others = sorted(self._setting(key, config.get(key)) for key in group.told(config))
        if group.is_opposite(config):
            others = [_NOTHING, *others]
        return " ".join(first + (others or [_BASE] * bool(group.usual))) or "all cells"

    def sentences(self) -> Iterator[str]:
        for settled, group in self._groups.items():
            for key in sorted(set(group.implied.values())):
                others = ", ".join(sorted(other for other, one in group.implied.items() if one == key))
                yield f"Each value of {key} goes with one of {others}, which names leave out."
            if group.usual:
                names = " ".join(display(value) for value in settled or () if value is not None)
                whose = f" of {names}" if len(self._groups) > 1 else ""
                told = [f"“{_BASE}”{whose} has {self._values(group.usual)}"]
                told += [f"“{_NOTHING}” has {self._values(group.opposite)}"] if group.opposite else []
                yield f"{', '.join(told)}; other names tell what differs from “{_BASE}”."

    def _values(self, settings: _Config) -> str:
        return ", ".join(sorted(self._setting(key, value) for key, value in settings.items()))

    def _setting(self, key: str, value: object) -> str:
        return f"no {key}" if value is None else f"{key} {display(value, self._digits[key])}"


class _Group:
    """Configurations whose other settings the same algorithm or topology settles.

    Attributes:
        implied: the settings that names leave out because another one has a value of its own for each of theirs, which names tell.
        usual: the settings that names leave out, with their usual values.
        opposite: these settings of the one configuration that has no usual value, if there is one.
    """

    def __init__(self, settled: _Settled, configs: Sequence[_Config], keys: Iterable[str]) -> None:
        self._shown = [
            key
            for key in keys
            if settled is None or key in ("actors", PROFILE) or len({str(config.get(key)) for config in configs}) > 1
        ]
        self.implied = _implied(configs, self._shown)
        self._shown = [key for key in self._shown if key not in self.implied]
        self.usual = _usual(configs, self._shown)
        unlike = [config for config in configs if self._is_unlike(config)]
        self.opposite = {key: unlike[0].get(key) for key in self.usual} if len(unlike) == 1 else {}

    def told(self, config: _Config) -> list[str]:
        """Return the settings that a name tells."""
        hidden = self.usual if self.is_opposite(config) else ()
        return [
            key
            for key in self._shown
            if key not in hidden
            and (_differs(config, key, self.usual[key]) if key in self.usual else config.get(key) is not None)
        ]

    def is_opposite(self, config: _Config) -> bool:
        return bool(self.opposite) and self._is_unlike(config)

    def _is_unlike(self, config: _Config) -> bool:
        return bool(self.usual) and all(_differs(config, key, value) for key, value in self.usual.items())


def _settled(config: _Config) -> _Settled:
    """Return what settles other settings: an algorithm or a topology with its actors has its own; None without both."""
    of = tuple(config.get(name) for name in SETTLING)
    return of if any(value is not None for value in of) else None


def _differs(config: _Config, key: str, value: object) -> bool:
    return str(config.get(key)) != str(value)


def _implied(configs: Sequence[_Config], shown: Sequence[str]) -> dict[str, str]:
    """Return the settings that go with another one, value by value, and that one: the one with the shortest name.

    A setting with a value of its own in each configuration goes with every other, and tells nothing of them.
    """
    alike: dict[tuple[int, ...], list[str]] = {}
    for key in shown:
        texts = [str(config.get(key)) for config in configs]
        numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        if 1 < len(numbers) < len(configs) and None not in (config.get(key) for config in configs):
            alike.setdefault(tuple(numbers[text] for text in texts), []).append(key)
    implied: dict[str, str] = {}
    for keys in alike.values():
        first = min(keys, key=lambda key: (len(key), key))
        implied |= {key: first for key in keys if key != first}
    return implied


def _usual(configs: Sequence[_Config], shown: Sequence[str]) -> dict[str, Any]:
    """Return the usual values of settings; nothing if few settings have one."""
    usual = {}
    for key in shown:
        values = {str(config.get(key)): config.get(key) for config in configs}
        text, number = Counter(str(config.get(key)) for config in configs).most_common(1)[0]
        if len(values) > 1 and key != PROFILE and number >= _USUAL * len(configs):
            usual[key] = values[text]
    return usual if len(usual) >= _MANY else {}
