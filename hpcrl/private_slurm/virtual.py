"""A private Slurm on one host, inside one directory, for tests and for trying scripts before they go to a site.

Real slurmctld, slurmdbd with MariaDB, munge and one slurmd per node; no systemd, nothing in /etc, root or not.
Needs Debian's packages slurm-wlm, slurmdbd, munge and mariadb-server, and libpmix-dev for MPI launches.
"""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from hpcrl.errors import HpcrlError, UsageError, suggestion
from hpcrl.private_slurm.config import (
    ACCOUNT,
    QOS_WORDS,
    Layout,
    accounting_commands,
    description,
    limit_commands,
    missing_limits,
)
from hpcrl.private_slurm.faults import Faults
from hpcrl.private_slurm.processes import end, kill, name_of, node_of, processes_of
from hpcrl.private_slurm.programs import PACKAGES, missing_programs, program
from hpcrl.private_slurm.setup import STATE, control_groups_here, remove_groups, write_files
from hpcrl.spec.cluster import ClusterProfile

# Unix sockets hold 108 characters; the longest here is spool/NODE/NODE_JOB.STEP.
_LONGEST = 60
_START_SECONDS = 300.0  # for one command while the cluster starts


class VirtualSlurm:
    """The private Slurm of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()

    @property
    def conf(self) -> Path:
        return self.directory / "etc/slurm.conf"

    def environment(self) -> dict[str, str]:
        """Return the environment in which Slurm's commands use this cluster and no other."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "SALLOC_"))
        }
        # The wrappers of `faults` are for the programs under test, not for this class.
        places = [
            folder for folder in kept.get("PATH", "").split(":") if not folder.startswith(f"{self.directory}/faults/")
        ]
        return kept | {
            "SLURM_CONF": str(self.conf),
            "MYSQL_UNIX_PORT": str(self.directory / "run/mysql.sock"),
            "PATH": ":".join(dict.fromkeys([*places, "/usr/bin", "/bin", "/usr/sbin", "/sbin"])),
        }

    def up(
        self,
        profile: ClusterProfile,
        report: Callable[[str], None] = lambda text: None,
        enforce_memory: bool | None = None,
        control_groups: bool | None = None,
    ) -> list[str]:
        """Start the cluster of a profile and wait until its nodes are idle.

        Args:
            profile: the site.
            report: gets the name of each part that starts.
            enforce_memory: whether a job that exceeds its memory is killed; None: as at the site.
            control_groups: whether control groups do it; None: if they are available, else Slurm's polling.

        Returns:
            What is real, what is simulated, and what is missing, one sentence each.

        Raises:
            UsageError: one runs here already, the directory's name is too long, or the profile has no scheduler.
            HpcrlError: a program is missing or does not start, with the end of its log; or a limit could not be set.
        """
        if profile.scheduler.kind != "slurm":
            raise UsageError(f"cluster {profile.name}: has no Slurm")
        if len(str(self.directory)) > _LONGEST:
            raise UsageError(
                f"{self.directory}: too long for the paths of Unix sockets: choose a directory of at most {_LONGEST} characters"
            )
        if missing := missing_programs():
            raise HpcrlError(f"not installed: {', '.join(missing)}: apt-get install {PACKAGES}")
        if self.processes():
            raise UsageError(f"{self.directory}: a private Slurm runs here already: hpcrl dev slurm down")
        wanted = profile.scheduler.enforce_memory if enforce_memory is None else enforce_memory
        if wanted and control_groups and not control_groups_here():
            raise UsageError("control groups (version 1, memory and freezer) are not available here: they need root")
        groups = control_groups_here() if control_groups is None else control_groups
        layout = write_files(
            self.directory, profile, ("control groups" if groups else "stand-in") if wanted else "none"
        )
        try:
            self._start_accounting(profile, layout, report)
            report("controller")
            self.start_controller()
            report("limits")
            self._set_limits(profile, layout)
            report("nodes")
            for node in layout.nodes:
                self._start_daemon(node.name)
            self._until("slurmctld", lambda: self._idle(len(layout.nodes)))
        except BaseException:
            self.down()
            raise
        return description(profile, layout)

    def _start_accounting(self, profile: ClusterProfile, layout: Layout, report: Callable[[str], None]) -> None:
        root = self.directory
        report("munge")
        files = {name: f"--{name}-file={root}/run/munged.{name}" for name in ("pid", "seed")}
        self._start(
            # Forced: munged would have its socket open to every user.
            "munged", "munged", "--foreground", "--force", f"--key-file={root}/etc/munge.key", f"--socket={root}/run/munge.sock",
            f"--log-file={root}/log/munged.log", *files.values(),
        )  # fmt: skip
        self._until("munged", lambda: self.command("munge", "-n", "-S", f"{root}/run/munge.sock").returncode == 0)
        report("database")
        self._checked(
            "mariadb-install-db", "--no-defaults", f"--datadir={root}/db", f"--user={layout.user}", "--skip-test-db",
            "--auth-root-authentication-method=normal", "--skip-name-resolve", "--innodb-log-file-size=8M",
        )  # fmt: skip
        self._start(
            "mariadbd", "mariadbd", "--no-defaults", f"--datadir={root}/db", f"--user={layout.user}", f"--socket={root}/run/mysql.sock",
            f"--pid-file={root}/run/mariadbd.pid", "--skip-networking", "--skip-name-resolve", "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=8M", "--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=0",
            "--innodb-doublewrite=0", "--performance-schema=0", "--skip-log-bin", f"--tmpdir={root}/tmp",
            f"--secure-file-priv={root}/tmp",
        )  # fmt: skip
        sql = ["mariadb", "--no-defaults", f"--socket={root}/run/mysql.sock", "-uroot", "-e"]
        self._until("mariadbd", lambda: self.command(*sql, "select 1").returncode == 0)
        if layout.user != "root":
            name = f"'{layout.user}'@localhost"
            self._checked(
                *sql,
                f"create user if not exists {name}; grant all on slurm_acct_db.* to {name}; flush privileges",
            )
        report("accounting")
        self.start_database()
        self._answer("sacctmgr", "-i", stdin=accounting_commands(profile, layout.user))
        if layout.user not in self._answer("sacctmgr", "-n", "-P", "show", "user", "format=user").stdout.split():
            raise HpcrlError(f"sacctmgr did not accept the accounts: see {root}/log/slurmdbd.log")

    def _set_limits(self, profile: ClusterProfile, layout: Layout) -> None:
        """Set every limit and read it back: sacctmgr's exit code says nothing about commands on its input."""
        said = self._answer("sacctmgr", "-i", stdin=limit_commands(profile))
        shown = self._answer("sacctmgr", "-nP", "show", "qos", f"format=Name,{','.join(QOS_WORDS)}").stdout
        missing = missing_limits(profile, shown)
        if most := profile.scheduler.max_submitted:
            asked = ("show", "assoc", f"user={layout.user}", f"account={ACCOUNT}", "format=MaxSubmit")
            actual = self._answer("sacctmgr", "-nP", *asked).stdout.strip()
            if actual != str(most):
                missing.append(f"user {layout.user}: MaxSubmit: expected {most}, got {actual or 'no value'}")
        if missing:
            words = " ".join((said.stderr or said.stdout).split())[-300:]
            raise HpcrlError(
                f"sacctmgr did not set the limits of the profile: {'; '.join(missing)} (its output: {words})"
            )

    def down(self) -> None:
        """End every process of the cluster, jobs included. The directory stays, with its logs."""
        if not (self.directory / STATE).exists():
            raise UsageError(f"{self.directory}: no private Slurm was started here")
        if any("slurmctld" in process.name() for process in self.processes()):
            with suppress(subprocess.TimeoutExpired):
                self.command("scancel", f"--user={getpass.getuser()}", timeout=5)
        # Jobs' processes and step daemons first: they outlive the daemon that started them.
        order = (("slurmstepd",), ("slurmd",), ("slurmctld",), ("slurmdbd",), ("mariadbd", "munged"))
        for names in order:
            chosen = [process for process in self.processes() if name_of(process) in names]
            end(chosen, patience=10)
        end(self.processes(), patience=1)
        for link in sorted((self.directory / "cgroup").glob("*")):
            remove_groups(link.resolve())

    def check_running(self) -> None:
        """Raise an error unless a private Slurm runs in this directory.

        Raises:
            UsageError: none does.
        """
        if not self.processes():
            raise UsageError(f"{self.directory}: no private Slurm runs here: hpcrl dev slurm up")

    def faults(self) -> Faults:
        """Return the wrappers of this cluster's commands, which fail on request."""
        return Faults(self.directory / "faults", self.environment()["PATH"])

    def kill_controller(self) -> None:
        """End slurmctld by SIGKILL: it loses everything that is not yet on disk."""
        kill([process for process in self.processes() if name_of(process).startswith("slurmctld")])

    def start_controller(self) -> None:
        """Start slurmctld and wait until it answers. The nodes may need a few seconds more."""
        if not self._running("slurmctld"):
            self._start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        self._until("slurmctld", lambda: "UP" in self.command("scontrol", "ping").stdout)

    def kill_database(self) -> None:
        """End slurmdbd by SIGKILL: sacct and sacctmgr fail, and jobs continue."""
        kill(self._running("slurmdbd"))

    def start_database(self) -> None:
        """Start slurmdbd and wait until it answers."""
        if not self._running("slurmdbd"):
            self._start("slurmdbd", "slurmdbd", "-D")
        self._until("slurmdbd", lambda: self.command("sacctmgr", "-n", "show", "cluster").returncode == 0)

    def kill_node(self, name: str, jobs: bool = False) -> None:
        """End a node's slurmd by SIGKILL; with `jobs`, also the jobs there, as in a crash of the node.

        Raises:
            UsageError: there is no such node.
        """
        self._check_node(name)
        on_node = [process for process in self.processes() if node_of(process, self.directory) == name]
        kill([process for process in on_node if name_of(process) == "slurmd"])
        if jobs:
            # The step daemons first: one that sees its tasks die still reports the end of the job.
            kill([process for process in on_node if name_of(process) == "slurmstepd"])
            kill([process for process in on_node if name_of(process) not in ("slurmd", "slurmstepd")])

    def start_node(self, name: str) -> None:
        """Start a node's slurmd and wait until the controller says that the node accepts jobs.

        Raises:
            UsageError: there is no such node.
        """
        self._check_node(name)
        self._start_daemon(name)
        self._until(f"slurmd.{name}", lambda: dict(self.nodes()).get(name) in ("idle", "mixed", "allocated"))

    def _start_daemon(self, node: str) -> None:
        if not any(node_of(process, self.directory) == node for process in self._running("slurmd")):
            arguments = ("slurmd", "-D", "-N", node, "-f", str(self.conf))
            self._start(f"slurmd.{node}", *arguments, HPCRL_VIRTUAL_NODE=node)

    def _check_node(self, name: str) -> None:
        nodes = json.loads((self.directory / STATE).read_text())["nodes"]
        if name not in nodes:
            raise UsageError(f"{self.directory}: no node {name!r}; {suggestion(name, nodes)}")

    def _running(self, program: str) -> list[psutil.Process]:
        return [process for process in self.processes() if name_of(process) == program]

    def processes(self) -> list[psutil.Process]:
        """Return every process of this cluster: daemons, step daemons and processes of jobs."""
        return processes_of(self.directory, self.conf)

    def nodes(self) -> list[tuple[str, str]]:
        """Return (node, state) of each node; empty while no controller answers."""
        done = self.command("sinfo", "-h", "-N", "-o", "%N %T")
        return sorted({(line.split()[0], line.split()[1]) for line in done.stdout.splitlines() if " " in line})

    def _idle(self, count: int) -> bool:
        states = self.nodes()
        return len(states) == count and all(state == "idle" for _, state in states)

    def command(
        self, *arguments: str, stdin: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands against this cluster."""
        environment = self.environment()
        words = [program(arguments[0], environment["PATH"]), *arguments[1:]]
        return subprocess.run(
            words,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def _answer(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command while the cluster starts, which takes long on a busy machine.

        Raises:
            HpcrlError: it does not answer.
        """
        try:
            return self.command(*arguments, stdin=stdin, timeout=_START_SECONDS)
        except subprocess.TimeoutExpired:
            raise HpcrlError(
                f"{arguments[0]} did not answer within {_START_SECONDS:.0f} s: the machine may be too busy; the logs are in "
                f"{self.directory}/log"
            ) from None

    def _checked(self, *arguments: str) -> None:
        done = self._answer(*arguments)
        if done.returncode != 0:
            raise HpcrlError(f"{arguments[0]} failed: {' '.join((done.stderr or done.stdout).split())[-300:]}")

    def _start(self, label: str, *arguments: str, **variables: str) -> None:
        environment = self.environment()
        with (self.directory / f"log/{label}.out").open("ab") as log:
            subprocess.Popen(
                [program(arguments[0], environment["PATH"]), *arguments[1:]],
                env=environment | {"HPCRL_VIRTUAL_SLURM": str(self.conf)} | variables,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.directory,
            )

    def _until(self, label: str, ready: Callable[[], bool], patience: float = 60.0) -> None:
        deadline = time.monotonic() + patience
        while not ready():
            if time.monotonic() > deadline:
                raise HpcrlError(f"{label} does not answer after {patience:.0f} s: {self._last_words(label)}")
            time.sleep(0.1)

    def _last_words(self, label: str) -> str:
        for path in (self.directory / f"log/{label}.log", self.directory / f"log/{label}.out"):
            if path.is_file() and (lines := path.read_text(errors="replace").strip().splitlines()):
                return f"{path}: {lines[-1]}"
        return f"see {self.directory}/log"
