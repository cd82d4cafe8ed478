"""RSD-S: siblings sampled without replacement; a stochastic beam selects the paths of each level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.params import param
from workbench.core.random_stream import Purpose
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.parts import Plan, TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.methods.tree_builders.shapes import MOST_NODES, WIDTH
from workbench.methods.tree_builders.tree_sampler import TreeSampler

PERTURBED = TreeBuilderRule(
    "rsd-s",
    "Stochastic beam",
    "Gumbel noise is added to the log-probability of each path, and a level keeps the paths with the largest sums. "
    "This samples without replacement over all paths of the level at once.",
    "log-probability of the node's path, by the drafter",
    "log q with noise",
)


@dataclass(frozen=True)
class StochasticBeam(TreeBuilder):
    """Add Gumbel noise to the log-probability of every path, and keep the `width` largest sums per level.

    φ is a path's log-probability and G its perturbed value. A child's G is its φ + Gumbel noise, conditioned so that
    the maximum over its siblings equals the parent's G. A level keeps the children with the largest G of all parents.
    Siblings in descending order of G are then a sample without replacement. The number of a node's children in the tree
    depends on the values G alone, never on tokens, so recursive rejection is exact.

    Attributes:
        width: number of paths kept per level.

    Source: Jeon et al. 2024, RSD, arXiv:2402.14160, §3.2 (RSD-S); Kool et al. 2019, stochastic beam search,
    arXiv:1903.06059, Algorithm 1. When decoding is greedy the distributions are point masses and the tree is a chain.
    """

    name: ClassVar[str] = "rsd-s"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.WITHOUT_REPLACEMENT
    width: int = param(3, **WIDTH)

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Draw draft levels of at most `width` nodes each, and return the draft tree.

        If the node budget allows fewer nodes in the last level, the nodes with the largest perturbed values are
        drafted. The perturbed value of a node is the log-probability of its path plus conditioned Gumbel noise.
        """
        sequence, most = tree.sequence, plan.limit_nodes(MOST_NODES)
        sampler = TreeSampler(tree, self.siblings)
        path_logq, noisy_logq = list[Tensor](), list[Tensor]()  # one entry per level
        phi = torch.zeros(1, dtype=torch.float64, device=tree.device)
        value = torch.zeros(1, dtype=torch.float64, device=tree.device)
        for level, width, p in sampler.levels([self.width] * plan.depth, most):
            u = sequence.uniforms(Purpose.GUMBEL, p.numel(), p.device, level)
            child_phi, child_value = _perturb(p.double(), phi, value, u.view(p.shape))
            flat = child_value.reshape(-1)
            k = min(width, most - tree.n, int(torch.isfinite(flat).sum()))
            top = flat.topk(k)  # descending: siblings stay in order
            parent, token = top.indices // p.shape[1], top.indices % p.shape[1]
            phi, value = child_phi.reshape(-1)[top.indices], top.values
            path_logq.append(phi)
            noisy_logq.append(value)
            sampler.add(token, parent)
        return sampler.finish(
            self.width, TreeExplanation((PERTURBED,), before=torch.cat(path_logq), after=torch.cat(noisy_logq))
        )


def _perturb(
    p: Float[Tensor, "w V"], phi: Float[Tensor, " w"], value: Float[Tensor, " w"], u: Float[Tensor, "w V"]
) -> tuple[Float[Tensor, "w V"], Float[Tensor, "w V"]]:
    """Return the path log-probability φ and the perturbed value G of every child of w draft nodes.

    A child's G is φ + Gumbel noise, conditioned so that the largest G among siblings equals their parent's G.

    Args:
        p: distributions after the parents.
        phi: log-probability of each parent's path.
        value: perturbed value G of each parent.
        u: uniform numbers in [0, 1), float64.
    """
    child_phi = phi.unsqueeze(1) + p.log()
    g = child_phi - torch.log(-torch.log(u.clamp(1e-300, 1 - 1e-16)))
    top = g.amax(1, keepdim=True)
    g_parent = value.unsqueeze(1)
    v = g_parent - g + torch.log1p(-torch.exp((g - top).clamp(max=0)))
    conditioned = g_parent - v.clamp(min=0) - torch.log1p(torch.exp(-v.abs()))
    conditioned = torch.where(g == top, g_parent.expand_as(g), conditioned)
    return child_phi, torch.where(p > 0, conditioned, -torch.inf)
