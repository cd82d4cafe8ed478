"""Former import path of `workbench.bench.forced_acceptance`."""

from workbench.bench.forced_acceptance import noisy_copy

__all__ = ["noisy_copy"]
