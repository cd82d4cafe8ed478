"""`workbench bench --suite verifiers`: measure each verifier's time, as a fraction of SmolLM2's forward pass."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import typer

from workbench.cli import checks

KINDS = (".json", ".md")


def measure(device: str, repeats: int, out: list[Path], as_json: bool) -> None:
    """Measure the time of all verifiers, and of forward passes of SmolLM2 if its weights are on this machine.

    Raises:
        BadParameter: a file of `out` has a suffix that the suite does not write.
    """
    checks.check_suffixes("verifiers", out, KINDS)
    from workbench.bench import verifier_suite
    from workbench.models.loading import load_models, resolve_device
    from workbench.models.model_index import SMOLLM2, local_folder, packaged_file
    from workbench.models.pass_costs import measure
    from workbench.trace.files import write_atomically

    def forward(dtype: str) -> tuple[str, int, float]:
        models = load_models(SMOLLM2.name, None, device, dtype)
        target = models.target
        name = f"{SMOLLM2.title}, {str(target.weight_dtype).removeprefix('torch.')}"
        return name, target.vocab_size, measure(models).target_s[verifier_suite.NODES]

    is_here = local_folder(SMOLLM2) is not None or packaged_file(SMOLLM2) is not None
    if not is_here:
        typer.echo(
            f"note: {SMOLLM2.title} is not on this machine, so verifier times are not compared with the model's "
            f"forward pass",
            err=True,
        )
    report = verifier_suite.run_suite(
        resolve_device(device),
        repeats,
        forwards=[functools.partial(forward, dtype) for dtype in ("bfloat16", "float32")] if is_here else (),
        progress=lambda words: typer.echo(words, err=True),
    )
    forms = {".json": f"{json.dumps(report, ensure_ascii=False, indent=1)}\n", ".md": verifier_suite.page(report)}
    for path in out:
        write_atomically(path, forms[path.suffix].encode())
    print(json.dumps(report, ensure_ascii=False) if as_json else forms[".md"])
