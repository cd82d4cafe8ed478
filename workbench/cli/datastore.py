"""`workbench datastore`: stores of text that `rest` and `rasd` draft from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from workbench.cli import checks, say
from workbench.cli.options import DEFAULT_TARGET, Debug, Json, Target
from workbench.cli.stream import harmless
from workbench.core.errors import ModelError

SAMPLE = 48
"""Tokens shown of a store."""

app = typer.Typer(
    name="datastore",
    help="Stores of text to draft from (`--method rest`, `rasd`): build one of your own files, show one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def build(
    files: Annotated[list[Path], typer.Argument(help="Files of UTF-8 text; each is one text of the store.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the store.")],
    target: Target = DEFAULT_TARGET,
    force: Annotated[bool, typer.Option("--force", help="Replace a store that is there.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Build a store of text files: tokens of the target's tokenizer, and their suffix array.

    Killed or stopped, the same command goes on where it was; the store appears as a whole. 100 MB of text take minutes
    and 1 GB of memory.

    Example: workbench datastore build notes/*.txt --out notes-store --target smollm2
    """
    checks.folder_to_write(out.absolute().parent, "out")
    from workbench.cli.bench import progress_bar
    from workbench.cli.loading import Waiting, quiet

    with Waiting(f"the tokenizer of {target}"):
        from workbench.engine import storing
        from workbench.engine.pretrained import load_tokenizer

        quiet()
        tokenizer = load_tokenizer(target)
    with progress_bar() as bar:
        store = storing.build(files, out, tokenizer, target, bar or (lambda *_: None), force)
    if as_json:
        print(json.dumps(store.card.to_wire() | {"folder": str(out)}, ensure_ascii=False))
        return
    print(f"{out}: {len(store):,} tokens of {store.card.text_bytes / 1e6:.1f} MB of text")
    say.note(f"draft from it: {storing.ENV}={harmless(str(out))} workbench generate --target {target} --method rest")


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="Folder of a store.")],
    at: Annotated[int, typer.Option(min=0, help="Show the text from this place on: a run's signal `entry`.")] = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a store: size, tokens, tokenizer, texts, a sample. Its files are read and compared with their sums."""
    from workbench.engine.checksums import what_is_wrong
    from workbench.engine.datastore import open_store
    from workbench.engine.pretrained import load_tokenizer

    store = open_store(folder)
    card, files = store.card, sorted(store.card.sha256)
    for name in files:
        if Path(name).name == name and (wrong := what_is_wrong(folder / name, card.sha256[name])):
            raise ModelError(f"{folder / name} {wrong}.", "Build it again: workbench datastore build.")
    at = min(at, len(store) - 1)
    ids = [int(token) for token in store.tokens[at : at + SAMPLE] if token < card.vocabulary]
    try:
        sample = load_tokenizer(card.target).decode(ids)
        store.check_tokenizer(load_tokenizer(card.target), str(folder), card.target)
    except ModelError as error:
        sample = ""
        say.note(harmless(str(error)))
    told = {
        "folder": str(folder),
        "tokens": len(store),
        "text bytes": card.text_bytes,
        "disk bytes": sum((folder / name).stat().st_size for name in files),
        "target": card.target,
        "tokenizer": card.tokenizer,
        "texts": len(card.texts),
        "at": at,
        "of": store.text_at(at),
        "sample": sample,
    }
    if as_json:
        print(json.dumps(told, ensure_ascii=False))
        return
    for name, value in told.items():
        print(f"{name:12} {harmless(f'{value:,}' if isinstance(value, int) else str(value))}")
