"""The commands and their options. What a command does is imported when it runs, so that ``--help`` stays quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="coordinator",
    help="Delegate work to children under contracts, and accept only what can be shown.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
contract_app = typer.Typer(
    help="Check, describe and show delegation contracts.", no_args_is_help=True, rich_markup_mode=None
)
demo_app = typer.Typer(help="Two demonstrations on real input.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(contract_app, name="contract")
app.add_typer(demo_app, name="demo")

Store = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help="sqlite:///PATH, a path, or postgresql://…  [default: $COORDINATOR_STORE]"
    ),
]
HomeDir = Annotated[
    Path | None, typer.Option("--home", metavar="DIR", help="Folder for artifacts and git directories.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Address = Annotated[
    str | None, typer.Argument(metavar="ADDRESS", help="RUN, RUN/TASK or RUN/TASK@N; none: the latest run.")
]
RunName = Annotated[
    str | None, typer.Argument(metavar="RUN", help="A run, or the start of its name; none: the latest.")
]
Workers = Annotated[int, typer.Option("--workers", min=1, max=1000, help="How many children run side by side here.")]
Hidden = typer.Option(hidden=True)


def main() -> int:
    """Entry point; the exit code."""
    from coordinator.cli.output import exit_code_of

    try:
        result: Any = app(standalone_mode=False)
    except (typer.Exit, SystemExit) as stop:
        code: Any = getattr(stop, "exit_code", getattr(stop, "code", 0))
        return code if isinstance(code, int) else 1
    except BaseException as error:
        return exit_code_of(error, json_wanted="--json" in sys.argv)
    return result if isinstance(result, int) else 0


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)] = Path("."),
    json: Json = False,
) -> int:
    """Write an orchestration.yaml that runs as it is in this repository, with its schemas."""
    from coordinator.cli.starting import init as do

    return do(directory, json)


@app.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)] = Path("orchestration.yaml"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show pins, grants, lint and what is enforced; start nothing.")
    ] = False,
    workers: Workers = 4,
    inputs: Annotated[list[str] | None, typer.Option("--input", metavar="K=V", help="Override an input.")] = None,
    source: Annotated[
        Path | None, typer.Option("--source", metavar="PATH", help="Work on this repository or folder.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Start a run of its own beside an open one.")] = False,
    as_new_version: Annotated[
        bool, typer.Option("--as-new-version", help="Replace what changed in the open run.")
    ] = False,
    store: Store = None,
    home: HomeDir = None,
    json: Json = False,
    name: Annotated[str, Hidden] = "run",
    fault: Annotated[str | None, Hidden] = None,
) -> int:
    """Launch an orchestration, or continue the open run of it, and work until it ends or waits for a person."""
    from coordinator.cli.running import run as do

    return do(
        file, dry_run=dry_run, workers=workers, inputs=inputs or [], source=source, new=new,
        as_new_version=as_new_version, store=store, home=home, json=json, name=name, fault=fault,
    )  # fmt: skip


@app.command()
def worker(
    workers: Workers = 4,
    store: Store = None,
    home: HomeDir = None,
    json: Json = False,
    name: Annotated[str, Hidden] = "worker",
    fault: Annotated[str | None, Hidden] = None,
    claims: Annotated[int | None, Hidden] = None,
) -> int:
    """Join the open runs of the store, until none is left to work on."""
    from coordinator.cli.running import worker as do

    return do(workers=workers, store=store, home=home, json=json, name=name, fault=fault, claims=claims)


@app.command()
def status(
    run: RunName = None,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Keep showing it as it changes.")] = False,
    store: Store = None,
    home: HomeDir = None,
    json: Json = False,
) -> int:
    """Show the tree of tasks: state, holder, lease, attempts, why blocked, and what to do next."""
    from coordinator.cli.showing import status as do

    return do(run, watch=watch, store=store, home=home, json=json)


@app.command()
def inspect(
    address: Address = None,
    transcript: Annotated[bool, typer.Option("--transcript", help="Show the turns of a model instead.")] = False,
    store: Store = None,
    home: HomeDir = None,
    json: Json = False,
) -> int:
    """Show a contract, its claims and attempts, each decision with its checks, and messages."""
    from coordinator.cli.showing import inspect as do

    return do(address, transcript=transcript, store=store, home=home, json=json)


@app.command()
def evidence(
    address: Address = None,
    verify: Annotated[bool, typer.Option("--verify", help="Recompute every digest and name what differs.")] = False,
    store: Store = None,
    home: HomeDir = None,
    json: Json = False,
) -> int:
    """Show the evidence manifest: claimed beside observed and verified."""
    from coordinator.cli.evidence import evidence as do

    return do(address, verify=verify, store=store, home=home, json=json)


@app.command()
def history(run: RunName = None, store: Store = None, home: HomeDir = None, json: Json = False) -> int:
    """Show what happened in a run, in order."""
    from coordinator.cli.showing import history as do

    return do(run, store=store, home=home, json=json)


@app.command()
def logs(
    address: Address = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the attempt has ended.")] = False,
    store: Store = None,
    home: HomeDir = None,
    json: Json = False,
) -> int:
    """Show a child's output, live or kept."""
    from coordinator.cli.logs import logs as do

    return do(address, follow=follow, store=store, home=home, json=json)


