"""Spec-LLaVA's policy: branch where the drafter's distribution is flat, go deep where it is peaked."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.core.params import param
from workbench.decoders.draft_verify.parts import Plan, Policy, TreeBuilder
from workbench.engine.request import Sequence
from workbench.methods.policies.fixed import DEPTH
from workbench.methods.tree_builders.path_threshold import PathThreshold


@dataclass(frozen=True)
class DynamicTree(Policy):
    """Draft every continuation whose probability along its path, by the drafter, reaches a threshold.

    A node with a flat distribution then gets several children, a node with a peaked one gets one child, and unlikely
    branches end. The likeliest token of the first level is always proposed. The tree builder is `PathThreshold`.

    Source: Huo et al. 2025, Spec-LLaVA, arXiv:2509.11961; the paper gives no thresholds.
    """

    name: ClassVar[str] = "dynamic-tree"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    tree_builder: ClassVar[type[TreeBuilder] | None] = PathThreshold
    depth: int = param(6, **DEPTH)
    path_threshold: float = param(
        0.1, ge=0.02, le=1.0, doc=("minimum draft probability of the path from the root to a node")
    )
    children: int = param(4, ge=1, le=8, doc="maximum number of children per node")

    def plan(self, sequence: Sequence, state: Any, batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Return a plan with `depth` draft levels and the tree builder `PathThreshold`."""
        return Plan(self.depth, tree_builder=PathThreshold(self.path_threshold, self.children))
