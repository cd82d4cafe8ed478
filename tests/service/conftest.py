"""Tiny models saved to disk, and backends that load them like any other model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import model_helpers
import pytest
import torch

from workbench.service import Backend, Run

PROMPT = "abcabcabc"


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Save a target and a noisy copy of it in Hugging Face's layout; return both folders."""
    base = tmp_path_factory.mktemp("models")
    target = model_helpers.family("llama", vocab_size=257)
    for name, model in (("target", target), ("drafter", model_helpers.noisy_copy(target, 0.2))):
        model.save_pretrained(base / name)
        model_helpers.byte_tokenizer().save_pretrained(base / name)
    return str(base / "target"), str(base / "drafter")


@pytest.fixture
def backend(folders: tuple[str, str]) -> Iterator[Callable[..., Backend]]:
    """Return a function that starts backends with the tiny models; close them after the test."""
    made: list[Backend] = []

    def make(**options: object) -> Backend:
        made.append(Backend(*folders, dtype="float64", **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def wait_until(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until a condition holds. Training has low priority: on a busy machine its start takes a minute."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.005)


def rounds(run: Run) -> int:
    """Return the number of rounds recorded so far."""
    return 0 if run.trace is None else len(run.trace.rounds)


def raise_cpu_out_of_memory() -> None:
    """Raise the out-of-memory error of PyTorch's CPU allocator."""
    torch.empty(1 << 55)


def raise_cuda_out_of_memory() -> None:
    """Raise PyTorch's out-of-memory error of a GPU."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
