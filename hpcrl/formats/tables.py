"""The dataset: a directory of Parquet tables, one across all clusters. docs/data-dictionary.md explains each column.

DATASET/dataset.json          format, version, which records are merged (size, time, part)
DATASET/<table>/part-*.parquet
DATASET/quarantine.json       records that could not be read, with the reason
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hpcrl.errors import UsageError, suggestion
from hpcrl.formats.damage import check_names, instead_of, reading
from hpcrl.formats.files import open_of_stranger
from hpcrl.formats.mappings import check_mappings
from hpcrl.formats.runs import NAME as RUNS
from hpcrl.formats.runs import runs
from hpcrl.formats.shapes import COUNT, FACTS, first_wrong

if TYPE_CHECKING:
    import pandas

VERSION = 4
INDEX = "dataset.json"
QUARANTINE = "quarantine.json"


def _field(name: str, kind: pa.DataType, text: str, unit: str = "") -> pa.Field:
    metadata = {"description": text, **({"unit": unit} if unit else {})}
    return pa.field(name, kind, metadata=metadata)


_TEXT = pa.string()
_F64, _I64 = pa.float64(), pa.int64()
_LIST = pa.list_(pa.float32())
_WORD = pa.dictionary(pa.int32(), pa.string())  # text of few different values
_KEYS = [
    _field("plan", _WORD, "id of the plan"),
    _field("cell", _WORD, "id of the cell, a hash of what it computes"),
    _field("attempt", _WORD, "one execution of the cell: Slurm job id and restart count, or local-..."),
]
_RANK = [
    _field("node", _WORD, "node that the rank ran on"),
    _field("rank", _I64, "rank within the job"),
]
ROW_KEYS = tuple(field.name for field in (*_KEYS, *_RANK))  # of each table but cells; a record's header has them

SCHEMAS: dict[str, pa.Schema] = {
    "cells": pa.schema(
        [
            *_KEYS,
            _field("study", _WORD, "name of the study"),
            _field("cluster", _WORD, "name of the cluster profile that the plan was made for"),
            _field(
                "attempt_number",
                _I64,
                "1 for the first attempt of the cell, in order of submission; starts by hand come last",
            ),
            _field("latest", pa.bool_(), "whether this is the cell's newest attempt"),
            _field(
                "outcome",
                _WORD,
                "completed, failed, timeout, oom, cancelled, preempted, diverged, pruned, node_fail, running, lost",
            ),
            _field("reason", _TEXT, "why it did not complete"),
            _field("workload", _WORD, "algorithm, or `command`"),
            _field("framework", _WORD, "framework of built-in training"),
            _field("execution", _WORD, "eager, lazy, xla, fused"),
            _field("parallelism", _WORD, "none, horovod, native"),
            _field("overcommit", pa.bool_(), "whether the ranks of a node share its `cpus` cores"),
            _field("seed", _I64, "seed of the cell"),
            _field("profile", _WORD, "profiler that the attempt ran under; missing without one"),
            _field(
                "config",
                _TEXT,
                "every axis value, as JSON; in a search also the drawn values, and `search_id`, the name of its journal",
            ),
            _field(
                "settings",
                _WORD,
                "what the study sets for all of its cells, as JSON: its workload, of which `config` may replace parts (datasets of older versions lack it)",
            ),
            _field("environment", _WORD, "key of the software environment"),
            _field("nodes", _I64, "nodes asked for"),
            _field("tasks", _I64, "ranks asked for"),
            _field("cpus", _I64, "cores per rank asked for"),
            _field("gpus", _I64, "GPUs asked for, of the whole cell"),
            _field("gpu_type", _WORD, "GPU type asked for"),
            _field("memory_mib", _I64, "memory per rank that this attempt asked for", "MiB"),
            _field("time_limit", _I64, "time that this attempt asked for", "s"),
            _field("partition", _WORD, "partition that the plan chose"),
            _field("qos", _WORD, "QOS that the plan chose"),
            _field(
                "charged_cores",
                _F64,
                "cores that the site counts for the cell: whole nodes where it gives whole nodes, cores that come with GPUs included",
            ),
            _field("charge_rate", _F64, "what the site charges for an hour of the cell, in `charge_unit`"),
            _field("charge_unit", _WORD, "the site's own billing unit; missing where its profile has none"),
            _field("job_id", _TEXT, "Slurm job id, with the array index"),
            _field("submission", _WORD, "token of the submission that granted the attempt; empty for a start by hand"),
            _field("records", _I64, "records merged (one per rank)"),
            _field(
                "hosts",
                _I64,
                "machines that the attempt ran on: fewer than its nodes on a simulated cluster, which has several nodes on one machine; missing in "
                "older datasets, and if a record does not name its host",
            ),
            _field("started", _F64, "start of the attempt, Unix time", "s"),
            _field(
                "wall_time",
                _F64,
                "from the start of the record, after hpcrl's own imports and the calibration and before the framework's import, to its last frame",
                "s",
            ),
            _field(
                "training_time",
                _F64,
                "training only: without imports, compilation before the first step, and evaluations (records up to format 3 include evaluations)",
                "s",
            ),
            _field(
                "evaluation_time",
                _F64,
                "evaluations; on ranks other than the first: waiting for the first rank's evaluations",
                "s",
            ),
            _field("setup_time", _F64, "imports and construction, before compilation", "s"),
            _field("compile_time", _F64, "compilation and warm-up, before the first step", "s"),
            _field(
                "phase_time", _F64, "cost of timing the phases: number of phase changes x the cost of an empty one", "s"
            ),
            _field("precise_phases", pa.bool_(), "whether the loop waited for the device at the end of every update"),
            _field("tensorboard", _WORD, "when TensorBoard events were written: none, during (the measurement), after"),
            _field(
                "resumed_step",
                _I64,
                "step of the checkpoint from which a requeued cell continued; its training, evaluation and goal times include the earlier attempts",
            ),
            _field("steps", _I64, "environment steps taken; for a command the largest step that it reported"),
            _field("episodes", _I64, "episodes finished"),
            _field(
                "updates",
                _I64,
                "batches that the learner learned from, of off-policy algorithms; missing in `fused` modes",
            ),
            _field(
                "final_score",
                _F64,
                "mean return of the last policy over the final greedy episodes; for a command the last value of the study's `score`, or the last return",
            ),
            _field("best_score", _F64, "best evaluation during training; for a command the best reported value"),
            _field(
                "goal_step",
                _I64,
                "environment steps at the first evaluation that reached the goal and was confirmed by 30 episodes from other starts",
            ),
            _field("goal_time", _F64, "training time at that evaluation", "s"),
            _field(
                "goal_wall_time",
                _F64,
                "from the start of the record to the end of that evaluation: the whole time that a user waits",
                "s",
            ),
            _field("cpu_seconds", _F64, "CPU time of the workload's own processes on all ranks, without hpcrl's", "s"),
            _field("cpu_utilisation", _F64, "mean of own CPU time / (wall time x cores asked for)", "1"),
            _field("machine_cpu_percent", _F64, "whole machine: mean of psutil.cpu_percent", "%"),
            _field(
                "context_switches", _I64, "context switches of all threads of the workload's own processes, all ranks"
            ),
            _field(
                "memory_peak",
                _F64,
                "maximum memory of the workload's own processes on one node: PSS, with the peak of each process as the kernel recorded it; "
                "a lower bound if between two readings forked processes copied shared pages, or several processes peaked together",
                "B",
            ),
            _field(
                "rss_peak",
                _F64,
                "maximum sum of their resident memory in a sample; shared pages count several times",
                "B",
            ),
            _field(
                "pss_peak",
                _F64,
                "maximum PSS in a sample; a shared page is divided among the processes that share it",
                "B",
            ),
            _field(
                "cgroup_cpu_seconds",
                _F64,
                "CPU time that the job's control group counted, including sampler and calibration",
                "s",
            ),
            _field(
                "cgroup_memory_peak",
                _F64,
                "maximum memory that the job's control group counted on one node: it misses no peak, but it includes page cache, hpcrl's own "
                "processes and whatever else ran in the job's step",
                "B",
            ),
            _field("sampler_cpu_seconds", _F64, "CPU time of the sampling itself, all nodes", "s"),
            _field("sampler_memory", _F64, "resident memory of the sampler", "B"),
            _field("machine_memory_percent", _F64, "whole machine: mean of psutil.virtual_memory().percent", "%"),
            _field(
                "idle_cpu_percent",
                _F64,
                "whole machine before the plan's first cell on it: psutil.cpu_percent, mean of the nodes",
                "%",
            ),
            _field(
                "idle_memory_percent",
                _F64,
                "whole machine before the plan's first cell on it: psutil.virtual_memory().percent, mean of the nodes",
                "%",
            ),
            _field("gpu_percent", _F64, "mean NVML utilisation of the GPUs that the cell asked for", "%"),
            _field("gpu_memory_peak", _F64, "maximum NVML memory in use", "B"),
            _field("framework_gpu_memory_peak", _F64, "maximum that the framework's allocator held on a GPU", "B"),
            _field("energy", _F64, "NVML energy of the GPUs over the attempt", "J"),
            _field(
                "cpu_energy", _F64, "RAPL energy of the processor packages of the whole nodes over the attempt", "J"
            ),
            _field("compiled", _WORD, "what the framework's compiler really did"),
            _field("collective", _WORD, "method that averaged the gradients of several ranks, and its transport"),
            _field(
                "messages",
                _TEXT,
                "of a learner with actors, as JSON: transitions and blocks that came from each actor, and staleness: by how many intervals of "
                "updates the weights of a block were older than the learner's when it was stored -> number of blocks",
            ),
            _field("versions", _WORD, "package versions, as JSON"),
            _field("variables", _WORD, "environment variables that change how libraries compute, as JSON"),
            _field("hardware", _WORD, "CPU, memory, GPUs, operating system, kernel, virtual machine, as JSON"),
            _field(
                "slurm_state",
                _WORD,
                "state in Slurm's accounting; missing if the array task ran several cells and the record says how this one ended",
            ),
            _field(
                "slurm_exit_code",
                _WORD,
                "exit code and signal in Slurm's accounting; missing if the array task ran several cells",
            ),
            _field(
                "slurm_elapsed",
                _F64,
                "elapsed time in Slurm's accounting; missing if the array task ran several cells",
                "s",
            ),
            _field("slurm_cpu_seconds", _F64, "CPU time in Slurm's accounting", "s"),
            _field("slurm_memory_peak", _F64, "maximum resident memory of a task in Slurm's accounting", "B"),
            _field("slurm_energy", _F64, "energy in Slurm's accounting, if the site measures it", "J"),
            _field("slurm_nodes", _TEXT, "node list in Slurm's accounting"),
            _field("git_commit", _TEXT, "commit of the directory that the command ran in, if it is a git work tree"),
            _field("git_dirty", pa.bool_(), "whether that work tree had changes"),
            _field("workdir", _TEXT, "directory that the command started in, or the original of the plan's copy"),
            _field("modules", _TEXT, "environment modules that were loaded"),
            _field(
                "surroundings",
                _TEXT,
                "environment that was not hpcrl's: its kind, and its path, modules or container image (with size, time of change, "
                "and SHA-256 if the image is small), as JSON",
            ),
            _field("calibration_matrix", _F64, "product of float32 matrices on the cell's cores", "GFLOP/s"),
            _field("calibration_memory", _F64, "memory read and written by copying on one core", "GB/s"),
            _field("calibration_python", _F64, "million iterations of an empty Python loop on one core", "1/s"),
            _field("calibration_environment", _F64, "CartPole-v1 steps on one core", "1/s"),
            _field(
                "clock_offset",
                _F64,
                "offset of a node's wall clock from the first node's (positive: ahead), the largest of all nodes",
                "s",
            ),
            _field("notes", _TEXT, "remarks about the measurements"),
        ]
    ),
    "episodes": pa.schema(
        [
            *_KEYS,
            _field("rank", _I64, "rank within the job"),
            _field(
                "kind",
                _WORD,
                "train: an episode of training; evaluation: mean over greedy episodes; value: reported by a command, or `best_possible_return` of an evaluation if the environment knows it",
            ),
            _field("name", _WORD, "`return`, or the name of a reported value"),
            _field("episode", _I64, "number of the episode, from 1"),
            _field("step", _I64, "environment steps taken so far"),
            _field("time", _F64, "since the start of the record", "s"),
            _field("value", _F64, "the return, or the reported value"),
            _field("length", _I64, "steps of the episode"),
            _field(
                "began",
                _F64,
                "begin of an evaluation, since the start of the record (records up to format 4 lack it)",
                "s",
            ),
            _field(
                "seconds",
                _F64,
                "duration of an evaluation with its confirmation, which is no part of the training time (records up to format 4 lack it)",
                "s",
            ),
        ]
    ),
    "samples": pa.schema(
        [
            *_KEYS,
            *_RANK,
            _field("time", _F64, "since the start of the record, monotonic clock", "s"),
            _field("unix_time", _F64, "wall clock, aligned to the clock of the job's first node", "s"),
            _field("machine_cpu_percent", _F64, "whole machine: psutil.cpu_percent", "%"),
            _field("machine_memory_percent", _F64, "whole machine: psutil.virtual_memory().percent", "%"),
            _field("machine_swap_percent", _F64, "whole machine: psutil.swap_memory().percent", "%"),
            _field("machine_load", _F64, "whole machine: load average over a minute"),
            _field("core_percent", _LIST, "whole machine: psutil.cpu_percent of each core", "%"),
            _field("cpu_seconds", _F64, "CPU time of the job's own processes so far", "s"),
            _field("rss", _F64, "resident memory of the job's own processes, shared pages counted several times", "B"),
            _field(
                "pss",
                _F64,
                "the same with a shared page divided among the processes that share it; read every ten seconds, or when memory grew",
                "B",
            ),
            _field("processes", _I64, "number of the job's own processes"),
            _field("threads", _I64, "number of their threads"),
            _field("read_bytes", _F64, "bytes that the job's own processes have read from disks so far", "B"),
            _field("written_bytes", _F64, "bytes that the job's own processes have written to disks so far", "B"),
            _field(
                "context_switches",
                _F64,
                "context switches of the job's own threads so far, of those that the sampler saw",
            ),
            _field(
                "cgroup_cpu",
                _F64,
                "CPU time of the job's step in its control group, including sampler and calibration",
                "s",
            ),
            _field(
                "cgroup_memory",
                _F64,
                "memory of the job's step in its control group, including page cache",
                "B",
            ),
            _field("cgroup_memory_peak", _F64, "maximum of it so far", "B"),
            _field("gpu_percent", _F64, "NVML utilisation, mean over visible GPUs", "%"),
            _field("gpu_memory", _F64, "NVML memory in use, sum over visible GPUs", "B"),
            _field("gpu_own_memory", _F64, "part of it that belongs to the job's own processes", "B"),
            _field("gpu_power", _F64, "NVML power draw, sum over visible GPUs", "W"),
            _field("gpu_energy", _F64, "NVML energy counter since the sampler began, sum over visible GPUs", "J"),
            _field("gpu_temperature", _F64, "NVML temperature of the hottest visible GPU", "°C"),
            _field("gpu_clock", _F64, "NVML clock of the multiprocessors, mean over visible GPUs", "MHz"),
            _field("gpu_throttle", _I64, "NVML throttle reasons of any visible GPU, as bits"),
            _field(
                "memory_peak",
                _F64,
                "maximum memory of the job's own processes so far: PSS, with the peak of each process as the kernel recorded it",
                "B",
            ),
            _field("cpu_energy", _F64, "RAPL counters of the node's processor packages since the sampler began", "J"),
            _field("each_gpu_percent", _LIST, "NVML utilisation of each visible GPU", "%"),
            _field("each_gpu_memory", _LIST, "NVML memory in use of each visible GPU", "B"),
            _field("each_gpu_power", _LIST, "NVML power draw of each visible GPU", "W"),
        ]
    ),
    "phases": pa.schema(
        [
            *_KEYS,
            _field("rank", _I64, "rank within the job"),
            _field(
                "phase",
                _WORD,
                "setup, compile, env_step, act, replay, transfer, update, communicate, fused, evaluate, other, prepare, check, tensorboard, tracking, send, receive, wait, profile, checkpoint",
            ),
            _field("seconds", _F64, "time in this phase", "s"),
            _field("count", _I64, "number of times it was entered"),
        ]
    ),
    "profiles": pa.schema(
        [
            *_KEYS,
            *_RANK,
            _field("profiler", _WORD, "cprofile, py-spy, memray, framework"),
            _field("unit", _WORD, "of all its values: s, samples, B"),
            _field(
                "file", _TEXT, "name of the profiler's own file in `profiles/` of the plan; missing if none was kept"
            ),
            _field("bytes", _I64, "size of that file", "B"),
            _field("note", _TEXT, "why there is no file, or no profile"),
            _field("seconds", _F64, "time to stop the profiler and to write its file, no part of the training", "s"),
            _field("total", _F64, "sum of the whole profile, in its unit"),
            _field(
                "functions",
                _TEXT,
                "functions with the largest values and the learner's updates, one per line: name, own value, value with callees, calls, separated by tabs",
            ),
            _field(
                "stacks",
                _TEXT,
                "largest frames of the call tree as collapsed stacks, one per line: a;b;c and the own value of c",
            ),
        ]
    ),
}


def read_index(dataset: Path) -> dict[str, Any]:
    """Read ``dataset.json``.

    Raises:
        UsageError: there is no dataset, or it has another format.
    """
    path = dataset / INDEX
    try:
        with open_of_stranger(path) as file:
            index = json.load(file)
    except FileNotFoundError:
        raise UsageError(f"{dataset}: is not a dataset (no {INDEX}): {instead_of(dataset, INDEX)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read ({error}): collect into a new directory") from None
    if not isinstance(index, dict):
        raise UsageError(f"{path}: is damaged: collect into a new directory")
    if index.get("format") != "hpcrl-dataset" or index.get("version") != VERSION:
        raise UsageError(
            f"{path}: dataset format {index.get('version')!r}, but this hpcrl reads format {VERSION}: collect again"
        )
    if first_wrong(index, {"parts": COUNT, "studies": FACTS, "records": FACTS}, required=True):
        raise UsageError(f"{path}: is damaged: collect into a new directory")
    for record in index["records"].values():
        match record:
            case [int(), int(), int() | None]:
                continue
        raise UsageError(f"{path}: is damaged (a record lacks size, time or part): collect into a new directory")
    return index


def part_files(dataset: Path, table: str, index: Mapping[str, Any]) -> list[Path]:
    """Return the parts of a table that the index counts: an unfinished `hpcrl collect` may have left others."""
    parts = 1 if table == "cells" else index["parts"]  # `cells` is always made again, as one part
    paths = sorted((dataset / table).glob("part-*.parquet"))
    return [path for path in paths if (number := path.stem.removeprefix("part-")).isdecimal() and int(number) < parts]


def read_parts(dataset: Path, table: str, index: Mapping[str, Any]) -> list[pa.Table]:
    """Read all parts of a table; raises UsageError where one is damaged."""
    import pyarrow.parquet as pq

    tables = []
    for part in part_files(dataset, table, index):
        with reading(part):
            tables.append(pq.read_table(part, schema=SCHEMAS[table]))
    return tables


def load_table(dataset: str | PathLike[str], table: str = "cells") -> pandas.DataFrame:
    """Open one table, or the view ``runs``, as pandas, with its rows in the dataset's order.

    Raises:
        UsageError: there is no dataset or no such table, or it is damaged; or a study, cell or attempt in it has a name that no plan
            gives, and a file of that name could be outside the directory.
    """
    if table == RUNS:
        return runs(load_table(dataset, "cells"))
    if table not in SCHEMAS:
        raise UsageError(f"no table {table!r}; {suggestion(table, [*SCHEMAS, RUNS])}")
    directory = Path(dataset)
    parts = read_parts(directory, table, read_index(directory))
    if not parts:
        return _plain(SCHEMAS[table]).empty_table().to_pandas()
    rows = pa.concat_tables(parts)
    check_names(directory, rows)
    if table == "cells":
        check_mappings(directory, rows)
    return rows.cast(_plain(SCHEMAS[table])).to_pandas()


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return the schema with plain text in place of dictionary-encoded text, which is easier to join."""
    return pa.schema([field.with_type(_TEXT) if field.type == _WORD else field for field in schema])
