"""A trial of a search for hyperparameters, or the run of the best one, in the process of its cell.

All trials of a search share a journal in the plan's directory, which is a file of Optuna's: no server. One attempt of a cell runs at a
time, so that a trial that is still called running when its cell starts was killed. It goes on from its checkpoint, or counts as failed
and the cell draws another one: exactly one trial of each cell ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcrl.errors import HpcrlError, UsageError, count
from hpcrl.formats.facts import RETURNS, computed
from hpcrl.formats.plan import CHECKPOINTS, Cell, Plan
from hpcrl.searches import BEST, FOLDER, ROLE, TRIAL, SearchFacts, journal_name, setting_of

# User attributes of Optuna's trials.
_CELL, _NUMBER, _OUTCOME, _EVALUATION = "cell", "number", "outcome", "evaluation "  # and the step of the evaluation
_STUDY = "search"
_ANEW = "move it away and run `hpcrl submit --again`, which begins the search anew"
_LONGEST_LINE = 65_536  # of a journal, in bytes; Optuna's lines have some hundreds
# What Optuna raises on a damaged journal, and on one that cannot be used.
_DAMAGED = (ValueError, KeyError, TypeError, IndexError, AssertionError, RuntimeError)
FAULTS = (OSError, *_DAMAGED)


class Trial:
    """The hyperparameters of a cell of a search, and what is told to its journal."""

    def __init__(
        self, search: SearchFacts, values: Mapping[str, Any], study: Any = None, trial: Any = None, journal: str = ""
    ) -> None:
        """Take what :func:`begin` found; without a trial nothing is told. `journal` is the name of the search."""
        self.values, self.journal = dict(values), journal
        self._search, self._study, self._trial = search, study, trial
        self.say: Callable[[str], None] = lambda text: None  # hears once that the journal fails while the trial trains
        self._told = False
        self._unwritten: list[int] = []  # steps of evaluations that the journal does not have
        self._several = len(search.directions) > 1
        kept = trial.user_attrs.items() if trial is not None else ()
        self._evaluations: dict[int, float] = {
            int(name.removeprefix(_EVALUATION)): value for name, value in kept if name.startswith(_EVALUATION)
        }
        self._last = max(self._evaluations, default=0)
        # The trial had ended before its record was complete: it runs again as it was.
        self._before = _ended(trial)

    def prune(self, step: int, value: float) -> bool:
        """Take an evaluation; tell whether the pruner ends the trial here.

        A trial that goes on from a checkpoint may come to a step again. A journal that cannot be used prunes nothing, and the
        evaluation is written later.
        """
        if self._trial is None:
            return False
        if self._before:
            return self._before == "pruned" and step >= self._last
        self._evaluations[step] = value
        self._unwritten.append(step)
        try:
            self._write()
            if self._several or not math.isfinite(value):
                return False
            self._trial.report(value, sum(earlier <= step for earlier in self._evaluations))
            return bool(self._trial.should_prune())
        except FAULTS as error:
            if not self._told:
                self._told = True
                self.say(f"the journal of the search cannot be used ({_cause(error)}): the training goes on without it")
            return False

    def _write(self) -> None:
        """Write the evaluations that the journal does not have."""
        while self._unwritten:
            step = self._unwritten[0]
            self._trial.set_user_attr(f"{_EVALUATION}{step}", self._evaluations[step])
            self._unwritten.pop(0)

    def end(self, outcome: str, facts: Mapping[str, Any]) -> str | None:
        """Tell the journal how the trial ended; return why a completed one has no objective.

        A preempted trial goes on later.

        Raises:
            One of FAULTS: the journal cannot be used.
        """
        if self._trial is None or self._before:
            return None
        if outcome == "preempted":
            with suppress(*FAULTS):
                self._write()
            return None
        self._write()
        from optuna.trial import TrialState

        known = {"mean_score": self.mean_score(), **facts}
        values = [_reported(known, name) for name in self._search.directions]
        wrong = next(
            (name for name, value in zip(self._search.directions, values, strict=True) if not _is(value)), None
        )
        self._trial.set_user_attr(_OUTCOME, "failed" if outcome == "completed" and wrong else outcome)
        if outcome == "pruned":
            self._study.tell(self._trial, state=TrialState.PRUNED)
        elif outcome == "completed" and wrong is None:
            self._study.tell(self._trial, [float(value) for value in values if value is not None])
        else:
            self._study.tell(self._trial, state=TrialState.FAIL)
        if outcome == "completed" and wrong:
            value = _reported(known, wrong)
            return f"the objective {wrong} {'was not reported' if value is None else f'is {value}'}"
        return None

    def mean_score(self) -> float | None:
        """Return the mean of the evaluations; None without one."""
        return sum(self._evaluations.values()) / len(self._evaluations) if self._evaluations else None

    def pruned_because(self) -> str:
        return f"pruned by {self._search.pruner} after {count(len(self._evaluations), 'evaluation')}"


def wanted(search: SearchFacts) -> set[str]:
    """Return the names of the reported values that a trial is compared by."""
    return {name for objective in search.directions for name in _names(objective)}


def _names(objective: str) -> tuple[str, ...]:
    return RETURNS if objective in RETURNS else (objective,)


def _reported(known: Mapping[str, Any], objective: str) -> Any:
    return next((known[name] for name in _names(objective) if known.get(name) is not None), None)


def begin(directory: Path, plan: Plan, cell: Cell) -> Trial | None:
    """Draw the hyperparameters of a cell, or those of its trial before; None if the cell is not part of a search.

    Raises:
        UsageError: it runs the best trial, but trials have not ended, or none completed.
        HpcrlError: the journal cannot be read or written, or Optuna is not installed here.
    """
    search = plan.study.search
    if search is None or ROLE not in cell.config:
        return None
    if find_spec("optuna") is None:
        raise HpcrlError(
            f"a search needs Optuna in the environment of its cells, and {sys.prefix} has none: install it there"
        )
    path = directory / FOLDER / journal_name(_computed_by(plan, cell, search), search)
    try:
        path.parent.mkdir(exist_ok=True)
        if path.exists() and not path.is_file():
            raise HpcrlError(f"{path}: is not a regular file: {_ANEW}")
        study = _open(path, search)
        if cell.config[ROLE] == BEST:
            return Trial(search, _best(study, search, path), journal=path.stem)
        checkpoint = directory / CHECKPOINTS / f"{cell.id}.npz"
        trial = _trial_of(study, search, cell, checkpoint, path)
    except OSError as error:
        raise HpcrlError(f"{path}: the search cannot use it: {_cause(error)}") from None
    except _DAMAGED as error:
        raise HpcrlError(f"{path}: is damaged ({error}): {_ANEW}") from None
    return Trial(search, trial.params, study, trial, path.stem)


def _computed_by(plan: Plan, cell: Cell, search: SearchFacts) -> dict[str, Any]:
    """Return what all cells of a search have in common, without limits of time and memory, which change no result."""
    given = plan.study.given
    setting, derived = setting_of(cell.config, search.space), given.get("computed") or {}
    workload, resources = computed(plan.workload, cell.resources, plan.study.axes)
    return {
        "workload": workload,
        "setting": {name: value for name, value in setting.items() if name not in derived},
        "resources": resources,
        "environment": cell.environment,
    }


class _Lock:
    """Holds a journal for one process that appends to it.

    Optuna's own locks are files, which a killed process would leave for ever. A full disk or a kill may have cut off the last line: it is
    removed, because the next line would be joined to it.
    """

    def __init__(self, path: Path) -> None:
        self._journal, self._path = path, path.with_suffix(".lock")
        self._handle = -1

    def acquire(self) -> bool:
        self._handle = _locked(self._path)
        try:
            _remove_cut_line(self._journal)
        except OSError:
            self.release()  # Optuna releases only what it got
            raise
        return True

    def release(self) -> None:
        os.close(self._handle)


def _locked(path: Path) -> int:
    """Wait until no other process has this file locked, and lock it; return its descriptor. To close it is to unlock it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX)
    except OSError:
        os.close(handle)
        raise
    return handle


