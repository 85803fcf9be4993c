"""What a study calls its score, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """The number that a study is about: of built-in training the last policy's return, of a command what it reported.

    Args:
        name: of the metric that the study names; "" for a return.
        command: whether the cells run a command.
    """

    name: str = ""
    more_is_better: bool = True
    command: bool = False

    @property
    def title(self) -> str:
        return self.name or "final score"

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
            return "The last return that a run reported."
        return "The mean return of the last policy over its final greedy episodes."


def score_of(study: Mapping[str, object], command: bool) -> Score:
    """Return the score of a study, as the dataset's index has it."""
    return Score(str(study.get("score") or ""), study.get("better") != "lower", command)
