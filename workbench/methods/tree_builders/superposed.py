"""Superposed decoding: draft several texts with one pass per level, over the mean embedding of their last tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.transfer import to_list
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.declarations import Claim
from workbench.decoders.draft_verify.parts import Drafter, Plan, TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.methods.tree_builders.shapes import MOST_NODES, WIDTH
from workbench.models.loading import Models

CANDIDATES = 9
"""Number m of most likely tokens of the superposed distribution that are candidates for the continuation of each
draft."""
TEMPERATURE = 0.06
"""Temperature of the superposed distribution, which the draft model predicts from a mean embedding."""
WEIGHTS = (0.01, 0.04, 0.15, 0.18, 0.12)
"""Weights w_i of the counts of next tokens after the last i = 1, 2, … 5 tokens, in the n-gram probability."""
UNKNOWN = 200.0
"""Penalty on the score of a superposed draft if no candidate token followed the draft's last tokens in the text so
far."""

SUPERPOSED = TreeBuilderRule(
    "superposed",
    "Superposed draft",
    "The draft model read the last tokens of all drafts as one mean embedding, so all drafts share one distribution; "
    "n-grams of the text so far select the continuation of each. The best drafts of each level continue, and λ is the "
    "weight of each in the next pass.",
    "weight λ of this draft, from the drafter's distribution alone",
    "weight λ with n-grams",
)


class NGrams:
    """Counts of the tokens that followed each context of 1 … 5 tokens in one sequence's text so far.

    Attributes:
        following: for each context, the number of times that each token followed it.
        n_read: number of tokens of the text that were counted so far.
    """

    def __init__(self) -> None:
        self.following: dict[tuple[int, ...], Counter[int]] = {}
        self.n_read = 0

    def read(self, text: Sequence[int]) -> None:
        """Count the n-grams that end with the tokens committed since the last call.

        Args:
            text: all committed tokens of the sequence.
        """
        for at in range(max(self.n_read, 1), len(text)):
            for n in range(1, min(len(WEIGHTS), at) + 1):
                self.following.setdefault(tuple(text[at - n : at]), Counter())[text[at]] += 1
        self.n_read = len(text)

    def ngram_probs(self, before: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Return the n-gram probability P_ng of each candidate token v, from counts in the text so far.

        P_ng(v) = Σ over i of w_i · n_i(v) / Σ_u n_i(u), where n_i(u) is the number of times that token u followed the
        last i tokens in the text so far, and w_i are the `WEIGHTS`.

        Args:
            before: tokens before the position of the candidates.
            tokens: candidate tokens.
        """
        probs = [0.0] * len(tokens)
        for n, weight in enumerate(WEIGHTS, 1):
            followers = self.following.get(tuple(before[-n:])) if n <= len(before) else None
            if followers is None:
                break  # longer contexts did not occur either
            share = weight / followers.total()
            probs = [prob + share * followers[token] for prob, token in zip(probs, tokens, strict=True)]
        return probs