@app.command()
def answer(
    request: Annotated[str, typer.Argument(metavar="REQUEST")],
    approve: Annotated[bool, typer.Option("--approve")] = False,
    reject: Annotated[bool, typer.Option("--reject")] = False,
    message: Annotated[str, typer.Option("-m", metavar="TEXT", help="What you want to say with it.")] = "",
    store: Store = None,
    home: HomeDir = None,
    json: Json = False,
) -> int:
    """Answer a request: approve or reject."""
    from coordinator.cli.deciding import answer as do

    return do(request, approve=approve, reject=reject, message=message, store=store, home=home, json=json)


@app.command()
def cancel(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="RUN or RUN/TASK.")],
    message: Annotated[str, typer.Option("-m", metavar="TEXT", help="Why.")] = "",
    store: Store = None,
    home: HomeDir = None,
    json: Json = False,
) -> int:
    """Cancel a run, or a task with all below it."""
    from coordinator.cli.deciding import cancel as do

    return do(address, message=message, store=store, home=home, json=json)


@app.command()
def export(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="RUN/TASK.")],
    artifact: Annotated[str | None, typer.Argument(metavar="ARTIFACT", show_default=False)] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="PATH", help="Where to write it.")] = None,
    store: Store = None,
    home: HomeDir = None,
    json: Json = False,
) -> int:
    """Write an accepted artifact to a new file, its digest checked."""
    from coordinator.cli.deciding import export as do

    return do(address, artifact, output=output, store=store, home=home, json=json)


@contract_app.command("check")
def contract_check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…")],
    json: Json = False,
) -> int:
    """Name every fault of these files, as file:line:column: path: what is wrong, what would be right."""
    from coordinator.cli.contracts import check as do

    return do(files, json)


@contract_app.command("schema")
def contract_schema(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="orchestration, delegation, manifest or decision.")
    ] = "orchestration",
    json: Json = False,
) -> int:
    """Print the JSON Schema of a document."""
    from coordinator.cli.contracts import schema as do

    return do(name)


@contract_app.command("show")
def contract_show(address: Address = None, store: Store = None, home: HomeDir = None, json: Json = False) -> int:
    """Print the issued contract as the JSON document that the child gets."""
    from coordinator.cli.contracts import show as do

    return do(address, store=store, home=home)


@demo_app.command("audit")
def demo_audit(
    source: Annotated[Path | None, typer.Option("--source", metavar="PATH", help="Any git repository.")] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="K=V", help="symbol=NAME: whose callers to list; test=COMMAND: its tests."),
    ] = None,
    json: Json = False,
) -> int:
    """Audit a repository's own source with several children, one of whose workers is killed."""
    from coordinator.cli.demos import audit as do

    return do(source, inputs or (), json)


@demo_app.command("report")
def demo_report(json: Json = False) -> int:
    """A report that survives the death of two of its three workers."""
    from coordinator.cli.demos import report as do

    return do(json)
