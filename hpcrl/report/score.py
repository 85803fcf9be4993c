"""The score of a study: its name, and whether higher is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

_KEYS = ["plan", "cell", "attempt"]
_RETURN = "return"  # the dataset's name for every return, episode_return included


@dataclass(frozen=True)
class Score:
    """The main result of a study: the return of the last policy in built-in training, a reported value of a command.

    Args:
        name: name of the study's metric; "" for a return.
        command: whether the cells run a command.
        returned: whether a command reported a return, so that it trains, too.
    """

    name: str = ""
    more_is_better: bool = True
    command: bool = False
    returned: bool = False

    @property
    def trains(self) -> bool:
        """Whether the study is about reinforcement learning. If not, the page has no word about it."""
        return not self.command or self.returned

    @property
    def runs(self) -> str:
        """The name for the cells of one configuration."""
        return "seeds" if self.trains else "repeats"

    @property
    def title(self) -> str:
        return self.name or ("final score" if self.trains else "score")

    @property
    def axis(self) -> str:
        if self.name:
            return f"{self.name} ({'higher' if self.more_is_better else 'lower'} is better)"
        return "last reported return" if self.command else "final score (mean return of the last policy)"

    @property
    def meaning(self) -> str:
        if self.name:
            return f"The last value of {self.name} that a run reported; {'higher' if self.more_is_better else 'lower'} is better."
        if self.command:
            return "The last return that a run reported." if self.returned else ""
        return "The mean return of the last policy over its final greedy episodes."


def score_of(study: Mapping[str, object], rows: pd.DataFrame, episodes: pd.DataFrame) -> Score:
    """Return the score of a study.

    Args:
        study: its entry in the dataset's index. rows: its attempts. episodes: the dataset's table.
    """
    command = bool((rows["workload"] == "command").all())
    name = str(study.get("score") or "")
    reports = episodes[episodes["name"] == _RETURN] if command else episodes[:0]
    own = reports.set_index(_KEYS).index.isin(pd.MultiIndex.from_frame(rows[_KEYS]))
    returned = bool(own.any()) or (command and not name and bool(rows["final_score"].notna().any()))
    return Score(name, study.get("better") != "lower", command, returned)
