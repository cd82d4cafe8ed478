"""Use the workbench's methods in Transformers: `model.generate(..., custom_generate=speculative(...))`."""

from workbench.interop.custom_generate import Speculative, SpeculativeOutput, speculative

__all__ = ["Speculative", "SpeculativeOutput", "speculative"]
