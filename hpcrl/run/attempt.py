"""One rank of one attempt of a cell, from the idle machine before it to the closed record.

It imports NumPy, which reads the number of threads at its import: :mod:`hpcrl.run.cell` sets it before.
"""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil

from hpcrl.catalogue.registry import is_out_of_memory
from hpcrl.catalogue.training import learning_gpus
from hpcrl.errors import HpcrlError, UsageError, count
from hpcrl.formats.attempts import COMPLETED, Start, end_attempt, note_unmeasured
from hpcrl.formats.mlflow import key_of_attempt, parameters
from hpcrl.formats.plan import CHECKPOINTS, CLOCKS, Cell, Job, Plan
from hpcrl.formats.record import UNMEASURED
from hpcrl.rl.distributed.group import Group
from hpcrl.run.agents import save_agents
from hpcrl.run.allocation import Allocation, limit_gpus, record_of
from hpcrl.run.command import Places, run_command_cell, unsafe
from hpcrl.run.events import DURING, LiveEvents, write_events
from hpcrl.run.header import header_of
from hpcrl.run.interrupt import Interrupt
from hpcrl.run.judging import judged
from hpcrl.run.leftovers import GRACE_SECONDS, end_after_training
from hpcrl.run.metric_files import read_metric_files
from hpcrl.run.mlflow import Named, Server
from hpcrl.run.profiling import Profiling
from hpcrl.run.recorder import Recorder, Sampler
from hpcrl.run.search import FAULTS, Trial, wanted
from hpcrl.run.together import Together
from hpcrl.run.tracking import DURING as TRACKED
from hpcrl.run.tracking import INLINE, InlineTracking, TrackingBeside
from hpcrl.run.training import Ended, TrainingCell, before_import, train_cell
from hpcrl.searches import ROLE, TRIAL
from hpcrl.slurm.client import Slurm
from hpcrl.surroundings import expanded
from hpcrl.telemetry import idle
from hpcrl.telemetry.calibration import Calibration
from hpcrl.telemetry.clocks import offset, serve
from hpcrl.telemetry.meter import Meter
from hpcrl.telemetry.phases import PhaseClock
from hpcrl.telemetry.processes import adopt_orphans, name_runner

_HURRIED_SECONDS = 1.0  # between TERM and KILL for what outlives a training that a signal ended
# Exit codes of a rank, so that a failed cell is a failed job.
EXIT = {"completed": 0, "pruned": 0, "preempted": 0, "failed": 1, "diverged": 1, "oom": 1, "timeout": 1}


