"""`workbench doctor`: find out whether a difference from plain greedy decoding comes from rounding or from a bug."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli import checks, complete
from workbench.cli.loading import load
from workbench.cli.options import (
    DEFAULT_DRAFTER,
    DEFAULT_TARGET,
    Debug,
    Device,
    Drafter,
    Dtype,
    Json,
    MaxNewTokens,
    Settings,
    Target,
    parse_settings,
)
from workbench.cli.stream import harmless
from workbench.cli.traces import read_trace
from workbench.methods import method_info
from workbench.service.checks import check_models, set_error_option

PROMPTS = ("Once upon a time there was a little", "Write a story about Mia and Tom.", "1, 2, 3, 4, 5, 6,")
SIGNS = {"identical": "✓ identical", "numerics": "≈ numerics", "bug": "✕ BUG"}


def doctor(
    method: Annotated[
        str | None,
        typer.Argument(
            help="Method to run; by default draft-model, or one that runs on the target without a draft model.",
            autocompletion=complete.methods,
        ),
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt; repeatable.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Examine this recorded run (a trace file) instead of a new run.")
    ] = None,
    target: Target = DEFAULT_TARGET,
    drafter: Drafter = DEFAULT_DRAFTER,
    device: Device = "auto",
    dtype: Dtype = "auto",
    settings: Settings = None,
    max_new_tokens: MaxNewTokens = 64,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare greedy runs with plain decoding, token by token, and distinguish rounding differences from bugs.

    If plain decoding chooses another token than the run, the prefix is decoded again in other ways (such as in longer
    forward passes). If one of them also chooses the run's token, the cause is rounding, and the difference of the
    logits is shown. If none does, the cause is a bug, and the exit code is 1.

    Example: workbench doctor draft-tree --dtype bfloat16
    """
    values, recorded = parse_settings(settings), None
    if trace is not None:
        with set_error_option("trace"):
            recorded = read_trace(trace)
        check_models(recorded.header.target, recorded.header.drafter or "none", device, recorded.header.dtype)
    else:
        pair = check_models(target, drafter, device, dtype)
        if method is not None:
            method_info.get(method)  # the method is an argument of this command, not the option --method
        method = checks.resolve_method(method, values, pair)
    from workbench.bench.doctor import BUG, diagnose, examine
    from workbench.methods import registry

    diagnoses = []
    if recorded is not None:
        models = load(recorded.header.target, recorded.header.drafter or "none", device, recorded.header.dtype)
        diagnoses.append((recorded.header.prompt, examine(models, recorded)))
    else:
        assert method is not None
        configured = registry.get(method).with_params(**values)
        models = load(target, drafter, device, dtype)
        for text in prompt or PROMPTS:
            diagnoses.append((text, diagnose(models, configured, text, max_new_tokens)))
            if not as_json:
                _print(*diagnoses[-1])
    if as_json:
        print(json.dumps([{"prompt": text, **d.to_wire()} for text, d in diagnoses], ensure_ascii=False, indent=2))
    elif recorded is not None:
        _print(*diagnoses[0])
    raise typer.Exit(1 if any(d.verdict == BUG for _, d in diagnoses) else 0)


def _print(prompt: str, diagnosis: Any) -> None:
    print(f"{SIGNS[diagnosis.verdict]:<12} {diagnosis.method}, {diagnosis.dtype}: {harmless(prompt)[:60]}", flush=True)
    for line in diagnosis.words():
        print(f"  {harmless(line)}", flush=True)
