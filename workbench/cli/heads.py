"""`workbench heads`: inspect, export and quantise trained heads, and compare the heads of a target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli import complete, output
from workbench.cli.options import Debug, Json
from workbench.cli.stream import harmless
from workbench.core.errors import ModelError

SIGNS = {True: "✓", False: "✕", None: "·"}

app = typer.Typer(
    name="heads",
    help="Inspect, export and compare trained heads of any layout (EAGLE, Medusa, Hydra, speculators).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def inspect(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="NAME_OR_PLACE", help="Name of bundled heads, a checkpoint folder, or its safetensors file."
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(help="Also check whether the heads fit this model.", autocompletion=complete.targets),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the format and content of trained heads, and whether they fit a target; exit code 1 if they do not.

    Example: workbench heads inspect EAGLE-Vicuna-7B-v1.3 --target ./vicuna-7b-v1.3
    """
    from workbench.methods import method_info
    from workbench.models.bundle import bundled
    from workbench.models.checkpoints.user_heads import open_heads

    head = open_heads(str(bundled().get(str(place), place) if not place.exists() else place))
    report: dict[str, Any] = {"layout": "workbench", "architecture": head.kind, "folder": str(head.folder)}
    if head.checkpoint is None:
        report |= {"facts": {key: value for key, value in head.config.items() if key not in _LONG}}
    else:
        checkpoint = head.checkpoint
        report |= {
            "layout": checkpoint.layout,
            "facts": {name: list(v) if isinstance(v, tuple) else v for name, v in checkpoint.facts.items()},
            "parameters": checkpoint.n_parameters,
            "draft_vocabulary": None if checkpoint.draft_tokens is None else len(checkpoint.draft_tokens),
            "verifier": checkpoint.verifier,
            "tensors": {name: list(checkpoint.files.shapes[name]) for name in sorted(checkpoint.tensor_names.values())},
            "not_read": list(checkpoint.unread),
            "drafts_with": method_info.drafting_with(head.kind),
        }
    lines = [] if target is None else _lines(head, target)
    if as_json:
        entries = [{"what": line.name, "fits": line.fits, "says": line.message} for line in lines]
        print(json.dumps(report | ({} if target is None else {"target": target, "lines": entries}), ensure_ascii=False))
    else:
        for line in description(report):
            print(harmless(line))
        for line in lines:
            print(harmless(f"{SIGNS[line.fits]} {line.name}: {line.message}"))
    if any(line.fits is False for line in lines):
        raise typer.Exit(1)


_LONG = ("draft_vocabulary", "head_accuracy", "ranked")


def description(report: dict[str, Any]) -> list[str]:
    """Return the report about trained heads as lines of text, one per fact."""
    lines = [f"layout: {report['layout']}", f"heads: {report['architecture']}"]
    if report.get("verifier"):
        lines.append(f"trained for: {report['verifier']}")
    lines += [f"{name.replace('_', ' ')}: {_short(value)}" for name, value in report["facts"].items()]
    if "tensors" in report:
        lines.append(f"parameters: {report['parameters']:,} in {len(report['tensors'])} tensors in use")
        vocabulary = report["draft_vocabulary"]
        lines.append(f"proposes: {'all tokens' if vocabulary is None else f'{vocabulary:,} tokens'}")
        if report["not_read"]:
            lines.append(f"unused: {', '.join(report['not_read'])}")
        drafts = ", ".join(report["drafts_with"])
        lines.append(
            f"methods that draft with these heads: {drafts}"
            if drafts
            else "no method of the workbench drafts with these heads"
        )
    return lines


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "usual"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if type(value) is int else str(value)


def _lines(heads: Any, target: str) -> list[Any]:
    from workbench.models.bundle import config_of
    from workbench.models.checkpoints.compatibility import CheckResult, HeadRequirements, check_compatibility
    from workbench.models.checkpoints.user_heads import problem
    from workbench.models.names import folder_of
    from workbench.service.checks import check_model, set_error_option

    with set_error_option("target"):
        check_model(target)
    folder = folder_of(target)
    if folder is None:
        raise ModelError(
            f"{target} is not on this machine yet.", "Load the target once to download it, or give its folder."
        )
    if heads.checkpoint is None:
        reason = problem(heads, target, folder)
        return [CheckResult("target", not reason, reason or f"the heads were trained for {target}")]
    try:
        requirements = HeadRequirements.of(target, config_of(folder))
    except (KeyError, TypeError):
        raise ModelError(
            f"The config.json of {target} has no layer sizes, so the heads cannot be checked.", "Give a language model."
        ) from None
    return check_compatibility(heads.checkpoint, requirements)


