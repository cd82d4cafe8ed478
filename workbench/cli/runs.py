"""`workbench runs`: list, show, tag, export, import and delete saved runs."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.options import Debug, Json
from workbench.cli.stream import harmless
from workbench.core.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.trace.store import RunStore

Folder = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="Folder of the saved runs; by default the variable WORKBENCH_RUNS, or a folder in your user data.",
    ),
]
Ids = Annotated[list[str], typer.Argument(help="Ids of runs; the end of an id is enough if it is unique.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Only runs with this tag; repeatable.")]
Text = Annotated[
    str | None, typer.Option(help="Only runs with these words in the prompt, the generated text or the note.")
]
Where = Annotated[
    list[str] | None,
    typer.Option(help="Only runs whose metric meets this condition, such as 'tau>=2.5' or 'tokens<100'; repeatable."),
]
LIST_COLUMNS = ("id", "created", "method", "target", "tau", "acceptance_rate", "tokens_per_second", "tags", "prompt")

app = typer.Typer(
    name="runs",
    help="List, show, tag, annotate, export, import and delete saved runs (`workbench generate --keep` saves one).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command("list")
def list_runs(
    method: Annotated[list[str] | None, typer.Option(help="Only runs of this method; repeatable.")] = None,
    target: Annotated[list[str] | None, typer.Option(help="Only runs of this target; repeatable.")] = None,
    drafter: Annotated[list[str] | None, typer.Option(help="Only runs of this drafter; repeatable.")] = None,
    tag: Tags = None,
    text: Text = None,
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only runs from this day or time on, for example 2026-11-21.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="DATE", help="Only runs up to this day or time.")] = None,
    where: Where = None,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of runs, newest first; 0: all.")] = 20,
    store: Folder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List saved runs, newest first.

    Example: workbench runs list --method draft-model --where 'tau>=2' --text dragon
    """
    runs = _open(store)
    matches = runs.find(
        method=method,
        target=target,
        drafter=drafter,
        tags=tag or (),
        text=text,
        since=_date(since, "--since"),
        until=_date(until, "--until"),
        where=where or (),
    ).collect()
    rows = matches.head(limit) if limit else matches
    if as_json:
        print(json.dumps([_plain(row) for row in rows.iter_rows(named=True)], ensure_ascii=False, indent=2))
        return
    _print_table(rows.select(LIST_COLUMNS).rows(named=True), matches.height)
    for name, reason in runs.problems.items():
        typer.echo(f"note: {harmless(name)} was left out: {reason}", err=True)


@app.command()
def show(ids: Ids, store: Folder = None, as_json: Json = False, debug: Debug = False) -> None:
    """Show saved runs in full: settings, measurements, tags, note, prompt, text, and the address in the app."""
    runs = _open(store)
    entries = [runs.entry(run) | {"address": _address(run)} for run in _resolve(runs, ids)]
    if as_json:
        print(json.dumps(entries, ensure_ascii=False, indent=2))
        return
    for entry in entries:
        for name, value in entry.items():
            if name != "version" and value not in (None, "", []):
                text = ", ".join(value) if isinstance(value, list) else f"{value:.4g}" if _is_float(value) else value
                print(f"{name:18} {harmless(str(text))}")
        print()
    if len(entries) == 2:
        print(f"{'side by side':18} {_address(*(entry['id'] for entry in entries))}")


