"""Trials of a search as cells: drawn in their processes, told to one journal, exactly one of each cell ends."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from hpcrl.errors import HpcrlError
from hpcrl.formats.plan import read_cells, read_plan
from hpcrl.formats.record import read_frames
from hpcrl.run.search import Trial, _Lock, _pruner, begin
from hpcrl.searches import FOLDER, PRUNERS, SearchFacts, journal_name
from tests.builders import command_study, dqn_study, planned, run_cell, run_task

SPACE: dict[str, Any] = {
    "learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
    "batch_size": {"low": 16, "high": 64, "step": 16},
    "double": [True, False],
}
# Its objective is known: -(x - 3)^2, and y does nothing.
PROGRAM = "import hpcrl; hpcrl.log(loss=({x} - 3) ** 2 + 0 * len('{y}'))"


def command_search(**changes: Any) -> dict[str, Any]:
    space = {"x": {"low": 0.0, "high": 10.0}, "y": ["a", "b"]}
    search = {"trials": 4, "space": space, **changes}
    return command_study(
        [sys.executable, "-c", PROGRAM], axes={}, search=search, score="loss", better="lower", seeds=[1, 2]
    )


def trials(plan: Path) -> list[Any]:
    (journal,) = (plan / FOLDER).glob("*.journal")
    storage = JournalStorage(JournalFileBackend(str(journal)))
    return optuna.load_study(study_name="search", storage=storage).trials


@contextmanager
def full_disk(file: Path, room: int) -> Iterator[None]:
    """Let no file grow beyond the size of this one and `room` bytes, in this process and those that it starts: a line is cut off."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def run_all(plan: Path, job: str | None = None) -> None:
    for each in read_plan(plan).cell_jobs():
        for task in range(each.count if job in (None, each.name) else 0):
            run_task(plan, each.name, task)


def last(plan: Path, cell: str) -> dict[str, Any]:
    newest = max((plan / "records").glob(f"{cell}*"), key=lambda path: path.stat().st_mtime_ns)
    frames = {frame.kind: frame.payload for frame in read_frames(newest)}
    return {**frames["header"], **frames.get("footer", {})}


def test_the_best_trial_runs_anew_on_seeds_that_no_trial_saw(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_search())
    run_all(plan)
    ended = trials(plan)
    assert [each.state for each in ended] == [TrialState.COMPLETE] * 4
    best = min(ended, key=lambda each: each.value)
    assert best.value == pytest.approx((best.params["x"] - 3) ** 2)
    cells = list(read_cells(plan))
    runs = [(cell.config, last(plan, cell.id)) for cell in cells]
    assert [config["seed"] for config, _ in runs] == [0, 0, 0, 0, 1, 2]
    assert [footer["drawn"] for config, footer in runs if config["search"] == "best"] == [best.params] * 2
    assert [footer["outcome"] for _, footer in runs] == ["completed"] * 6
    (journal,) = (plan / FOLDER).glob("*.journal")
    assert [footer["search"] for _, footer in runs] == [journal.stem] * 6


def test_the_best_waits_for_every_trial(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_search())
    of_trials, of_best = read_plan(plan).cell_jobs()
    assert (of_trials.wave, of_best.wave) == (0, 1)
    for task in range(3):
        run_task(plan, of_trials.name, task)
    assert run_task(plan, of_best.name).returncode == 1
    cell = next(iter(read_cells(plan, of_best)))
    assert last(plan, cell.id)["reason"].startswith("1 of 4 trials have not ended: run `hpcrl submit` again")


def test_one_worker_and_a_fixed_seed_give_the_same_trials(tmp_path: Path) -> None:
    drawn = []
    for name, seed in (("a", 0), ("b", 0), ("c", 7)):
        plan = planned(tmp_path / name, command_search(seed=seed))
        run_all(plan)
        drawn.append([(each.params, each.value) for each in trials(plan)])
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({params["x"] for params, _ in drawn[0]}) == 4  # each process draws other numbers


def test_workers_at_once_end_exactly_the_trials_that_were_asked_for(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_search(trials=12))
    job = read_plan(plan).cell_jobs()[0]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda task: run_task(plan, job.name, task), range(12)))
    ended = trials(plan)
    assert [each.state for each in ended] == [TrialState.COMPLETE] * 12
    assert sorted(each.user_attrs["number"] for each in ended) == list(range(1, 13))


