"""Memory freed by a training step is reused by the next one."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from workbench.cli import main
from workbench.training import memory

SCRIPT = """
import resource, sys
import torch
from workbench.training.memory import keep_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

print(keep_memory() if sys.argv[1] == "keep" else "as it was")
for _ in range(40):  # a small object in a gap too small for the next tensor, and the heap grows by one
    torch.ones(12 << 20)
before = faults()
for _ in range(10):
    torch.ones(12 << 20)
print(faults() - before)
"""
HUGE = (12 << 20) * 4 >> 21
"""Pages of one such tensor, 48 MB, if all are huge ones."""


def faults(mode: str) -> tuple[str, int]:
    """Return the process's first line, and the page faults while ten such tensors are allocated and freed."""
    run = subprocess.run([sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True, timeout=120)
    said, n = run.stdout.split("\n")[:2]
    return said, int(n)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_large_tensors_reuse_memory() -> None:
    said, kept = faults("keep")
    assert said == "True"
    assert kept < HUGE, "fewer page faults than for one of the ten tensors"
    assert faults("leave")[1] >= 10 * HUGE, "without `keep_memory` the system clears the pages each time"


def test_only_a_process_that_trains_is_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = list[str]()
    monkeypatch.setattr(memory, "keep_memory", lambda: asked.append("kept"))
    for argv in (["workbench", "methods"], ["workbench", "train"]):
        monkeypatch.setattr(sys, "argv", argv)
        assert main() == 0
    assert asked == ["kept"]
    assert main(["train"]) == 0
    assert asked == ["kept"], "another program that calls `main` is not changed"
    assert capsys.readouterr().out
