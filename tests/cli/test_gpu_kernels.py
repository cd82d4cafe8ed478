"""`workbench bench --suite gpu-kernels`: its files, and the blocks that a second run repeats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.conftest import Command

from workbench.bench import gpu_kernels_suite
from workbench.bench.timed_blocks import Block, BlockRun


def test_the_command_writes_its_files_and_repeats_only_failed_blocks(
    workbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_failures = [0]

    def measure(run: BlockRun) -> None:
        run.add("passes", {"model": "toy", "ms": 1.5})

    def fail(run: BlockRun) -> None:
        n_failures[0] += 1
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(
        gpu_kernels_suite, "blocks", lambda toy: [Block("passes toy", 9, measure), Block("rounds toy", 9, fail)]
    )
    files = [tmp_path / "gpu.json", tmp_path / "gpu.md"]
    command = ("bench", "--suite", "gpu-kernels", "--toy", "--device", "cpu", "--time-limit", "30",
               *(word for file in files for word in ("--out", str(file))))  # fmt: skip
    for n in (1, 2):
        done = workbench(*command)
        assert done.status == 0, done.err
        assert ("passes toy (at most 9 s)" in done.err) == (n == 1)
        assert n_failures == [n]
        report = json.loads(files[0].read_text())
        assert report["passes"] == [{"block": "passes toy", "model": "toy", "ms": 1.5}]
        assert "| rounds toy | RuntimeError: no such kernel |" in done.out
        assert files[1].read_text(encoding="utf-8").strip() == done.out.strip()