def test_a_killed_trial_counts_as_failed_and_its_cell_draws_another(tmp_path: Path) -> None:
    program = (
        "import os, time, hpcrl\nwhile os.path.exists('wait'): time.sleep(.05)\nhpcrl.log(loss={x} + 0 * len('{y}'))"
    )
    study = command_search()
    study["workload"]["command"] = [sys.executable, "-c", program]
    plan = planned(tmp_path / "p", study)
    wait = tmp_path / "p-study" / "wait"
    wait.touch()
    job = read_plan(plan).cell_jobs()[0]
    command = [sys.executable, "-m", "hpcrl.run", str(plan), "--job", job.name, "--index", "0"]
    environment = os.environ | {"PYTHONPATH": str(plan / "worker.zip")}
    with subprocess.Popen(command, env=environment, start_new_session=True) as killed:
        until = time.monotonic() + 60
        while not list(plan.glob("searches/*.journal")) or not trials(plan) or not list(plan.glob("records/*")):
            assert time.monotonic() < until
            time.sleep(0.1)
        os.killpg(killed.pid, signal.SIGKILL)
    wait.unlink()
    run_all(plan)
    ended = trials(plan)
    assert [each.state for each in ended] == [TrialState.FAIL] + [TrialState.COMPLETE] * 4
    assert [each.user_attrs["number"] for each in ended] == [1, 1, 2, 3, 4]
    assert ended[0].params != ended[1].params


def test_a_trial_that_had_ended_before_its_record_was_complete_runs_again_as_it_was(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_search())
    job = read_plan(plan).cell_jobs()[0]
    run_task(plan, job.name)
    first = trials(plan)
    run_task(plan, job.name)
    assert [(each.params, each.value) for each in trials(plan)] == [(each.params, each.value) for each in first]
    assert [each.state for each in trials(plan)] == [TrialState.COMPLETE]


