"""`workbench check`: does every method keep its promise on this target?"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer

from workbench.cli.loading import load
from workbench.cli.options import DEFAULT_DRAFTER, DEFAULT_TARGET, Debug, Device, Drafter, Json, Target

PROMPTS = ("Once upon a time there was a little", "The red ball, the blue ball, the red ball, the", "A")
SIGNS = {"pass": "✓ pass", "fail": "✕ FAIL", "measured": "· measured", "skipped": "– skipped"}


def check(
    names: Annotated[list[str] | None, typer.Argument(help="Methods to check; all when none is named.")] = None,
    target: Target = DEFAULT_TARGET,
    drafter: Drafter = DEFAULT_DRAFTER,
    device: Device = "cpu",
    runs: Annotated[int, typer.Option(min=100, help="Samples of each test of a sampling law.")] = 1000,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Length of the greedy texts, in tokens.")] = 24,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Put promises to the test in float64, a verdict a line; exit code 1 if one is broken.

    Greedy text must equal Hugging Face's own `generate` token for token, for the defaults and at both ends of every
    parameter. Sampled tokens must follow the target's exact joint law (chi-square, on tiny models whose law is
    computed in full). Approximate methods and simulations promise nothing: their figures are reported.
    """
    from workbench.bench.check import FAIL, check_method
    from workbench.methods import registry

    chosen = [registry.get(name) for name in (names or registry.names())]
    models = load(target, drafter, device, dtype="float64")
    prompts = [models.tokenizer.encode(text) for text in PROMPTS]
    findings = []
    for method in chosen:
        for finding in check_method(method, models, prompts, max_new_tokens, runs):
            findings.append(finding)
            if not as_json:
                line = f"{SIGNS[finding.verdict]:<11} {finding.method:<16} {finding.claim}: {finding.detail}"
                print(f"{line} [{finding.promise}, {finding.seconds:.0f} s]", flush=True)
            else:
                print(f"{finding.method}: {finding.verdict}", file=sys.stderr)
    failed = sum(f.verdict == FAIL for f in findings)
    if as_json:
        wire = {"target": target, "failed": failed, "findings": [dataclasses.asdict(f) for f in findings]}
        print(json.dumps(wire, ensure_ascii=False, indent=2))
    else:
        print(f"{len(findings) - failed} of {len(findings)} lines without a broken promise.")
    raise typer.Exit(1 if failed else 0)