@dataclass(frozen=True)
class Superposed(TreeBuilder):
    """Draft `width` texts at once: the draft model reads the last tokens of all of them in one position.

    The input at this position is ẽ = Σ λ_d E[y_d], where E[y_d] is the embedding of the last token of draft d, and λ is
    the softmax of the drafts' scores s_d. A level therefore costs one forward pass over one token, whatever the width.
    All drafts share the distribution P that this pass predicts, and n-grams distinguish them. The score of draft d with
    the next token v is s_d + (1 − α) log P(v) + α log P_ng(v | last tokens of d). The `width` continuations with the
    highest scores are drafted further.

    If some candidate tokens occurred after the last tokens of d in the text so far, all other candidates are excluded.
    If no candidate did, 200 is subtracted from the score instead of the n-gram term. A draft without a continuation
    stays in the tree as a shorter path.

    The tree is a function of the committed tokens, so the verifier for deterministic drafts is exact. The KV cache
    entry of a mean embedding does not belong to one token, so the draft model reads accepted tokens again in the next
    round.

    Attributes:
        width: number k of drafts per level.
        ngrams: weight α of the n-grams. With α = 0 no n-grams are counted, and the host does not wait for the tokens of
            each level. This is the default, because the paper's α = 0.54 has no measured benefit here: on the bundled
            models, τ with α = 0 is 1.007 times τ with α = 0.54 (95 % interval 0.914 to 1.104, 25 prompts).

    Source: Shen et al. 2024, Superposed Decoding, arXiv:2405.18400. In the paper the drafts are k answers from which a
    user chooses. The paper counts n-grams in a corpus, which contains more n-grams than the text so far, so fewer
    drafts are excluded. It stores finished drafts in a pool; here a draft continues after the end-of-text token, and
    the engine cuts it there.
    """

    name: ClassVar[str] = "superposed"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.DETERMINISTIC
    superposes: ClassVar[bool] = True
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "τ relative to one chain with as many passes of the drafter (4), n-grams with α = 0.54",
            "LLaMA-2 7B generates three texts with one pass per token, as good as three separately generated texts",
            None, None,
            "Shen et al. 2024, Superposed Decoding, arXiv:2405.18400, abstract (only the direction is compared; made "
            "for suggestions, not for speculative decoding)",
            lambda lab: lab.tau_over(
                "draft-tree", {"grower": "superposed", "depth": 4, "ngrams": 0.54}, {"grower": "chain", "depth": 4}, 0.0
            ),
            key="superposed", method="draft-tree",
        ),
    )  # fmt: skip
    width: int = param(3, **WIDTH)
    ngrams: float = param(
        0.0, ge=0.0, le=1.0, doc="α, weight of an n-gram model of the text so far; 0.54 in the paper, 0: off"
    )

    def init_state(self, drafter: Drafter, models: Models) -> NGrams:
        """Return the tree builder's initial state, without n-gram counts."""
        return NGrams()

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Draft level by level: score the candidate tokens, select the best, and read the mean of their embeddings."""
        most = plan.limit_nodes(MOST_NODES)
        counts = self._counts(tree.sequence.state.tree_builder, tree.sequence.committed)
        texts: list[list[int]] = [[]]  # tokens of each draft, on the host
        scores = own_scores = torch.zeros(1, device=tree.device)
        lambdas = list[tuple[Tensor, Tensor]]()  # λ of each level's drafts, without and with n-grams
        distributions, draft_logq = tree.root, list[Tensor]()
        for level in range(plan.depth):
            logq, tokens = (part.expand(len(scores), -1) for part in distributions.best(CANDIDATES))
            gain = own_gain = (logq / TEMPERATURE).log_softmax(1)
            if counts is not None:
                gain = self._smoothed(gain, tokens, counts, tree.sequence.committed, texts)
            new_scores = (scores.unsqueeze(1) + gain).reshape(-1)
            k = min(self.width, most - tree.n, int(torch.isfinite(new_scores).sum()))
            if not k:
                break
            scores, best = new_scores.nan_to_num(-torch.inf).topk(k)
            below = best // tokens.shape[1]
            drafted = tokens.reshape(-1)[best]
            own_scores = (own_scores.unsqueeze(1) + own_gain).reshape(-1)[best]
            lambdas.append((own_scores.softmax(0), scores.softmax(0)))
            tree.add(drafted, below if level else None)
            draft_logq.append(logq.reshape(-1)[best])
            if counts is not None:
                pairs = zip(to_list(below), to_list(drafted), strict=True)
                texts = [[*texts[draft], token] for draft, token in pairs]
            if level + 1 == plan.depth or tree.n >= most:
                break
            if not tree.should_continue(distributions := tree.superpose(lambdas[-1][1])):
                break
        tree.close()
        if not draft_logq:  # the drafter failed
            return DraftTree.empty(tree.source, tree.device)
        lambda_before, lambda_after = zip(*lambdas, strict=True)
        grown = TreeExplanation((SUPERPOSED,), before=torch.cat(lambda_before), after=torch.cat(lambda_after))
        return tree.to_tree(self.width, torch.cat(draft_logq).exp(), grown)

    def _counts(self, state: Any, committed: Sequence[int]) -> NGrams | None:
        if not self.ngrams:
            return None
        counts = state if isinstance(state, NGrams) else NGrams()
        counts.read(committed)
        return counts

    def _smoothed(
        self,
        logp: Float[Tensor, "w m"],
        tokens: Int[Tensor, "w m"],
        counts: NGrams,
        committed: Sequence[int],
        texts: Sequence[Sequence[int]],
    ) -> Float[Tensor, "w m"]:
        """Return the term that each of m candidate tokens adds to the score of each of w drafts.

        Args:
            logp: log-probability of each candidate by the drafter.
            tokens: candidate tokens after each draft.
            counts: n-gram counts of the text so far.
            committed: committed tokens.
            texts: drafted tokens of each draft.
        """
        contexts = [[*committed[-len(WEIGHTS) :], *text] for text in texts]
        ngram_probs = [
            counts.ngram_probs(text, candidates) for text, candidates in zip(contexts, to_list(tokens), strict=True)
        ]
        ngram_p = torch.tensor(ngram_probs, dtype=logp.dtype).to(logp.device)
        own_gain = (1 - self.ngrams) * logp
        return torch.where(ngram_p.any(1, keepdim=True), own_gain + self.ngrams * ngram_p.log(), own_gain - UNKNOWN)