def test_pruned_trials_are_rows_of_their_own_and_are_done(tmp_path: Path) -> None:
    study = dqn_study(search={"trials": 9, "pruner": "median", "sampler": "random", "space": SPACE}, seeds=[1])
    study["workload"]["hyperparameters"] |= {"total_steps": 2000, "evaluation_interval": 250}
    plan = planned(tmp_path / "p", study)
    run_all(plan, read_plan(plan).cell_jobs()[0].name)
    cells = [last(plan, cell.id) for cell in read_cells(plan, read_plan(plan).cell_jobs()[0])]
    outcomes = [each["outcome"] for each in cells]
    states = {"completed": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
    assert [each.state for each in trials(plan)] == [states[each] for each in outcomes]
    pruned = [each for each in cells if each["outcome"] == "pruned"]
    assert pruned, "nine random trials, of which the median prunes the worse half after the fifth"
    assert {each["steps"] < 2000 for each in pruned} == {True}
    assert {each["reason"].split(" after ")[0] for each in pruned} == {"pruned by median"}
    assert not list(plan.glob("checkpoints/*.npz"))


@pytest.mark.parametrize(("value", "reason"), [("float('nan')", "is nan"), (None, "was not reported")])
def test_an_objective_that_is_no_number_is_a_failed_trial(tmp_path: Path, value: str | None, reason: str) -> None:
    study = command_search()
    call = f"hpcrl.log(loss={value})" if value else "hpcrl.log(other=1)"
    study["workload"]["command"] = [sys.executable, "-c", f"import hpcrl; '{{x}}{{y}}'; {call}"]
    plan = planned(tmp_path / "p", study)
    job = read_plan(plan).cell_jobs()[0]
    assert run_task(plan, job.name).returncode == 1
    footer = last(plan, next(iter(read_cells(plan))).id)
    assert (footer["outcome"], footer["reason"]) == ("failed", f"the objective loss {reason}")
    assert [each.state for each in trials(plan)] == [TrialState.FAIL]


def test_a_process_that_is_killed_while_it_holds_the_journal_stops_no_other(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_search())
    job = read_plan(plan).cell_jobs()[0]
    run_task(plan, job.name)
    (journal,) = (plan / FOLDER).glob("*.journal")
    hold = "import sys; from pathlib import Path; from hpcrl.run.search import _Lock; _Lock(Path(sys.argv[1])).acquire(); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold, journal], stdin=-1, stdout=-1) as holder:
        assert holder.stdout and holder.stdout.readline() == b"1\n"
        holder.kill()
    assert run_task(plan, job.name, 1).returncode == 0
    assert [each.state for each in trials(plan)] == [TrialState.COMPLETE] * 2


@pytest.mark.parametrize("content", [b"\0\1\2", b'{"op_code": 0}\n', b"[]\n"])
def test_a_damaged_journal_ends_the_cell_with_one_sentence(tmp_path: Path, content: bytes) -> None:
    plan = planned(tmp_path / "p", command_search())
    job = read_plan(plan).cell_jobs()[0]
    run_task(plan, job.name)
    (journal,) = (plan / FOLDER).glob("*.journal")
    journal.write_bytes(content)
    done = run_task(plan, job.name, 1)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    footer = last(plan, list(read_cells(plan))[1].id)
    assert f"{journal.name}: is damaged" in footer["reason"]


def test_a_read_only_disk_ends_the_cell_with_one_sentence(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_search())
    first, second, *_ = read_cells(plan)
    run_cell(plan, first.id)
    search = plan / FOLDER
    mount = f"mount --bind {search} {search} && mount -o remount,bind,ro {search}"
    program = f"{mount} && exec {sys.executable} -m hpcrl.run {plan} --cell {second.id}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", program],
        env=os.environ | {"PYTHONPATH": str(plan / "worker.zip")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.stderr.startswith(("unshare:", "mount:")):
        pytest.skip("this user may not mount")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert last(plan, second.id)["reason"].endswith("the search cannot use it: Read-only file system")
    assert run_cell(plan, second.id).returncode == 0  # once it can be written


def test_a_journal_that_is_full_for_a_while_loses_nothing_and_stops_nobody(tmp_path: Path) -> None:
    search = {"trials": 2, "space": SPACE, "directions": {"mean_score": "maximize"}}
    plan = planned(tmp_path / "p", dqn_study(search=search))
    read, (cell, other, *_) = read_plan(plan), read_cells(plan)
    trial = begin(plan, read, cell)
    assert trial is not None
    said: list[str] = []
    trial.say = said.append
    (journal,) = (plan / FOLDER).glob("*.journal")
    trial.prune(500, 1.0)
    with full_disk(journal, 20):
        assert not trial.prune(1000, 2.0)
        assert not trial.prune(1500, 6.0)
    assert said == ["the journal of the search cannot be used (File too large): the training goes on without it"]
    assert begin(plan, read, other) is not None
    assert trial.end("completed", {}) is None
    first, _ = trials(plan)
    assert (first.state, first.value) == (TrialState.COMPLETE, pytest.approx(3.0))
    assert [name for name in first.user_attrs if name.startswith("evaluation")] == [
        "evaluation 500", "evaluation 1000", "evaluation 1500",
    ]  # fmt: skip


def test_a_process_that_could_not_use_the_journal_does_not_keep_it_locked(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_search())
    job = read_plan(plan).cell_jobs()[0]
    run_task(plan, job.name)
    (journal,) = (plan / FOLDER).glob("*.journal")
    away = journal.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        _Lock(journal).acquire()
    away.rename(journal)
    assert run_task(plan, job.name, 1).returncode == 0  # it would wait for ever


def test_a_training_goes_on_where_its_journal_cannot_be_written(tmp_path: Path) -> None:
    """The quota leaves room for the record, for the drawn values, and for no evaluation."""
    plan = planned(tmp_path / "p", dqn_study(search={"trials": 2, "space": SPACE}))
    read, (first, second, *_) = read_plan(plan), read_cells(plan)
    assert begin(plan, read, first) is not None
    (journal,) = (plan / FOLDER).glob("*.journal")
    drawing = journal.stat().st_size
    study = optuna.load_study(
        study_name="search", storage=JournalStorage(JournalFileBackend(str(journal), _Lock(journal)))
    )
    for number in range(40):  # larger than any other file of a cell
        study.set_user_attr(str(number), "x" * 50_000)
    with full_disk(journal, drawing + 60):
        done = run_task(plan, read.cell_jobs()[0].name, 1)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    (record,) = (plan / "records").glob(f"{second.id}*")
    frames = list(read_frames(record))
    told = [frame.payload["text"] for frame in frames if frame.kind == "event"]
    assert [text for text in told if text.startswith("the journal of the search cannot be used (File too large)")]
    steps = [row[0] for frame in frames if frame.kind == "evaluations" for row in frame.payload["table"]]
    assert steps == [500, 1000, 1500]
    footer = last(plan, second.id)
    assert (footer["outcome"], footer["steps"]) == ("failed", 1500)
    assert footer["reason"].startswith("the search cannot be told of it: ")


def test_a_trial_whose_process_failed_while_it_drew_does_not_run_for_ever(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(search={"trials": 2, "space": SPACE}))
    read, (cell, other, *_) = read_plan(plan), read_cells(plan)
    begin(plan, read, cell)
    (journal,) = (plan / FOLDER).glob("*.journal")
    storage = JournalStorage(JournalFileBackend(str(journal), _Lock(journal)))
    optuna.load_study(study_name="search", storage=storage).ask()
    begin(plan, read, other)
    assert [each.state for each in trials(plan)] == [TrialState.RUNNING, TrialState.FAIL, TrialState.RUNNING]


def test_more_trials_continue_the_search(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_search())
    run_all(plan)
    ids = [json.loads(line)["id"] for line in (plan / "cells.jsonl").read_text().splitlines()]
    more = planned(tmp_path / "q", command_search(trials=6))
    again = [json.loads(line)["id"] for line in (more / "cells.jsonl").read_text().splitlines()]
    assert again[:4] == ids[:4]
    assert not set(again[4:]) & set(ids)


class OfOptuna:
    """Takes what a trial tells Optuna."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.user_attrs, self.reported = attributes, list[tuple[float, int]]()

    def set_user_attr(self, name: str, value: Any) -> None:
        self.user_attrs[name] = value

    def report(self, value: float, step: int) -> None:
        self.reported.append((value, step))

    def should_prune(self) -> bool:
        return False


def test_pruners_have_their_options(tmp_path: Path) -> None:
    facts = SearchFacts(3, {}, {"mean_score": "maximize"}, pruner="hyperband", pruner_options={"min_resource": 3, "max_resource": 81, "reduction_factor": 9})  # fmt: skip
    made = _pruner(facts)
    assert (made._min_resource, made._max_resource, made._reduction_factor) == (3, 81, 9)
    for pruner, options in PRUNERS.items():
        _pruner(replace(facts, pruner=pruner, pruner_options={name: max(2, least) for name, least in options.items()}))
    # A search that sets no options goes on with the journal that it had before there were any.
    plain = replace(facts, pruner="none", pruner_options={})
    assert journal_name({}, plain) == "b55430fcc921.journal"
    assert journal_name({}, facts) != journal_name({}, replace(facts, pruner_options={}))


def test_a_trial_that_comes_to_an_evaluation_again_counts_it_once() -> None:
    """It goes on from a checkpoint that is older than its last evaluation."""
    facts = SearchFacts(3, {}, {"mean_score": "maximize"})
    first = OfOptuna({})
    before = Trial(facts, {}, None, first)
    for step, value in ((100, 1.0), (200, 2.0), (300, 3.0)):
        before.prune(step, value)
    again = OfOptuna(json.loads(json.dumps(first.user_attrs)))
    after = Trial(facts, {}, None, again)
    for step, value in ((200, 2.0), (300, 3.0), (400, 6.0)):
        after.prune(step, value)
    assert again.reported == [(2.0, 2), (3.0, 3), (6.0, 4)]
    assert after.mean_score() == pytest.approx(3.0)


def test_the_mean_score_is_that_of_all_evaluations(tmp_path: Path) -> None:
    space = {"learning_rate": SPACE["learning_rate"]}
    study = dqn_study(search={"trials": 1, "directions": {"mean_score": "maximize"}, "space": space})
    plan = planned(tmp_path / "p", study)
    run_task(plan, read_plan(plan).cell_jobs()[0].name)
    (record,) = (plan / "records").iterdir()
    rows = [row for frame in read_frames(record) if frame.kind == "evaluations" for row in frame.payload["table"]]
    assert [row[0] for row in rows] == [500, 1000, 1500]
    assert trials(plan)[0].value == pytest.approx(sum(row[2] for row in rows) / 3)


def test_a_journal_is_of_what_is_computed(tmp_path: Path) -> None:
    """More time continues a search; another workload begins a new one."""
    journals = []
    for name, changes in (("a", {}), ("b", {"resources": {"memory": "2G", "time": "00:20:00"}}), ("c", {})):
        study = command_search() | changes
        if name == "c":
            study["workload"] = {"command": [sys.executable, "-c", "pass # {x} {y}"]}
        plan = planned(tmp_path / name, study)
        run_task(plan, read_plan(plan).cell_jobs()[0].name)
        journals.append([path.name for path in (plan / FOLDER).glob("*.journal")])
    assert journals[0] == journals[1] != journals[2]


def test_a_line_that_was_cut_off_is_not_joined_to_the_next(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_search())
    job = read_plan(plan).cell_jobs()[0].name
    run_task(plan, job, 0)
    (journal,) = (plan / FOLDER).glob("*.journal")
    with journal.open("ab") as file:
        file.write(b'{"op_code": 5, "worker_id": "a", "trial')
    run_task(plan, job, 1)
    assert [each.state for each in trials(plan)] == [TrialState.COMPLETE] * 2


def test_without_optuna_a_trial_fails_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path / "p", command_search())
    read = read_plan(plan)
    monkeypatch.setattr("hpcrl.run.search.find_spec", lambda name: None)
    with pytest.raises(HpcrlError, match=r"a search needs Optuna in the environment of its cells, and .* has none"):
        begin(plan, read, next(read_cells(plan)))


def test_a_diverged_trial_counts_and_is_never_drawn_again(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(search={"trials": 2, "space": SPACE}))
    read, cell = read_plan(plan), next(read_cells(plan))
    first = begin(plan, read, cell)
    assert first is not None
    first.end("diverged", {})
    again = begin(plan, read, cell)
    assert again is not None and again.values == first.values
    assert again.end("completed", {"final_score": 1e9}) is None
    (kept,) = trials(plan)
    assert (kept.state, kept.user_attrs["outcome"]) == (TrialState.FAIL, "diverged")


def test_a_diverged_trial_is_not_submitted_again(tmp_path: Path) -> None:
    study = dqn_study(search={"trials": 1, "space": {"learning_rate": [1e30, 1e31]}})
    plan = planned(tmp_path / "p", study)
    (job, _) = read_plan(plan).cell_jobs()
    assert run_task(plan, job.name).returncode == 0
    cell = next(read_cells(plan))
    assert last(plan, cell.id)["outcome"] == "diverged"
    assert list((plan / "attempts").glob(f"{cell.id}.*.completed"))


def test_what_an_evaluation_costs_does_not_grow_with_their_number(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(search={"trials": 2, "space": SPACE}))
    trial = begin(plan, read_plan(plan), next(read_cells(plan)))
    assert trial is not None
    (journal,) = (plan / FOLDER).glob("*.journal")
    sizes = []
    for number in range(1, 201):
        trial.prune(1000 * number, 100.0 + number)
        sizes.append(journal.stat().st_size)
    assert sizes[199] - sizes[150] < 1.2 * (sizes[60] - sizes[11])
    resumed = Trial(read_plan(plan).study.search or pytest.fail(), {}, None, trials(plan)[0])
    assert resumed.mean_score() == pytest.approx(200.5)


@pytest.mark.parametrize("reported", ["return", "episode_return", "mean_score"])
def test_a_command_s_objective_is_the_value_that_it_reported(tmp_path: Path, reported: str) -> None:
    study = command_search(directions={"mean_score": "maximize"} if reported == "mean_score" else None)
    study |= {"score": None, "better": None} if reported != "mean_score" else {}
    program = f"import hpcrl; hpcrl.log(**dict([('{reported}', {{x}} + 0 * len('{{y}}'))]))"
    study["workload"]["command"] = [sys.executable, "-c", program]
    plan = planned(tmp_path / "p", {key: value for key, value in study.items() if value is not None})
    run_task(plan, read_plan(plan).cell_jobs()[0].name)
    (ended,) = trials(plan)
    assert ended.value == pytest.approx(ended.params["x"])