@contextmanager
def _drawing(journal: Path) -> Iterator[None]:
    """Let no other process draw from this search meanwhile."""
    handle = _locked(journal.with_suffix(".drawing"))
    try:
        yield
    finally:
        os.close(handle)


def _cause(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _remove_cut_line(journal: Path) -> None:
    with journal.open("r+b") as file:
        begin = max(0, file.seek(0, os.SEEK_END) - _LONGEST_LINE)
        file.seek(begin)
        whole, newline, cut = file.read().rpartition(b"\n")
        if cut.startswith(b"{") and (
            newline or not begin
        ):  # else it is no line of Optuna's, and the journal is damaged
            file.truncate(begin + len(whole) + len(newline))


def _open(path: Path, search: SearchFacts) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(path), _Lock(path))),
        study_name=_STUDY,
        directions=list(search.directions.values()),
        load_if_exists=True,
        pruner=_pruner(search),
    )


def _trial_of(study: Any, search: SearchFacts, cell: Cell, checkpoint: Path, journal: Path) -> Any:
    from optuna.trial import Trial as OptunaTrial
    from optuna.trial import TrialState

    earlier = [other for other in study.trials if other.user_attrs.get(_CELL) == cell.id]
    for frozen in earlier:
        if _ended(frozen):
            return frozen
    for frozen in earlier:
        if frozen.state == TrialState.RUNNING:
            if checkpoint.exists():
                return OptunaTrial(study, frozen._trial_id)
            study.tell(frozen.number, state=TrialState.FAIL)
    checkpoint.unlink(missing_ok=True)  # of other values
    # A new process draws for each trial: the number of the trial is a part of the seed.
    study.sampler = _sampler(search, f"{search.seed} {cell.config[TRIAL]} {len(earlier)}")
    with _drawing(journal):
        for frozen in study.trials:
            # Its process failed while it drew.
            if frozen.state == TrialState.RUNNING and _CELL not in frozen.user_attrs:
                study.tell(frozen.number, state=TrialState.FAIL)
        trial = study.ask(_distributions(search.space))
        trial.set_user_attr(_CELL, cell.id)
        trial.set_user_attr(_NUMBER, cell.config[TRIAL])
    return trial