@app.command()
def export(
    name: Annotated[str, typer.Argument(help="Bundled heads, or a folder of heads that `workbench train` wrote.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write.")],
    to: Annotated[
        str,
        typer.Option(
            help="File layout to write: speculators (EAGLE layers), or vllm (Medusa heads, SafeAILab's EAGLE layer)."
        ),
    ] = "speculators",
    force: Annotated[bool, typer.Option("--force", help="Write into the folder even if it is not empty.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Export heads trained by the workbench to another engine's format, with the target's LM head if needed.

    Example: workbench heads export smollm2-eagle smollm2-eagle-speculators --to speculators
    """
    from workbench.interop.heads import export_heads

    report = export_heads(name, folder, to, force)
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
        return
    print(f"{folder}: {report['layout']}, {report['tensors']} tensors, {report['bytes'] / 1e6:.1f} MB")
    for note in report["notes"]:
        output.note(note)


@app.command()
def shrink(
    name: Annotated[str, typer.Argument(help="Bundled heads or model, or a folder that `workbench train` wrote.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write.")],
    measure: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of prompts (or problems per task) on which original and int8 copy are compared; 0: none.",
        ),
    ] = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write an int8 copy of heads or a model: half the file size; heads draft nearly the same, decoding stays lossless.

    Example: workbench heads shrink smollm2-eagle smaller/smollm2-eagle
    """
    from workbench.models.bundle import bundled
    from workbench.training.heads.artefact import shrink as write

    source = bundled().get(name) or Path(name).expanduser()
    sizes = write(source, folder)
    if measure:
        from workbench.bench.storage import compare_storage
        from workbench.models.bundle import config_of
        from workbench.training.storage import compare_answers, record

        is_drafter = "target" in config_of(source)
        sizes["measured"] = (compare_storage if is_drafter else compare_answers)(source, folder, measure)
        record(folder, sizes["measured"])
    if as_json:
        print(json.dumps(sizes))
        return
    print(f"{folder}: {sizes['before'] / 1e6:.1f} MB became {sizes['after'] / 1e6:.1f} MB; rounding changes the "
    f"weights by {sizes['error']:.2%} of their norm")  # fmt: skip
    for key, value in sizes.get("measured", {}).items():
        print(f"{key.replace('_', ' ')}: {_short(value)}")


@app.command("table")
def compare(
    target: Annotated[
        str, typer.Option(help="Target whose heads are measured.", autocompletion=complete.targets)
    ] = "text-target",
    per_group: Annotated[int, typer.Option(min=1, help="Number of bundled prompts of each group.")] = 3,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length limit of every run, in tokens.")] = 64,
    report: Annotated[bool, typer.Option(help="Save the table on the heads board.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure all heads for a target on the same prompts: size, cost, acceptance by position, τ and speed-up.

    Example: workbench heads table --target text-target --report
    """
    from workbench.bench import headsboard
    from workbench.bench.datasets import first_of_each_group, load_suite
    from workbench.cli.bench import progress_bar
    from workbench.cli.loading import load
    from workbench.service.checks import check_models

    check_models(target, "none", "cpu", "auto")
    models = load(target, "none", "cpu")
    if not headsboard.settings_by_head(models):
        raise ModelError(f"There are no heads for {target} yet.", "Train heads: workbench train eagle-3 --target …")
    prompts = first_of_each_group(load_suite("bundled"), per_group)
    with progress_bar() as bar:
        prompt_ids = {p.name: p.encode(models.tokenizer) for p in prompts}
        row = headsboard.measure(models, prompt_ids, max_new_tokens, bar)
    if row is None:
        raise typer.Exit(130)
    row["per_group"] = per_group
    if report:
        headsboard.save(row)
    else:
        from workbench.bench import board
        from workbench.models.machine import machine_facts

        row |= {"commit": board.commit(), "machine": machine_facts()}
    print(json.dumps(headsboard.figures(row), ensure_ascii=False) if as_json else headsboard.markdown({target: row}))