@app.command()
def tag(
    ids: Ids,
    add: Annotated[list[str] | None, typer.Option(help="A tag to add; repeatable.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="A tag to remove; repeatable.")] = None,
    store: Folder = None,
    debug: Debug = False,
) -> None:
    """Add tags to saved runs, or remove them."""
    runs = _open(store)
    for run in _resolve(runs, ids):
        print(run, ", ".join(runs.tag(run, add or (), remove or ())) or "no tags")


@app.command()
def note(
    run: Annotated[str, typer.Argument(help="Id of a run.")],
    text: Annotated[str, typer.Argument(help="Text of the note; an empty text removes the note.")],
    store: Folder = None,
    debug: Debug = False,
) -> None:
    """Replace the note of a saved run."""
    runs = _open(store)
    (run_id,) = _resolve(runs, [run])
    runs.note(run_id, text)


@app.command()
def export(
    to: Annotated[
        Path, typer.Argument(help="Folder to write to; for a single run also a file ending in .parquet or .jsonl.")
    ],
    ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of runs; by default all runs with the tags of --tag.")
    ] = None,
    tag: Tags = None,
    lines: Annotated[
        bool, typer.Option("--jsonl", help="Write JSON Lines files instead of Parquet files into a folder.")
    ] = False,
    store: Folder = None,
    debug: Debug = False,
) -> None:
    """Export saved runs to files, which can be imported elsewhere or read with Polars, pandas or the app."""
    runs = _open(store)
    chosen = _resolve(runs, ids) if ids else runs.find(tags=tag or ()).select("id").collect()["id"].to_list()
    if not chosen:
        raise WorkbenchError("No saved run was selected for export.", "`workbench runs list` shows the saved runs.")
    for path in runs.export(chosen, to, "jsonl" if lines else "parquet"):
        print(path)


@app.command("import")
def import_runs(
    paths: Annotated[list[Path], typer.Argument(help="Trace files (.parquet, .jsonl), or folders of trace files.")],
    tag: Annotated[list[str] | None, typer.Option(help="A tag for the imported runs; repeatable.")] = None,
    store: Folder = None,
    debug: Debug = False,
) -> None:
    """Import runs from files that the app, `generate --trace` or `runs export` wrote."""
    runs = _open(store)
    for path in paths:
        if not path.exists():
            raise WorkbenchError(f"There is no file or folder {path}.", "Name a file or a folder that exists.")
    imported = runs.import_(*paths, tags=tag or ())
    for run in imported.added:
        print(run)
    for run in imported.duplicates:
        typer.echo(f"note: {run} is already in the store", err=True)
    for name, notice in imported.notes.items():
        typer.echo(f"note: {harmless(name)}: {notice}", err=True)
    for name, reason in imported.problems.items():
        typer.echo(f"note: {harmless(name)} was left out: {reason}", err=True)
    if imported.problems and not (imported.added or imported.duplicates):
        raise WorkbenchError("No run could be imported.", "Give trace files that the workbench exported.")


@app.command()
def delete(
    ids: Ids,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without confirmation.")] = False,
    store: Folder = None,
    debug: Debug = False,
) -> None:
    """Delete saved runs permanently."""
    runs = _open(store)
    chosen = _resolve(runs, ids)
    if not yes:
        typer.confirm(f"Delete {len(chosen)} run{'s' * (len(chosen) > 1)} permanently?", abort=True, err=True)
    runs.delete(*chosen)


@app.command()
def bench(
    runs: Annotated[int, typer.Option(min=1, help="Number of runs in the store.")] = 10_000,
    repeats: Annotated[int, typer.Option(min=1, help="Number of measurements of each query.")] = 10,
    debug: Debug = False,
) -> None:
    """Measure the time to search a store of many saved runs, which is created in a temporary folder.

    Every run is a real trace file. The time of a query ends when the results for one page are in memory.
    """
    from workbench.bench.store_benchmark import bench_store, report
    from workbench.cli.bench import progress_bar

    with progress_bar() as progress:
        timings = bench_store(runs, repeats, progress)
    print(report(timings, runs))


def _address(*runs: str) -> str:
    """Return the URL at which the app shows one saved run, or two side by side.

    Host and port are the defaults of `app.py`.
    """
    host, port = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"), os.environ.get("GRADIO_SERVER_PORT", "7860")
    root = os.environ.get("GRADIO_ROOT_PATH", "").rstrip("/")
    base = root if root.startswith("http") else f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}{root}"
    return f"{base}/r/{'+'.join(runs)}"


def _open(folder: Path | None) -> RunStore:
    from workbench.trace.store import RunStore  # imports Polars

    return RunStore(folder)


def _resolve(runs: RunStore, ids: list[str]) -> list[str]:
    """Return the full ids of saved runs, each of which the user gave in full or by its last characters.

    Raises:
        WorkbenchError: no run id, or more than one, ends with a given text.
    """
    all_ids: list[str] | None = None
    resolved = []
    for run in ids:
        if len(run) < 24:
            all_ids = runs.find().select("id").collect()["id"].to_list() if all_ids is None else all_ids
            matches = [name for name in all_ids if name.endswith(run)]
            if len(matches) != 1:
                problem = f"{len(matches)} run ids end" if matches else "No run id ends"
                raise WorkbenchError(f"{problem} with {run[:40]!r}.", "`workbench runs list` shows the ids.")
            run = matches[0]
        resolved.append(run)
    return resolved


def _date(text: str | None, option: str) -> datetime.date | None:
    if text is None:
        return None
    try:
        return datetime.date.fromisoformat(text) if len(text) == 10 else datetime.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a date; write it as 2026-11-21", param_hint=option) from None


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the index of saved runs with values that JSON can represent."""
    return {name: value.isoformat() if isinstance(value, datetime.datetime) else value for name, value in row.items()}


def _is_float(value: Any) -> bool:
    return isinstance(value, float)


def _print_table(rows: list[dict[str, Any]], n_found: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text as Plain

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "ran (UTC)", "method", "target", "τ", "accepted / tested", "tokens/s", "tags", "prompt"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=24 if name == "id" else None)
    for row in rows:
        prompt = " ".join(row["prompt"].split())
        cells = [
            row["id"],
            f"{row['created']:%Y-%m-%d %H:%M}",
            row["method"],
            row["target"],
            "–" if row["tau"] is None else f"{row['tau']:.2f}",
            "–" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:.0%}",
            "–" if row["tokens_per_second"] is None else f"{row['tokens_per_second']:.0f}",
            ", ".join(row["tags"]),
            prompt,
        ]
        table.add_row(*(Plain(harmless(cell)) for cell in cells))
    width = shutil.get_terminal_size((160, 24)).columns
    Console(width=max(width, 120)).print(table)
    if n_found != len(rows):
        typer.echo(f"{len(rows)} of {n_found} runs; --limit 0 shows all", err=True)
