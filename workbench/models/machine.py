"""Collect facts about the machine on which a measurement runs: processor, accelerator, versions."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any


def machine_facts() -> dict[str, Any]:
    """Return facts about this machine as JSON values: processor, cores, threads, accelerator, versions, time."""
    import torch  # imported late: reports describe a machine without it
    import transformers

    facts: dict[str, Any] = {
        "cpu": _cpu_name(),
        "instructions": _instructions(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": _memory_gib(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def describe(facts: dict[str, Any]) -> str:
    """Return one line of text that describes a machine, from the output of `machine_facts`."""
    return f"{describe_hardware(facts)}; {facts['date']}; load before the run {facts['load']}"


def describe_hardware(facts: dict[str, Any]) -> str:
    """Return text that describes a machine: those facts of `machine_facts` that stay the same from run to run."""
    extras = "".join(f", {facts[name]}" for name in ("instructions", "gpu") if facts.get(name))
    versions = f"torch {facts['torch']}, transformers {facts['transformers']}"
    return f"{facts['cpu']}, {facts['cores']} cores{extras}; {versions}"


def _instructions() -> str:
    """Return the CPU's widest instruction set as PyTorch reports it: CPUs of one name may differ in speed by half."""
    import torch

    checks = {"_is_amx_tile_supported": "AMX", "_is_avx512_bf16_supported": "AVX-512 with bfloat16",
             "_is_avx512_supported": "AVX-512", "_is_avx2_supported": "AVX2"}  # fmt: skip
    return next((label for name, label in checks.items() if getattr(torch.cpu, name, bool)()), "")


def _memory_gib() -> float | None:
    """Return the size of main memory in GiB; None if the package psutil (in the extra `bench`) is not installed."""
    try:
        import psutil
    except ModuleNotFoundError:
        return None
    return round(psutil.virtual_memory().total / 2**30, 1)


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
