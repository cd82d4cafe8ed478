"""`workbench datastore`: build and show the datastores of text from which the methods `rest` and `rasd` draft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from workbench.cli import checks, output
from workbench.cli.options import DEFAULT_TARGET, Debug, Json, Target
from workbench.cli.stream import harmless
from workbench.core.errors import ModelError

SAMPLE = 48
"""Number of tokens in the sample of a datastore that `workbench datastore show` prints."""

app = typer.Typer(
    name="datastore",
    help="Build or show a text store of your own files, from which the methods rest and rasd draft.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def build(
    files: Annotated[list[Path], typer.Argument(help="UTF-8 text files; each file becomes one text of the store.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the store.")],
    target: Target = DEFAULT_TARGET,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing store.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Build a text store for drafting: tokens of text files, by the target's tokenizer, and their suffix array.

    If the command is stopped or killed, running it again resumes the work. The store appears only when it is complete.
    100 MB of text take minutes and 1 GB of memory.

    Example: workbench datastore build notes/*.txt --out notes-store --target smollm2
    """
    checks.check_output_folder(out.absolute().parent, "out")
    from workbench.cli.bench import progress_bar
    from workbench.cli.loading import LoadingProgress, silence_transformers

    with LoadingProgress(f"the tokenizer of {target}"):
        from workbench.engine import datastore_builder
        from workbench.models.pretrained import load_tokenizer

        silence_transformers()
        tokenizer = load_tokenizer(target)
    with progress_bar() as bar:
        store = datastore_builder.build(files, out, tokenizer, target, bar or (lambda *_: None), force)
    if as_json:
        print(json.dumps(store.card.to_wire() | {"folder": str(out)}, ensure_ascii=False))
        return
    print(f"{out}: {len(store):,} tokens of {store.card.text_bytes / 1e6:.1f} MB of text")
    drafts = f"workbench generate --target {target} --method rest"
    output.note(f"to draft from it: {datastore_builder.ENV}={harmless(str(out))} {drafts}")


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="Folder of a store.")],
    at: Annotated[
        int,
        typer.Option(
            min=0, help="Position of the first token shown, such as the position `entry` of a match in a trace."
        ),
    ] = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a text store for drafting: size, tokens, tokenizer, texts and a sample. Checksums are verified."""
    from workbench.engine.datastore import open_store
    from workbench.models.checksums import checksum_problem
    from workbench.models.pretrained import load_tokenizer

    store = open_store(folder)
    card, files = store.card, sorted(store.card.sha256)
    for name in files:
        if Path(name).name == name and (problem := checksum_problem(folder / name, card.sha256[name])):
            raise ModelError(f"{folder / name} {problem}.", "Build the store again: workbench datastore build.")
    at = min(at, len(store) - 1)
    ids = [int(token) for token in store.tokens[at : at + SAMPLE] if token < card.vocabulary]
    try:
        sample = load_tokenizer(card.target).decode(ids)
        store.check_tokenizer(load_tokenizer(card.target), str(folder), card.target)
    except ModelError as error:
        sample = ""
        output.note(harmless(str(error)))
    facts = {
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
        print(json.dumps(facts, ensure_ascii=False))
        return
    for name, value in facts.items():
        print(f"{name:12} {harmless(f'{value:,}' if isinstance(value, int) else str(value))}")
