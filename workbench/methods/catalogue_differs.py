"""What the methods do otherwise than their papers, or leave out: each sentence says what, why, and what it may change.

The methods' pages, `workbench methods NAME` and the board of methods show it, so that nobody takes a figure measured
here for one of the paper's method. Training of the bundled heads in minutes instead of days differs everywhere, and is
told on their cards.
"""

from __future__ import annotations

_LOSSES = (
    "The losses of features and of laws weigh 1 and 1 instead of 1 and 0.1 (workbench train vision-heads --set "
    "loss=smooth_l1:1+ce_soft:0.1 is the paper's), which suits some minutes of training; a longer one may be better "
    "off with the paper's."
)
_MEDUSA = (
    "All heads share the target's LM head behind a residual block of their own, where the paper gives each head an LM "
    "head of its own: four of them would be nearly half as large as the bundled target. Heads may be less accurate.",
    "The heads' losses are summed without the paper's weights 0.8ᵏ, as the released trainer does, so that later heads "
    "get more of the training.",
    "By default 12 nodes in 4 levels instead of about 60, because a small target pays more for each node; τ may be "
    "lower. Medusa-2, which trains the target along, is not built.",
)

DIFFERS: dict[str, tuple[str, ...]] = {
    "draft-model": (
        "With policy=confidence a draft stops by the drafter's law before a token is drawn from it, where Hugging "
        "Face's rule looks at the drawn token, because a stop that looks at the token would bias sampled text; "
        "unlikely tokens stay in the draft, and it may be shorter or longer than there.",
        "policy=planned counts with seconds measured on this machine instead of the paper's one ratio of costs, which "
        "lets the chosen length differ from the paper's formula.",
    ),
    "draft-tree": (
        "The tree grows from a separate draft model instead of an EAGLE head, so that it works with any pair of "
        "models; every level costs a whole pass of that model.",
        "By default 12 nodes, 3 children and 4 levels instead of the paper's 60, 10 and 6, because a small target "
        "pays more for each node than a large one; τ may be lower.",
    ),
    "draft-tree-sampled": (
        "At temperature 0 each law is taken as its likeliest token alone, so that the tree is a chain: greedy text is "
        "exact, and siblings, which could save a round, are not tried.",
        "Only RSD-S, the stochastic beam, is built; RSD-C, a tree of constant branching, is not, and the paper's "
        "comparison of the two cannot be repeated.",
    ),
    "prompt-lookup": (
        "By default the newest earlier occurrence is continued, where the original takes the first one "
        "(occurrence=first), because it usually continues better; drafts and τ differ.",
        "A continuation that ends with the text is proposed although it is shorter than K tokens, and drafts are not "
        "cut before the end of a text or a token that a processor forbids, as Hugging Face's are: the text is the "
        "same, and some places of a draft are wasted.",
    ),
    "token-recycling": (
        "The default tree has 16 nodes instead of the paper's 80, because a small target pays more for each node, and "
        "its shape is the best one under assumed chances of the ranks: with nodes=80 its six levels hold 8, 25, 27, "
        "13, 6 and 1 nodes, the paper's 8, 21, 25, 15, 8 and 3. τ may differ by a little at the same size.",
        "The table starts empty in every run, where the paper keeps it from one request to the next (warm=True does), "
        "because a seeded run would else depend on those before it; the first rounds accept less.",
        "A token without successors proposes nothing, where a table that starts with zeros proposes token 0 eight "
        "times: early trees are smaller and nothing is verified in vain.",
        "The released code decodes greedily; here sampling is exact, too, by the rule for chosen drafts.",
    ),
    "lookahead-trie": (
        "By default 16 nodes and branches of 8 tokens instead of 64 and 12, because a small target pays more for each "
        "node; τ may be lower where a text offers long copies.",
        "No share of the nodes is set aside for the prompt's or for the outputs' branches, no word is barred from "
        "beginning a match, and outputs have no bound of their own besides the whole trie's: the best-scored branches "
        "take all, and after a common word drafts may be poorer.",
        "The trie begins empty in every run, where the paper's serves all requests (warm=True does), because a seeded "
        "run would else depend on those before it; the gain over many requests shows only with it.",
    ),
    "early-exit": (
        "Verification runs the first E layers again instead of going on from the exit states that drafting left, "
        "which keeps one way to verify for all methods; a round costs up to E layers' time over the drafted tokens "
        "more than in the paper, and accepts the same tokens.",
        "The bundled target was trained with an early-exit loss, on one of its early layers in turn, and without the "
        "paper's layer dropout and curriculum, which may make early layers better drafters. Another target drafts as "
        "it is.",
    ),
    "medusa": _MEDUSA,
    "medusa-typical": _MEDUSA,
    "vlm-text-only": (
        "The drafter is one small model, trained on scenes' questions and answers and tuned on the target's own "
        "answers, where the paper compares three of 115 million parameters; its variant with a small image adapter is "
        "not built. τ says nothing about models of that size.",
    ),
    "vlm-draft": (
        "The tree of policy=dynamic-tree follows Spec-LLaVA, whose paper gives no thresholds: those here, a least "
        "path probability of 0.1 and at most 4 children, are ours, and its trees may be larger or smaller.",
        "The draft model is trained as MASSV's, projector first and then projector and language model on the target's "
        "own answers, but within minutes, and with a language model that is no member of a published family; the gain "
        "over a blind drafter may be another one.",
    ),
    "oracle": (
        "It is no method of the paper but a model of its assumption, that every draft is accepted with one "
        "probability: what it shows is the closed form, up to the probability of the target's least likely token.",
    ),
    "eagle-vlm": (
        "The feature and the embedding are each normed before they are fused, where the paper speaks of one norm on "
        "the drafter's input; the layer norms its input once more, and what leaves it goes through a norm that starts "
        "as the target's last, of which EAGLE has neither. It keeps a short training stable, and guesses may differ "
        "from the paper's by more than their training.",
        "By default 12 nodes, 3 children and 5 levels instead of the paper's 60, 10 and 7, because a small target "
        "pays more for each node; τ may be lower.",
        _LOSSES,
    ),
    "msd": (
        "The layer is EagleVLM's here, with its norms on embedding and feature, before the layer and behind it, of "
        "which EAGLE, on which MSD builds, has none, so that the drafters differ only in how a picture enters; how "
        "much MSD gains over EAGLE may differ.",
        "By default 12 nodes, 3 children and 5 levels instead of the paper's 63, 8 and 5, because a small target pays "
        "more for each node; τ may be lower.",
        _LOSSES,
        "The two stages of training, text alone and then more and more pictures, are the paper's, but in minutes "
        "instead of 40 epochs; the first stage may be too short to matter.",
    ),
    "specvlm": (
        "Of the paper's three ways to combine compressors only the gate that selects one is built: the weighted sum "
        "of experts and the multi-granular concatenation (pruned and pooled at 20×, convolved at 3×, two queries) are "
        "missing, because the gate is the paper's default; their trade-offs cannot be measured here.",
        "The gate's ratio is 4 for all operations, and the convolution merges 4, 16 or 64 patches by halving the "
        "sides, where the paper prunes and pools up to 20× and convolves at 3×: the pictures of the bundled target "
        "have 64 patches only.",
        "A price on what the gate keeps is part of training (0.02 of the share of patches), and some prompts draw the "
        "operation evenly; the paper has neither. Without them a gate trained for minutes settles on one operation.",
        "Pruned patches keep their positions, which the paper leaves open.",
        "By default 12 nodes, 3 children and 5 levels instead of the paper's 60, 10 and 7, because a small target "
        "pays more for each node; τ may be lower.",
        _LOSSES,
    ),
    "flash": (
        "One network answers for all offsets, an MLP of width 256 on the state whose output is added to it, where the "
        "paper's goes from D to 4·D and gives all k features anew: fewer weights, and k = 1 is exactly EAGLE; later "
        "offsets may be guessed worse.",
        "A block has k = 4 features and a picture becomes 8 vectors, where the paper has 5 and 64 of 576 patches: the "
        "pictures of the bundled target have 64 patches. Training draws how many of the queries are used, so that one "
        "drafter can be measured at every size; each size may be a little worse than a drafter of its own.",
        "The tree is chosen anew every round from the probabilities of the round, and a next block goes on behind the "
        "likeliest path; the paper has one static tree of 63 nodes. At the same size more may be accepted.",
        "The first future feature comes from the layer itself, normed as EagleVLM's here, and attention has as many "
        "key heads as query heads, where the paper groups four: the bundled target is too narrow to gain from groups.",
        _LOSSES,
    ),
}
"""By method; a method that is not here does what its paper says, up to the sizes among its parameters."""
