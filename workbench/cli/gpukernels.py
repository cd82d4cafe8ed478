"""`workbench bench --suite gpu-kernels`: measure kernels, forward passes and rounds on a GPU within minutes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import typer

from workbench.cli import checks
from workbench.kernels.devices import check_gpu
from workbench.service.checks import set_error_option

SUITE = "gpu-kernels"
KINDS = (".json", ".md")


def measure(
    device: str, toy: bool, time_limit_s: float | None, refused: Sequence[str], out: Sequence[Path], as_json: bool
) -> None:
    """Run the suite `gpu-kernels`, and save the results to a JSON file among `out` after each block of measurements.

    If this file already exists, only the blocks that it does not have in full are measured.

    Args:
        device: value of `--device`.
        toy: whether to measure a tiny model, also on a CPU.
        time_limit_s: time limit of the suite in seconds; None: the default limit.
        refused: options given by the user that have no effect in this suite.
        out: files for the results.
        as_json: whether to print JSON.

    Raises:
        BadParameter: an option has no effect in this suite, or a file of `out` has a suffix that the suite does not
            write.
        ModelError: the device is not a GPU, and `toy` is not set.
    """
    for option in refused:
        raise typer.BadParameter(
            f"the suite {SUITE} does not accept this option: this suite creates its own targets", param_hint=option
        )
    checks.check_suffixes(SUITE, out, KINDS)
    json_file, *more = [path for path in out if path.suffix == ".json"] or [None]
    if more:
        raise typer.BadParameter("give only one .json file", param_hint="--out")
    if not toy:
        with set_error_option("device"):
            check_gpu(device, f"The suite {SUITE} without --toy")
    from workbench.bench import gpu_kernels_suite
    from workbench.models.pretrained import resolve_device
    from workbench.trace.files import write_atomically

    resolved_device = resolve_device(device)
    if not toy:
        with set_error_option("device"):  # again: "auto" may be the CPU if there is a driver without a card
            check_gpu(str(resolved_device), f"The suite {SUITE} without --toy")
    limit_s = gpu_kernels_suite.TIME_LIMIT_S if time_limit_s is None else time_limit_s
    earlier: object = None
    if json_file is not None and json_file.is_file():
        with suppress(OSError, ValueError):
            earlier = json.loads(json_file.read_text(encoding="utf-8"))
    earlier = earlier if isinstance(earlier, dict) else None
    report = gpu_kernels_suite.run_suite(
        resolved_device, toy, limit_s, json_file, lambda words: typer.echo(words, err=True), earlier
    )
    page = gpu_kernels_suite.page(report)
    for path in out:
        if path.suffix == ".md":
            write_atomically(path, page.encode())
    print(json.dumps(report, ensure_ascii=False) if as_json else page)