def _best(study: Any, search: SearchFacts, path: Path) -> dict[str, Any]:
    from optuna.trial import TrialState

    mine = [trial for trial in study.trials if trial.user_attrs.get(_NUMBER, search.trials + 1) <= search.trials]
    ended = {trial.user_attrs[_CELL] for trial in mine if _ended(trial)}
    if (missing := search.trials - len(ended)) > 0:
        raise UsageError(
            f"{missing} of {count(search.trials, 'trial')} have not ended: run `hpcrl submit` again, which runs them and then this cell"
        )
    completed = [trial for trial in mine if trial.state == TrialState.COMPLETE]
    if not completed:
        raise UsageError(f"{path}: no trial completed, so that there is no best one")
    sign = -1 if next(iter(search.directions.values())) == "maximize" else 1
    best = min(completed, key=lambda trial: (sign * trial.values[0], trial.user_attrs[_NUMBER]))
    return dict(best.params)


def _ended(trial: Any) -> str | None:
    """Return completed, pruned or diverged; None for a trial that runs, failed in another way, or does not exist.

    A diverged trial would diverge again: it counts, so that a search does not look for others in its place.
    """
    if trial is None or not hasattr(trial, "state"):  # the trials that run have no state of their own
        return None
    if trial.user_attrs.get(_OUTCOME) == "diverged":
        return "diverged"
    return {"COMPLETE": "completed", "PRUNED": "pruned"}.get(trial.state.name)


def _distributions(space: Mapping[str, Any]) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    distributions: dict[str, Any] = {}
    for name, domain in space.items():
        if not isinstance(domain, Mapping):
            distributions[name] = CategoricalDistribution(tuple(domain))
            continue
        low, high, log, step = domain["low"], domain["high"], domain.get("log", False), domain.get("step")
        if isinstance(low, int) and isinstance(high, int):
            distributions[name] = IntDistribution(low, high, log=log, step=step or 1)
        else:
            distributions[name] = FloatDistribution(low, high, log=log, step=step)
    return distributions


def _sampler(search: SearchFacts, what: str) -> Any:
    import warnings

    from optuna import samplers

    seed = int.from_bytes(hashlib.sha256(what.encode()).digest()[:4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `constant_liar` is called experimental
        makers = {
            "tpe": lambda: samplers.TPESampler(seed=seed, constant_liar=True),
            "random": lambda: samplers.RandomSampler(seed=seed),
            "nsga2": lambda: samplers.NSGAIISampler(seed=seed),
        }
        return makers[search.sampler]()


def _pruner(search: SearchFacts) -> Any:
    from optuna import pruners

    makers: dict[str, Any] = {
        "none": pruners.NopPruner,
        "median": pruners.MedianPruner,
        "hyperband": pruners.HyperbandPruner,
        "halving": pruners.SuccessiveHalvingPruner,
    }
    return makers[search.pruner](**search.pruner_options)


def _is(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
