"""FLASH: compress an image to a few latent vectors, and predict several future features from one state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.core.params import param
from workbench.core.static_trees import parents_of
from workbench.core.transfer import to_host
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Plan
from workbench.engine.request import Sequence
from workbench.methods.common.compressors import even_positions
from workbench.methods.common.feature import FeatureDrafter, FeatureState
from workbench.methods.common.feature_net import CompressedImage, FeatureNet, PromptFeatures
from workbench.methods.tree_builders.shapes import MOST_NODES, WIDTH
from workbench.methods.tree_builders.template import PUBLISHED, template_of


class FlashNet(FeatureNet):
    """FLASH's drafter: an image enters as C learned combinations of its features, and k features are predicted ahead.

    The combinations are softmax(A Fᵀ) F, where F are the target's features of the image's N tokens and A the C learned
    queries. No embedding is fused with them. The paper's term "latent-aware" means that F are outputs of the whole
    target. State s(t) predicts f̂(t + 1) as in EAGLE. An MLP on the state predicts f̂(t + 2) … f̂(t + k), which do not
    depend on the tokens drafted before them. With k = 1 the net is EAGLE with compressed images.

    The paper trains one drafter for each C. Here each training batch uses only the first queries, and their number is
    sampled, so that one drafter can be used with every smaller C.
    """

    kind = "flash"
    no_random_init = ("queries", "later")

    def __init__(
        self, width: int, heads: int, ffn: int, latents: int = 8, ahead: int = 4, inner: int = 256, context: int = 1024
    ) -> None:
        super().__init__(width, heads, ffn, context)
        self.queries = nn.Parameter(torch.zeros(latents, width))
        nn.init.normal_(self.queries, std=width**-0.5)
        self.ahead = ahead
        if ahead > 1:
            self.widen = nn.Linear(width, inner)
            self.later = nn.Linear(inner, (ahead - 1) * width)
            nn.init.zeros_(self.later.weight)
            nn.init.zeros_(self.later.bias)

    def compress_image(
        self, prompt: PromptFeatures, pairs: Float[Tensor, "B n_minus_1 D"], image: int, options: Any = None
    ) -> CompressedImage:
        """Compress an image to one input per query: a weighted sum of the target's features of the image.

        Args:
            prompt: embeddings and features of the prompts.
            pairs: unused.
            image: index of the image in the prompt.
            options: number of queries to use, counted from the first; None: all C queries.
        """
        start, end = prompt.spans[image]
        features, queries = prompt.features[:, start:end], self.queries[:options]
        weights = (queries @ features.mT).softmax(-1)  # [B, C, N]
        return CompressedImage(
            weights @ features, even_positions(len(queries), features), "latent", weights=weights[0].detach()
        )

    def sample_options(self, n_prompts: int, rand: Callable[..., Tensor], step: int) -> int:
        """Sample the number of image queries for a training batch: all C, a half of them, a quarter, and so on."""
        n_queries = len(self.queries)
        return n_queries >> int(rand(1) * n_queries.bit_length())

    def futures(self, state: Float[Tensor, "*b D"]) -> Float[Tensor, "*b k D"]:
        """Return the predicted features f̂(t + 1) … f̂(t + k) from state s(t); k is `ahead`."""
        if self.ahead == 1:
            return super().futures(state)
        later = self.later(nn.functional.silu(self.widen(state))).unflatten(-1, (self.ahead - 1, self.width))
        return torch.cat([state.unsqueeze(-2), state.unsqueeze(-2) + later], -2)

    @property
    def sizes(self) -> dict[str, Any]:
        inner = self.widen.out_features if self.ahead > 1 else 0
        return {**super().sizes, "latents": len(self.queries), "ahead": self.ahead, "inner": inner}


@dataclass(frozen=True)
class Flash(FeatureDrafter):
    """Draft a block of k levels with one forward pass. The next block continues at the end of the most likely path.

    The levels of a block do not depend on each other, so their predictions are combined as in Medusa: a path's score is
    the product of the probabilities of its tokens at their levels. Each block has the shape that the plan's template
    gives. By default it consists of the nodes with the highest scores in this round; the paper has one fixed shape.
    Policies that stop drafting early have no effect.

    Source: Wang et al. 2025, FLASH, arXiv:2505.12728, §3.1 (compression), §3.2 (semi-autoregressive head).
    """

    needs: ClassVar[tuple[str, ...]] = (FlashNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = FlashNet
    width: int = param(3, **WIDTH)
    latents: int = param(8, ge=1, le=64, doc="number of latent vectors per image, at most as many as were trained")

    @property
    def image_options(self) -> int:
        return self.latents

    def siblings(self) -> frozenset[Sampling]:
        """Return how sibling nodes are chosen: deterministically, as the most likely tokens of each level."""
        return frozenset({Sampling.DETERMINISTIC})

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Draft blocks of k levels, one forward pass each, and return the tree of the nodes with the highest scores."""
        state, depth, shape = cast(FeatureState, sequence.state.drafter), plan.depth, template_of(plan)
        guess = state.catch_up()
        if guess is None:
            return DraftTree.empty(device=sequence.models.target.device)
        nodes: dict[tuple[int, ...], tuple[float, int, float]] = {}  # ranks on the path → score, token, probability
        trunk: tuple[int, ...] = ()
        score = 0.0
        while True:
            features = state.net.futures(guess)[0][: depth - len(trunk)]  # [levels, D]
            best = state.best(features, self.width)
            logq, tokens = to_host(best)
            probs = [[math.exp(q) for q in level] for level in logq]
            for path in shape.paths(replace(plan, depth=len(probs)), probs):
                if max(path) >= len(tokens[0]):
                    continue
                path_score = score + sum(logq[i][rank] for i, rank in enumerate(path))
                nodes[trunk + path] = (path_score, tokens[len(path) - 1][path[-1]], probs[len(path) - 1][path[-1]])
            trunk += (0,) * len(probs)
            if len(trunk) >= depth or trunk not in nodes:
                break
            score = nodes[trunk][0]
            places = torch.arange(len(trunk) - len(probs) + 1, len(trunk) + 1, device=guess.device)
            guess = state.speculate(features, best[1][:, 0], places, None)[-1:]
        state.kv_cache.drop_speculative()
        # a child is never more likely than its parent, and ties go to the shorter path, so the selection is a tree
        n_nodes = plan.limit_nodes(MOST_NODES if shape.shape in PUBLISHED else shape.nodes)
        paths = sorted(sorted(nodes, key=lambda path: (-nodes[path][0], len(path)))[:n_nodes], key=len)
        return DraftTree.from_parents(
            [nodes[path][1] for path in paths],
            parents_of(paths),
            source=self.net.kind,
            device=guess.device,
            score=[nodes[path][2] for path in paths],
        )
