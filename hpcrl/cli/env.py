"""hpcrl env create|list|lock|show|check|measure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcrl.cli.common import Survivors, echo, echo_json, json_option, path_option, print_table, say
from hpcrl.cli.completion import library_names
from hpcrl.errors import HpcrlError, UsageError, count, printable

if TYPE_CHECKING:
    from hpcrl.formats.plan import Environment, Plan
    from hpcrl.plan.environments import FlavourName


@click.group("env")
def command() -> None:
    """Build, list and check software environments."""


def _rendered(
    paths: tuple[Path, ...], cluster: str, name: str, flavour: FlavourName, horovod: bool
) -> tuple[Environment, dict[str, Any]]:
    from hpcrl.plan.environments import render_environment
    from hpcrl.spec.library import Library
    from hpcrl.spec.rendering import Renderer

    library = Library(paths)
    profile = library.cluster(cluster)
    environment = render_environment(
        Renderer(library), profile, library.environment(name), flavour, horovod, library.hashes(name)
    )
    return environment, profile.environments.model_dump(mode="json", exclude_none=True)


def _options(function: Any) -> Any:
    for option in (
        click.option("--flavour", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True),
        click.option("--horovod", is_flag=True, help="Include the packages for Horovod cells."),
        click.option(
            "--cluster",
            default="workstation",
            show_default=True,
            help="Use the environment manager and the directory of this cluster.",
        ),
        path_option,
    ):
        function = option(function)
    return function


@command.command("create", epilog="Example: hpcrl env create torch   or: hpcrl env create --plan plan")
@click.argument("name", shell_complete=library_names("envs"), required=False)
@click.option("--plan", type=click.Path(path_type=Path), help="Build every environment of this plan.")
@click.option(
    "--manager",
    type=click.Choice(["uv", "venv", "conda", "mamba", "micromamba"]),
    help="Environment manager, instead of the cluster's.",
)
@click.option("--submission", hidden=True, help="Only what the cells of this submission of the plan need.")
@_options
def create(
    name: str | None,
    plan: Path | None,
    manager: str | None,
    submission: str | None,
    flavour: FlavourName,
    horovod: bool,
    cluster: str,
    paths: tuple[Path, ...],
) -> None:
    """Build an environment, or all of a plan, and check that it imports and trains. Existing environments are kept.

    If some of a plan's cannot be built, the others are built, with exit code 1.
    """
    from hpcrl.environments.build import build_all
    from hpcrl.formats.plan import read_plan
    from hpcrl.spec.library import Library

    if (name is None) == (plan is None):
        raise UsageError("expected the name of an environment, or --plan PLAN")
    if plan is not None:
        opened = read_plan(plan)
        environments = _needed(plan, opened, submission) if submission else opened.environments
        site = opened.cluster.environments
    else:
        Library(paths).environment(str(name)).check_is_for_cells()
        environment, site = _rendered(paths, cluster, str(name), flavour, horovod)
        environments = [environment]
    if manager:
        site = {**site, "manager": manager, "setup": []}
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape

        console = Console(stderr=True)
        with console.status("building environments") as spinner:

            def show(key: str, text: str) -> None:
                text = printable(f"{key}: {text}")
                spinner.update(escape(text))
                if text.removeprefix(f"{key}: ").startswith(("built", "is there", "its packages")):
                    console.print(escape(text), highlight=False)

            build_all(environments, site, show)
    else:
        build_all(environments, site, lambda key, text: echo(f"{key}: {text}", err=True))


def _needed(directory: Path, plan: Plan, token: str) -> list[Environment]:
    """Return the environments that a submission asks for, of all generations of the plan."""
    from hpcrl.formats.plan import every_generation
    from hpcrl.formats.submission import read_submission

    wanted = read_submission(directory, token).environments
    if wanted is None:
        return plan.environments
    known = {one.key: one for made in every_generation(directory, plan) for one in made.environments}
    return [known[key] for key in wanted if key in known]


@command.command("list", epilog="Example: hpcrl env list")
@path_option
def list_(paths: tuple[Path, ...]) -> int:
    """List the environments, and whether they are built here. Broken files are named, the others listed, with exit code 1."""
    from hpcrl.environments.build import is_built, root_of
    from hpcrl.spec.document import display
    from hpcrl.spec.library import Library

    library = Library(paths)
    site = library.cluster("workstation").environments.model_dump(mode="json")
    rows, survivors = [], Survivors()
    for name, file in library.files("envs", ".yaml").items():
        with survivors.each(display(file)):
            spec = library.environment(name)
            for flavour in spec.flavours:
                for horovod in (False, True) if spec.horovod else (False,):
                    environment, _ = _rendered(paths, "workstation", name, flavour, horovod)
                    path = root_of(site) / environment.key
                    kind = f"{flavour}, Horovod" if horovod else flavour
                    if spec.not_built:
                        rows.append([name, kind, spec.title, f"not built: {spec.not_built}", display(file)])
                        continue
                    try:
                        built = str(path) if is_built(path, site["owners"]) else "not built"
                    except HpcrlError:
                        built = "not trusted: it belongs to another user, or everybody may write to it"
                    rows.append([name, kind, spec.title, built, display(file)])
    print_table(["environment", "flavour", "what", "built", "file"], rows)
    return survivors.code


@command.command("lock", epilog="Example: hpcrl env lock torch")
@click.argument("names", shell_complete=library_names("envs"), nargs=-1, required=True, metavar="NAME...")
@path_option
def lock(names: tuple[str, ...], paths: tuple[Path, ...]) -> None:
    """Get the hashes of an environment's packages from the package index, and write them to hashes/NAME.txt beside its file.

    Existing hashes of the same pins are kept, because one pin may have several files.
    """
    from hpcrl.environments.lock import lock_environment
    from hpcrl.spec.library import Library

    library = Library(paths)
    for name in names:
        file = library.hash_file(name)
        number = lock_environment(library.environment(name), library.hashes(name), file)
        echo(f"{file}: {count(number, 'pin')} with hashes")


@command.command("show", epilog="Example: hpcrl env show torch --flavour cuda")
@click.argument("name", shell_complete=library_names("envs"))
@click.option("--requirements", is_flag=True, help="Print its requirements for pip instead.")
@_options
def show(
    name: str, requirements: bool, flavour: FlavourName, horovod: bool, cluster: str, paths: tuple[Path, ...]
) -> None:
    """Print the rendered conda YAML of an environment."""
    environment, _ = _rendered(paths, cluster, name, flavour, horovod)
    echo(environment.requirements if requirements else environment.conda, nl=False)


@command.command("check", epilog="Example: hpcrl env check torch --horovod")
@click.argument("name", shell_complete=library_names("envs"), required=False)
@click.option("--plan", type=click.Path(path_type=Path), help="Check every environment of this plan.")
@_options
def check_(
    name: str | None, plan: Path | None, flavour: FlavourName, horovod: bool, cluster: str, paths: tuple[Path, ...]
) -> None:
    """Compare a built environment with its lock, import its modules, and train a small agent in each execution mode.

    With --plan, also check the existing environment of its study: a directory, modules or a container.
    """
    if (name is None) == (plan is None):
        raise UsageError("expected the name of an environment, or --plan PLAN")
    if plan is not None:
        _check_plan(plan)
        return
    environment, site = _rendered(paths, cluster, str(name), flavour, horovod)
    _check(environment, site, _words(str(name), flavour, horovod))


def _words(name: str, flavour: FlavourName, horovod: bool) -> str:
    """Return the words that name an environment on the command line."""
    return "".join([name, f" --flavour {flavour}" if flavour != "cpu" else "", " --horovod" if horovod else ""])


def _built_at(environment: Environment, site: Mapping[str, Any], words: str) -> Path:
    from hpcrl.environments.build import is_built, root_of

    path = root_of(site) / environment.key
    if not is_built(path, site.get("owners", ())):
        raise HpcrlError(f"{path}: not built: run hpcrl env create {words}")
    return path


def _check(environment: Environment, site: Mapping[str, Any], words: str) -> None:
    from hpcrl.environments.check import check

    path = _built_at(environment, site, words)
    echo(f"{path}: {check(environment, path, tuple(site.get('setup', ())))}")


def _check_plan(plan: Path) -> None:
    from hpcrl.environments.standing import check_standing
    from hpcrl.formats.plan import read_cells, read_plan

    opened = read_plan(plan)
    site = opened.cluster.environments
    if how := opened.study.surroundings:
        trained = [] if opened.runs_command else read_cells(plan)
        frameworks = sorted({name for cell in trained for name in opened.frameworks_of(cell.config)})
        echo(check_standing(how, frameworks, tuple(site.get("setup", ()))))
    for environment in opened.environments:
        _check(environment, site, f"--plan {plan}")


@command.command(
    "measure", epilog="Example: hpcrl env measure torch jax   and then: hpcrl report --usability usability.json"
)
@click.argument("names", shell_complete=library_names("envs"), nargs=-1, metavar="[NAME]...")
@click.option("--plan", type=click.Path(path_type=Path), help="Measure every environment of this plan.")
@click.option(
    "--repeats", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs of each execution mode."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("usability.json"),
    show_default=True,
    help="File for the measurements.",
)
@json_option
@_options
def measure_(
    names: tuple[str, ...],
    plan: Path | None,
    repeats: int,
    output: Path,
    as_json: bool,
    flavour: FlavourName,
    horovod: bool,
    cluster: str,
    paths: tuple[Path, ...],
) -> int:
    """Measure what built environments cost their users, in each execution mode.

    Size, time to build and to import, first update with compiling, memory, lines of code, and the traceback of a typical
    mistake: hpcrl report --usability FILE shows them. A mode that fails is named in the file, with exit code 1. An environment of a
    plan that is not built is named, and the others are measured, with exit code 1.
    """
    from hpcrl import __version__
    from hpcrl.environments.measure import check_measurable, measure
    from hpcrl.formats.files import check_writable
    from hpcrl.formats.plan import read_plan
    from hpcrl.formats.usability import Failure, Measurement, Usability, as_facts, write_usability
    from hpcrl.formats.version import full_version
    from hpcrl.telemetry.provenance import hardware

    if bool(names) == (plan is not None):
        raise UsageError("expected names of environments, or --plan PLAN")
    if plan is not None:
        opened = read_plan(plan)
        asked = [(environment, opened.cluster.environments, f"--plan {plan}") for environment in opened.environments]
    else:
        rendered = {name: _rendered(paths, cluster, name, flavour, horovod) for name in names}
        asked = [(*pair, _words(name, flavour, horovod)) for name, pair in rendered.items()]
    built: list[tuple[Environment, Path, tuple[str, ...]]] = []
    left_out = 0
    for environment, site, words in asked:
        try:
            check_measurable(environment)
            built.append((environment, _built_at(environment, site, words), tuple(site.get("setup", ()))))
        except HpcrlError as error:
            if plan is None or (environment is asked[-1][0] and not built):
                raise
            left_out += 1
            say(str(error))
    check_writable(output)
    results = [
        run
        for environment, path, setup in built
        for run in measure(environment, path, repeats, setup, lambda text: echo(text, err=True))
    ]
    runs = [result for result in results if isinstance(result, Measurement)]
    failures = [result for result in results if isinstance(result, Failure)]
    measured = Usability(full_version(__version__), hardware(), runs, failures)
    write_usability(output, measured)
    if as_json:
        echo_json(as_facts(measured))
    else:
        failed = f" and {count(len(failures), 'failed mode')}" if failures else ""
        echo(f"{output}: {count(len(runs), 'run')}{failed}: hpcrl report DATASET --usability {output} shows them")
    return int(bool(failures or left_out))
