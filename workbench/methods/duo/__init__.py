"""Duo-LLM: draft with the target's layers, but with small MLPs in place of its big ones."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import layer_skipping
from workbench.methods.duo.drafter import Duo
from workbench.methods.verifiers.as_drafted import STILL_READ, AsDrafted

METHOD = Method(
    "duo",
    title="Duo-LLM (small MLPs)",
    promise=Promise.EXACT,
    source=Source(
        "Duo-LLM: a framework for studying adaptive computation in large language models",
        "Alizadeh et al.",
        2024,
        "https://arxiv.org/abs/2410.10846",
        "§3",
    ),
    summary=(
        "Most MLP units are inactive for most tokens, so the units that the prompt activates can draft the rest of "
        "the text."
    ),
    idea=(
        "Every layer has a small MLP beside its big one; both share one attention block. The path through all small "
        "MLPs drafts over the target's own KV cache; the path through all big MLPs, which is the target, verifies."
    ),
    formula=(
        "small MLP = the k columns j of the big MLP with the largest mean |a(j)| · ‖w(j)‖ over the end of the prompt "
        "(a: activations, w: down projection)"
    ),
    differences=(
        "The paper trains both MLPs together, with random routes (small, big or no MLP in each layer), so that any "
        "route works. No such target is bundled: the small MLP is a subset of the big one's columns, chosen by their "
        "activations over the prompt, and was never trained to work alone.",
        "Two kinds of route are implemented: all MLPs are small, or, with big=n, the n layers that would lose most "
        "keep their big MLP. Trained routers are not built, nor is the oracle that searches for the best route of "
        "each token.",
        STILL_READ,
        "Draft passes are not compiled in int8 or with big > 0, so drafting takes longer.",
    ),
    order=75,
    testing=Testing(short={"depth": 2, "share": 0.05}, perfect={"share": 1.0}),
    drafter=Duo(),
    **layer_skipping(AsDrafted(), depth=3),
    claims=(
        Claim(
            "loss of each token on its best route with one big MLP, relative to the loss with all MLPs big",
            "models trained with random routes: one big MLP in the right layer is better than big MLPs in all layers",
            None, None,
            "Alizadeh et al. 2024, arXiv:2410.10846, abstract (only the direction is compared)", None,
            lacks=(
                "a target whose small and big MLPs were trained together, and the search for the best route of each "
                "token"
            ),
        ),
    ),
)  # fmt: skip