class RankOfAttempt:
    """Runs its part of a cell under telemetry. The attempt has been taken."""

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        job: Job,
        cell: Cell,
        allocation: Allocation,
        start: Start,
        of_hpcrl: Mapping[str, str | None],
        trial: Trial | HpcrlError | None = None,
        profiler: str | None = None,
        window: tuple[int, int | None] = (0, None),
        is_extra: bool = False,
    ) -> None:
        """Measure the idle machine and its calibration, and prepare the workload.

        Args:
            of_hpcrl: variables of hpcrl's own processes, where the study's are different; None: unset.
            trial: the trial of a search, which gave the cell its hyperparameters, or why there is none.
            profiler: what looks at the workload.
            window: the environment steps at which it begins and ends.
            is_extra: the profiler is not the cell's own: this attempt neither completes the cell nor uses its checkpoint.

        Raises:
            UsageError: the attempt has a record already.
        """
        self._idle_gpus = limit_gpus(cell.asked.gpus_per_node)
        adopt_orphans()
        if plan.runs_command:
            name_runner()
        self._directory, self._plan, self._job, self._cell = directory, plan, job, cell
        self._allocation, self._start = allocation, start
        self._trial = trial
        self._profiler, self._is_extra = profiler, is_extra
        self._interrupt = Interrupt(allocation.ranks)
        self._first_on_node = allocation.local_rank == 0
        self._clock_offset = _clock_offset(directory, cell, allocation) if self._first_on_node else None
        # By the host: nodes of a private Slurm may share one, and a further node would only find this cell's own mark there.
        idle_file = directory / idle.DIRECTORY / f"{platform.node()}.json"
        # The mark stays as long as this object: no other cell then measures an idle machine.
        self._baseline, self._mark = idle.begin_cell(idle_file, plan.study.idle_seconds)
        self._calibration = Calibration(directory, allocation.node)
        seconds = plan.study.calibration_seconds
        self._calibrated = self._calibration.measure(seconds) if self._first_on_node and seconds else None
        self._begun = time.time()
        spent = os.times()
        self._cpu_before = spent.children_user + spent.children_system
        if not plan.runs_command:
            self._cpu_before += spent.user + spent.system
        self._clock = PhaseClock()
        self._path = record_of(directory, cell, allocation)
        if self._path.exists():
            raise UsageError(f"{self._path}: this attempt already has a record: make sure that it does not run twice")
        self._group = Group(allocation.rank, allocation.ranks, allocation.local_rank, allocation.addresses)
        self._environment = {name: value for name, value in (os.environ | of_hpcrl).items() if value is not None}
        has_learner = plan.has_actors(cell.config)
        before_import(plan.frameworks_of(cell.config), cell.asked, self._group, has_learner)
        self._tensorboard = None if plan.runs_command else str(cell.config.get("tensorboard") or plan.study.tensorboard)
        self._places = Places.of(directory, plan.workload, cell.id)
        self._shows = allocation.rank == 0 and self._tensorboard in ("during", "after")
        suffix = f"-{allocation.rank}" if allocation.ranks > 1 else ""
        if is_extra:
            suffix += f"-{allocation.attempt}"
        self._checkpoint = directory / CHECKPOINTS / f"{cell.id}{suffix}.npz"
        framework = None if plan.runs_command else str(cell.config.get("framework"))
        limit = plan.study.profile_limit
        self._profiling = Profiling(
            profiler,
            directory,
            self._path.name,
            limit,
            self._clock,
            framework,
            window=window,
            hurried=lambda: self._interrupt.caught is not None,
        )
        self._values = {**cell.config, **cell.resources, "cell": cell.id}
        self._senders: list[int] = []  # processes that send the values beside the training

    def run(self, interval: float) -> int:
        """Run it, with a sample every `interval` seconds; return the exit code."""
        self._open_record()
        # The ranks of a cell are siblings: mpirun or the process that started them is their parent.
        root = _starter() if self._allocation.ranks > 1 else os.getpid()
        sampler = Sampler(self._recorder, root, interval, self._environment) if self._first_on_node else None
        untracked = self._track()
        meter = Meter(within=not self._plan.runs_command)
        if self._allocation.ranks == 1:
            self._recorder.meter = meter
        ended = self._work(sampler, self._trial if isinstance(self._trial, HpcrlError) else untracked)
        if not self._plan.runs_command:
            self._end_leftovers(sampler)
        used = meter.usage()  # before waiting for the sampler, whose usage is not the workload's
        self._read_metrics()
        if sampler and (unmeasured := sampler.stop()):
            self._recorder.event(f"{UNMEASURED}: {unmeasured}")
            note_unmeasured(self._directory, self._start)
        ended = self._told(self._judged(self._logged(ended)))
        outcome, reason, requeue = self._after_signals(ended)
        if self._first_on_node and not self._calibrated and (calibrated := self._calibration.read()):
            self._recorder.calibration(calibrated)
        if (profile := self._profiling.profile) and profile.note:
            self._recorder.event(f"profile: {profile.note}")
        written = self._recorder.footer(
            outcome, reason, ended.facts | self._recorder.known(used) | self._profiling.facts()
        )
        if not self._is_extra:
            self._save_agents(ended)
        of_search = isinstance(self._trial, Trial) and self._cell.config[ROLE] == TRIAL
        # Nothing of a pruned or diverged trial is left to run.
        over = COMPLETED if outcome == "pruned" or (outcome == "diverged" and of_search) else outcome
        if written and not self._is_extra:
            end_attempt(self._directory, self._start, over, self._allocation.rank, self._allocation.ranks)
        self._recorder.close_followers()
        if self._shows and self._tensorboard != "during":
            write_events(self._path, self._places.own, self._allocation.node, self._allocation.attempt)
        if requeue and not self._requeued():
            return 1
        # A launcher ends the other ranks only when one has failed.
        return EXIT[over] or int(ended.leaves_others)

    def _open_record(self) -> None:
        allocation, baseline = self._allocation, self._baseline
        kept = {*self._plan.study.expect}
        if search := self._plan.study.search:
            kept |= wanted(search)
        self._recorder = Recorder(self._path, self._clock, cpu_before=self._cpu_before, wanted=kept)
        token = self._start.submission
        facts = header_of(self._directory, self._plan, self._job, self._cell, allocation, token, self._profiler)
        if self._first_on_node:
            facts |= {"idle_cpu_percent": baseline.cpu_percent, "idle_memory_percent": baseline.memory_percent}
        if isinstance(self._trial, Trial):
            facts |= {"drawn": self._trial.values, "search": self._trial.journal}
            self._trial.say = self._recorder.event
        self._recorder.header(facts | {"clock_offset": self._clock_offset, "tensorboard": self._tensorboard})
        self._recorder.look = self._profiling.look
        if self._first_on_node and baseline.note:
            self._recorder.event(baseline.note)
        if self._first_on_node and self._idle_gpus:
            used = count(self._cell.asked.gpus_per_node, "GPU")
            self._recorder.event(f"idle: GPU {', GPU '.join(self._idle_gpus)} (the cell uses {used} of its node)")
        asked = self._cell.asked
        learning = learning_gpus(asked.gpus, asked.tasks, asked.parallelism)
        if self._first_on_node and not self._plan.runs_command and asked.gpus > learning:
            self._recorder.event(
                f"idle: {asked.gpus - learning} of the cell's {asked.gpus} GPUs (a rank learns on one)"
            )
        if self._shows and self._tensorboard == "during":
            self._recorder.followers.append(
                LiveEvents(self._places.own, self._recorder.started, allocation.node, allocation.attempt)
            )
            self._recorder.event(DURING)
        if self._calibrated:
            self._recorder.calibration(self._calibrated)

    def _track(self) -> HpcrlError | None:
        """Let MLflow get the values from now on, if the cell asks for it; return why it cannot."""
        cell, allocation, config = self._cell, self._allocation, self._cell.config
        how = config.get("tracking")
        if not how or allocation.rank or self._is_extra or self._plan.runs_command:
            return None
        study, cluster = self._plan.study.name, self._plan.cluster.name
        words = [study, cluster, *(config.get(name) for name in ("framework", "execution", "seed")), cell.id]
        asked = {name: value for name, value in cell.resources.items() if value is not None}
        columns = {"study": study, "cluster": cluster, "plan": self._plan.id, "cell": cell.id} | asked
        started = self._recorder.started
        named = Named(
            study,
            "-".join(str(word) for word in [*words, allocation.attempt] if word is not None),
            key_of_attempt(self._plan.id, cell.id, allocation.attempt),
            int(started * 1000),
            parameters(columns | {"attempt": allocation.attempt}, config),
            self._trial.journal if isinstance(self._trial, Trial) else "",
        )
        try:
            server = Server(os.environ)
            given = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_")}
            follower = (
                InlineTracking(server, named, started, self._recorder.event)
                if how == INLINE
                else TrackingBeside(named, started, self._recorder.event, self._environment | given)
            )
        except (HpcrlError, OSError) as error:
            return HpcrlError(str(error))
        self._recorder.followers.append(follower)
        if isinstance(follower, TrackingBeside):
            self._senders = follower.processes()
        self._recorder.event(TRACKED)
        return None

    def _work(self, sampler: Sampler | None, wrong: HpcrlError | None) -> Ended:
        """Run the workload, unless something was `wrong` before; its errors are outcomes, because the record must be closed."""
        try:
            if wrong:
                raise wrong
            return self._command(sampler) if self._plan.runs_command else self._training()
        except HpcrlError as error:
            print(f"hpcrl: {error}", file=sys.stderr)
            return Ended("failed", str(error), {})
        except MemoryError:
            return Ended("oom", "out of memory", {})
        except Exception as error:  # a workload may raise any exception
            traceback.print_exc()
            kind = "oom" if is_out_of_memory(str(error)) else "failed"
            first_line = next(iter(str(error).strip().splitlines()), "")
            return Ended(kind, f"{type(error).__name__}: {first_line}".removesuffix(": "), {})

    def _end_leftovers(self, sampler: Sampler | None) -> None:
        """End what outlives a training, and note it: it must neither be missing in the usage nor disturb the next cell."""
        self._clock.switch("other")
        keep = [*(sampler.processes() if sampler else ()), *self._senders]
        # After a signal there may be only seconds until the footer must be written.
        grace = GRACE_SECONDS if self._interrupt.caught is None else _HURRIED_SECONDS
        if left := end_after_training(keep, grace):
            self._recorder.event(left)

    def _command(self, sampler: Sampler | None) -> Ended:
        keep = sampler.processes() if sampler else []
        rank, ranks = self._allocation.rank, self._allocation.ranks
        return run_command_cell(
            self._plan.workload,
            self._values,
            self._places,
            self._recorder,
            self._clock,
            lambda: self._interrupt.caught,
            keep,
            Together(self._directory, self._start, rank, ranks) if ranks > 1 else None,
            self._plan.study.surroundings,
            self._profiling,
        )

    def _training(self) -> Ended:
        if self._shows and (wrong := unsafe(self._places)):
            self._shows = False
            raise UsageError(wrong)
        study = self._plan.study
        return train_cell(
            TrainingCell(self._plan.workload, self._cell.config, self._cell.asked, study.goal, study.precise_phases),
            self._recorder,
            self._clock,
            self._interrupt.stop,
            self._checkpoint,
            self._group,
            self._trial if isinstance(self._trial, Trial) else None,
            self._profiling if self._profiler else None,
        )

    def _read_metrics(self) -> None:
        """Record what the workload wrote into files of its own."""
        if not (metrics := self._plan.workload.get("metrics")):
            return
        known, surroundings = self._values | {"workdir": self._places.code}, self._plan.study.surroundings
        if surroundings and surroundings.path:  # whose libraries read what its programs write
            sys.path += map(str, expanded(surroundings.path).glob("lib/python3*/site-packages"))
        for entry in read_metric_files(metrics, known, self._places.start, self._begun, self._recorder.event):
            self._recorder.value(entry)

    def _logged(self, ended: Ended) -> Ended:
        """Fail a completed training in whose loop the values should have been logged, and were not: its times are of something else."""
        why = next(
            (
                follower.ended
                for follower in self._recorder.followers
                if isinstance(follower, InlineTracking) and follower.ended
            ),
            None,
        )
        if why is None or ended.outcome != "completed":
            return ended
        return replace(ended, outcome="failed", reason=f"{why}: its times are not those of a training that logs")

    def _judged(self, ended: Ended) -> Ended:
        """Compare the values of a rank that completed with the expected ones; its checkpoint is of no use any more.

        Nor is that of a training that diverged: a learner with actors has one of its last evaluation, and others would begin anew.
        """
        if ended.outcome in ("completed", "pruned", "diverged"):
            self._checkpoint.unlink(missing_ok=True)
        if self._allocation.rank != 0 or ended.outcome != "completed":
            return ended
        last = self._recorder.last if self._plan.runs_command else ended.facts
        return judged(ended, self._plan.study.expect, last)

    def _told(self, ended: Ended) -> Ended:
        """Tell the search how its trial ended."""
        if not isinstance(self._trial, Trial):
            return ended
        facts = self._recorder.last if self._plan.runs_command else ended.facts
        try:
            wrong = self._trial.end(ended.outcome, facts)
        except (HpcrlError, *FAULTS) as error:
            wrong = f"the search cannot be told of it: {error}"
        return replace(ended, outcome="failed", reason=wrong) if wrong else ended

    def _save_agents(self, ended: Ended) -> None:
        """Save the agents of built-in training, now that everything is measured."""
        kept = self._plan.study.agents
        if kept == "none":
            return
        config = self._cell.config
        names = ("framework", "execution", "seed")
        origin = {
            "study": self._plan.study.name,
            "plan": self._plan.id,
            "hpcrl": self._plan.hpcrl,
            "cell": self._cell.id,
        }
        origin |= {"attempt": self._allocation.attempt} | {name: config[name] for name in names if name in config}
        save_agents(self._directory, self._cell.id, ended.agents, origin, kept == "framework")

    def _after_signals(self, ended: Ended) -> tuple[str, str | None, bool]:
        """Return outcome and reason, and whether the job must be requeued: a preempted cell goes on or was out of time."""
        allocation, outcome, reason = self._allocation, ended.outcome, ended.reason
        if outcome != "preempted":
            return outcome, reason, False
        if allocation.ranks > 1:
            self._interrupt.wait(5)  # the signal of another rank came first
        if self._interrupt.caught != self._plan.workload.get("on_warning", "USR2"):
            return outcome, reason or "ended by TERM; a checkpoint was kept", False
        if allocation.key is not None and allocation.restarts < self._plan.cluster.max_requeues:
            return outcome, reason, True
        return "timeout", f"the time limit was near after {allocation.restarts} requeues", False

    def _requeued(self) -> bool:
        """Let the first rank requeue the job; return False if Slurm refuses."""
        if self._allocation.rank == 0 and self._allocation.key:
            try:
                Slurm().requeue(self._allocation.key)
            except HpcrlError as error:
                print(f"hpcrl: the cell has a checkpoint, but was not requeued: {error}", file=sys.stderr)
                return False
        return True


def _starter() -> int:
    """Return the process that started this node's ranks. Each rank has a supervisor between the two."""
    return psutil.Process(os.getppid()).ppid()


def _clock_offset(directory: Path, cell: Cell, allocation: Allocation) -> float | None:
    """Return by how many seconds this node's wall clock is ahead of the first node's; None if that is not known."""
    if allocation.nodes == 1:
        return None
    file = directory / CLOCKS / f"{cell.id}.{allocation.attempt}"
    try:
        if allocation.rank == 0:
            serve(file, towards=allocation.addresses[-1].rpartition(":")[0])
            return 0.0
        measured = offset(file)
    except OSError:  # a full disk, or no sockets: the cell still runs
        return None
    return measured[0] if measured else None
