"""The entry point: imports a command's module only when the command is called, and turns errors into exit codes."""

from __future__ import annotations

import importlib
import io
import os
import sys
import tempfile
import traceback
from pathlib import Path

import click

from hpcrl import __version__
from hpcrl.cli.common import echo
from hpcrl.errors import HpcrlError, SpecError

# command -> (module, short help)
_VERBS = {
    "plan": ("hpcrl.cli.plan", "Make a plan from a study and a cluster: scripts, cells, environments."),
    "submit": ("hpcrl.cli.submit", "Submit the missing and failed cells of a plan."),
    "status": ("hpcrl.cli.status", "Show the state of a plan."),
    "cancel": ("hpcrl.cli.cancel", "Cancel waiting and running cells."),
    "logs": ("hpcrl.cli.logs", "Show the log of a cell."),
    "notify": ("hpcrl.cli.notify", "Send a plan's state to a command or URL."),
    "run": ("hpcrl.cli.run", "Run one cell of a plan on this machine."),
    "play": ("hpcrl.cli.play", "Let the trained agent of a cell play in its environment; write a video."),
    "profile": ("hpcrl.cli.profile", "List, show and export the profiles of cells."),
    "collect": ("hpcrl.cli.collect", "Merge records of any number of plans into one dataset."),
    "report": ("hpcrl.cli.report", "Compare the results of a dataset: HTML, figures, tables."),
    "query": ("hpcrl.cli.query", "Query a dataset with SQL."),
    "export": ("hpcrl.cli.export", "Write a dataset for other tools: CSV, TensorBoard, MLflow."),
    "env": ("hpcrl.cli.env", "Build, list and check software environments."),
    "cluster": ("hpcrl.cli.cluster", "List, show and check cluster profiles."),
    "study": ("hpcrl.cli.study", "List and show studies."),
    "algorithm": ("hpcrl.cli.algorithm", "List and show the algorithms of built-in training."),
    "template": ("hpcrl.cli.template", "List and show templates."),
    "schema": ("hpcrl.cli.schema", "Print the JSON Schema of profiles, studies, environments."),
    "dev": ("hpcrl.cli.dev", "A private Slurm for tests and for trying hpcrl."),
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _VERBS:
            return None
        module = importlib.import_module(_VERBS[name][0])
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from hpcrl.errors import suggestion

        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}; {suggestion(args[0], _VERBS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _VERBS.items()])


@click.command(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: hpcrl plan && hpcrl submit && hpcrl status --watch. Completion: see docs/user-guide.md.",
)
@click.version_option(__version__, prog_name="hpcrl")
def cli() -> None:
    """Benchmark reinforcement-learning software on a cluster: plan, submit, run, collect, report."""


# Packages that only `report` and `query` need: the extra `report` in pyproject.toml.
_OF_REPORT = frozenset({"altair", "duckdb", "optuna", "scipy", "vl_convert"})


def main() -> None:
    """Run the command line. Exit codes: 0 success, 1 failure, 2 wrong request."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if sys.stdout is None:
        echo("hpcrl: standard output is closed: redirect it to /dev/null instead", err=True)
        sys.exit(2)
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.Abort:
        echo("hpcrl: stopped", err=True)
        sys.exit(130)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        echo(shown.getvalue(), err=True, nl=False)
        sys.exit(error.exit_code)
    except SpecError as error:
        echo(str(error), err=True)  # file:line: at the start of each line, as editors read it
        sys.exit(error.exit_code)
    except HpcrlError as error:
        echo(f"hpcrl: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        echo(f"hpcrl: {where}{error.strerror or error}", err=True)
        sys.exit(1)
    except (
        Exception
    ) as error:  # the only handler of hpcrl's own faults: the user gets a sentence, the log the traceback
        if isinstance(error, ModuleNotFoundError) and (name := (error.name or "").partition(".")[0]) in _OF_REPORT:
            echo(
                f"hpcrl: {name} is not installed: install the packages for reports: pip install 'hpcrl[report]'",
                err=True,
            )
            sys.exit(2)
        handle, name = tempfile.mkstemp(prefix="hpcrl-", suffix=".log")
        with os.fdopen(handle, "w") as file:
            traceback.print_exc(file=file)
        echo(
            f"hpcrl: a fault in hpcrl itself ({type(error).__name__}); please report it with {Path(name)}",
            err=True,
        )
        sys.exit(1)
