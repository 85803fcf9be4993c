"""What a study calls its score, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

_KEYS = ["plan", "cell", "attempt"]
_RETURN = "return"  # the name that the dataset gives to every return, episode_return too


@dataclass(frozen=True)
class Score:
    """The number that a study is about: of built-in training the last policy's return, of a command what it reported.

    Args:
        name: of the metric that the study names; "" for a return.
        command: whether the cells run a command.
        returned: whether some command reported a return: it then trains, too.
    """

    name: str = ""
    more_is_better: bool = True
    command: bool = False
    returned: bool = False

    @property
    def trains(self) -> bool:
        """Whether the study is about reinforcement learning; else no word of it is on the page."""
        return not self.command or self.returned

    @property
    def runs(self) -> str:
        """What the cells of one configuration are called."""
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
        study: as the dataset's index has it. rows: its attempts. episodes: the dataset's table.
    """
    command = bool((rows["workload"] == "command").all())
    name = str(study.get("score") or "")
    reports = episodes[episodes["name"] == _RETURN] if command else episodes[:0]
    own = reports.set_index(_KEYS).index.isin(pd.MultiIndex.from_frame(rows[_KEYS]))
    returned = bool(own.any()) or (command and not name and bool(rows["final_score"].notna().any()))
    return Score(name, study.get("better") != "lower", command, returned)
