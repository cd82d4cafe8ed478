"""Trees drafted by a draft model: of its likeliest tokens, or of tokens drawn without replacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.methods.common.draft_model_tree import TreeFromModel


@dataclass(frozen=True)
class TopKTree(TreeFromModel):
    """Draft a tree of the most likely continuations, by default with the tree builder `BestFirst`.

    Source: Li et al. 2024, EAGLE-2, arXiv:2406.16858, §4, with a separate draft model.
    """

    source: ClassVar[str] = "draft-tree"


@dataclass(frozen=True)
class SampledTree(TreeFromModel):
    """Draft a tree of continuations drawn without replacement, by default with the tree builder `StochasticBeam`.

    Source: Jeon et al. 2024, RSD, arXiv:2402.14160, §3.2 (RSD-S).
    """

    source: ClassVar[str] = "draft-tree-sampled"
