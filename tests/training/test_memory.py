"""What a training step frees is there for the next one."""

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
    """What the process said of itself, and pages that the system cleared while ten such tensors came and went."""
    run = subprocess.run([sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True, timeout=120)
    said, n = run.stdout.split("\n")[:2]
    return said, int(n)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_large_tensors_come_and_go_in_memory_that_stays() -> None:
    said, kept = faults("keep")
    assert said == "True"
    assert kept < HUGE, "less than one of ten was cleared anew"
    assert faults("leave")[1] >= 10 * HUGE, "which the system does otherwise"


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
    assert asked == ["kept"], "another program that calls it is left alone"
    assert capsys.readouterr().out
