"""Judge Decoding's linear judge, trained on AutoJudge's labels: which token replacements change a final answer.

`swaps` finds tokens of the draft model that may replace a token in a target's answer, and tokens that may not. The
judge reads the last hidden states after such a token: one linear unit reads the states of both models, another unit
the target's states alone. Both models are frozen: their states are computed once, and each unit is a logistic
regression on the standardised states. The unit's bias is then set on other problems, so that at the threshold δ =
`DEFAULT_THRESHOLD` at most `MAX_WRONG_PASS_SHARE` of the wrong tokens pass.

Source: Bachmann et al. 2025, Judge Decoding, arXiv:2501.19309, §4 (a linear unit on the target's state); Garipov et al.
2025, AutoJudge, arXiv:2504.20039 (labels, both states, a threshold by recall of the important tokens).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from workbench.core.errors import ParameterError
from workbench.methods.verifiers.judge import JudgeHead
from workbench.models.fingerprint import WEIGHTS, fingerprint
from workbench.models.loading import Models, load_models
from workbench.models.local_models import short_name
from workbench.training.acceptance import compute_logits_and_states
from workbench.training.cards import TrainedModel, table, training_runs
from workbench.training.generators import TASKS
from workbench.training.heads.artefact import save_net
from workbench.training.loop import Report, RunOptions, RunResult
from workbench.training.swaps import Swap, find_swaps, problems
from workbench.training.trainer import Step, StepLoss, Trainer

THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Values of the judge's threshold δ in the table of its model card."""
DEFAULT_THRESHOLD = 0.5
"""Judge's threshold δ for the metrics on held-out answers: the default of the verifier."""
MAX_WRONG_PASS_SHARE = 0.01
"""Largest share of the calibration data's wrong tokens that may pass the judge at `DEFAULT_THRESHOLD`."""
CALIBRATE_EVERY = 3
"""One problem in `CALIBRATE_EVERY` is used to calibrate the judge's bias and not to train its weights."""


@dataclass
class JudgeOptions(RunOptions):
    """Options of the `judge` recipe, besides those of `RunOptions`.

    Attributes:
        target: Name or folder of the target.
        drafter: Draft model whose tokens replace those of the target's answers; "auto": the draft model that belongs to
            the target.
        groups: Tasks of the built-in generators to take problems from; empty: all.
        out: Parent folder of the finished judge's folder, which is named after the target.
        count: Number of problems per task, for training and for setting the bias.
        held: Number of held-out problems per task, for evaluation.
        tokens: Maximum length of an answer, in tokens.
        together: Batch size: answers generated at once.
        wrong_weight: Weight of wrong tokens in the loss; harmless tokens have a total weight of 1.
        penalty: Weight of the L2 penalty on the judge's weights, for standardised hidden states.
        rows: Batch size: harmless tokens per step, plus as many wrong tokens.
        dtype: Number format of the target.
    """

    target: str = "text-target"
    drafter: str = "auto"
    groups: tuple[str, ...] = ()
    out: Path = Path(".cache/models")
    count: int = 60
    held: int = 20
    tokens: int = 96
    together: int = 16
    wrong_weight: float = 2.0
    penalty: float = 0.01
    rows: int = 512
    dtype: str = "float32"
    steps: int | None = 400
    other_rate: float = 0.01

    @property
    def folder(self) -> Path:
        """Return the folder of the finished judge."""
        return self.out / f"{short_name(self.target).removesuffix('-target')}-{JudgeHead.kind}"


@dataclass(frozen=True)
class Tokens:
    """Replaced tokens (swaps) as training data of the judge.

    Attributes:
        states: last hidden states after each token, of the target and of the draft model, concatenated.
        is_wrong: whether the replacement changed the final answer, for each token.
        groups: name of the task from which each token comes.
        problems: number of problems from which the tokens come.
    """

    states: Float[Tensor, "N D"]
    is_wrong: Bool[Tensor, " N"]
    groups: tuple[str, ...]
    problems: int

    @property
    def right(self) -> Float[Tensor, "R D"]:
        """Return the hidden states after the harmless tokens of the judge's training data, float [R, D]."""
        return self.states[~self.is_wrong]

    @property
    def wrong(self) -> Float[Tensor, "W D"]:
        """Return the hidden states after the wrong tokens of the judge's training data, float [W, D]."""
        return self.states[self.is_wrong]


def train_judge(options: JudgeOptions, report: Report) -> tuple[RunResult, dict[str, Any]]:
    """Train the judge, write it to `options.folder`, and return its metrics and facts for the model card.

    Raises:
        ParameterError: a task does not exist, there is no draft model, or there are too few harmless or wrong swaps.
    """
    torch.set_num_threads(options.threads)
    models = load_models(options.target, options.drafter, "cpu", options.dtype)
    groups = options.groups or tuple(TASKS)
    swap_lists, held_out = (
        find_swaps(models, problems(groups, n, options.seed, is_held), options.tokens, options.together, report)
        for n, is_held in ((options.count, False), (options.held, True))
    )
    calibrating = swap_lists[::CALIBRATE_EVERY]
    learning = [swaps for i, swaps in enumerate(swap_lists) if i % CALIBRATE_EVERY]
    train_tokens, calibration, held_tokens = (read_swaps(models, swaps) for swaps in (learning, calibrating, held_out))
    return fit(models, train_tokens, calibration, held_tokens, options, report)


def read_swaps(models: Models, swap_lists: Sequence[Sequence[Swap]]) -> Tokens:
    """Compute the target's and the draft model's last hidden states after each replaced token (swap).

    Raises:
        ParameterError: all tokens are harmless, or all are wrong.
    """
    assert models.drafter is not None
    swaps = [swap for problem_swaps in swap_lists for swap in problem_swaps]
    is_wrong = torch.tensor([swap.is_wrong for swap in swaps], dtype=torch.bool)
    if not is_wrong.any() or is_wrong.all():
        raise ParameterError(
            f"{int(is_wrong.sum())} of {len(swaps)} token replacements make their answer wrong; training a "
            f"judge needs wrong and harmless replacements.",
            "Use more problems: increase the options `count` and `held`.",
        )
    states = [
        torch.cat(
            [
                compute_logits_and_states(runner, [*swap.prefix, swap.token])[1][-1]
                for runner in (models.target, models.drafter)
            ]
        )
        for swap in swaps
    ]
    return Tokens(torch.stack(states), is_wrong, tuple(swap.group for swap in swaps), len(swap_lists))


def fit(
    models: Models, train_tokens: Tokens, calibration: Tokens, held: Tokens, options: JudgeOptions, report: Report
) -> tuple[RunResult, dict[str, Any]]:
    """Train both linear units of the judge, set their biases, and save the judge."""
    assert models.drafter is not None
    width = models.target.hidden_size
    mean, spread = train_tokens.states.mean(0), train_tokens.states.std(0).clamp_min(1e-6)
    net = JudgeHead(width, train_tokens.states.shape[1] - width)
    report(f"judge: {len(train_tokens.right):,} harmless and {len(train_tokens.wrong):,} wrong training tokens")

    def loss(step: Step) -> StepLoss:
        samples = [
            x[torch.randint(len(x), (options.rows,), generator=step.generator)]
            for x in (train_tokens.right, train_tokens.wrong)
        ]
        harmless, wrong = ((x - mean) / spread for x in samples)
        losses = [
            balanced_loss(net(harmless[:, :width], a), net(wrong[:, :width], b), options.wrong_weight)
            for a, b in ((None, None), (harmless[:, width:], wrong[:, width:]))
        ]
        size = net.weight.square().sum() + net.both.square().sum()
        figures = {"loss": float(losses[1].detach())}
        return StepLoss(losses[0] + losses[1] + options.penalty * size, 2 * options.rows, figures)

    def finished() -> JudgeHead:
        return calibrate(fold_scaling(net, mean, spread), calibration)

    config = {"hidden_size": width, "draft_model": models.drafter_name, WEIGHTS: fingerprint(models.target.model)}
    result = Trainer(
        "judge",
        options,
        net,
        loss,
        report,
        evaluate=lambda: evaluate_judge(finished(), held, options.wrong_weight),
        save=lambda: save_net(finished(), options.folder, models.target_name, torch.float16, **config),
        weight_decay=0.0,
    ).run()
    judge = finished()
    facts: dict[str, Any] = {"groups": sorted(set(train_tokens.groups)), "wrong_weight": options.wrong_weight}
    facts |= {"penalty": options.penalty, "thresholds": by_threshold(judge, held), "by_group": by_group(judge, held)}
    facts["target_alone"] = evaluate_judge(judge, held, options.wrong_weight, target_only=True)
    for name, tokens in (("learnt", train_tokens), ("calibration", calibration), ("held_out", held)):
        facts[name] = {"problems": tokens.problems, "right": len(tokens.right), "wrong": len(tokens.wrong)}
    return result, facts


def balanced_loss(right: Float[Tensor, " R"], wrong: Float[Tensor, " W"], weight: float) -> Float[Tensor, ""]:
    """Return the weighted cross-entropy of the judge's log-odds, for harmless and for wrong tokens.

    Args:
        right: log-odds of the harmless tokens, which have a total weight of 1.
        wrong: log-odds of the wrong tokens.
        weight: total weight of the wrong tokens.

    Example:
        >>> balanced_loss(torch.zeros(3), torch.zeros(1), 2.0)  # ln 2, whatever the weight
        tensor(0.6931)
    """
    return (F.softplus(-right).mean() + weight * F.softplus(wrong).mean()) / (1 + weight)


@torch.no_grad()
def fold_scaling(net: JudgeHead, mean: Float[Tensor, " D"], spread: Float[Tensor, " D"]) -> JudgeHead:
    """Return a judge that reads unscaled states, from a judge that was trained on (state − mean) / spread.

    Both give the same log-odds, apart from the rounding of the weights to float16.
    """
    raw, width = JudgeHead(net.width, net.draft_width), net.width
    raw.weight.copy_((net.weight / spread[:width]).half().float())
    raw.bias.copy_((net.bias - (raw.weight * mean[:width]).sum()).half().float())
    if net.draft_width:
        raw.both.copy_((net.both / spread).half().float())
        raw.both_bias.copy_((net.both_bias - (raw.both * mean).sum()).half().float())
    return raw.prepare_for_drafting()


@torch.no_grad()
def calibrate(net: JudgeHead, tokens: Tokens, share: float = MAX_WRONG_PASS_SHARE) -> JudgeHead:
    """Return the judge with lower biases, so that at δ = `DEFAULT_THRESHOLD` at most `share` of the wrong tokens pass.

    If there are fewer than 1 / share wrong tokens, none of them passes. A judge that is already stricter is not
    changed.
    """
    judge = JudgeHead(net.width, net.draft_width)
    judge.load_state_dict(net.state_dict())
    for alone, bias in ((True, judge.bias), (False, judge.both_bias if net.draft_width else judge.bias)):
        odds = scores(judge, tokens.wrong, alone).sort(descending=True).values
        highest = float(odds[min(len(odds) - 1, int(share * len(odds)))])
        if highest > 0:
            below = torch.tensor(float(bias) - highest).half()  # it is saved in half precision: round down
            while float(below) > float(bias) - highest:
                below = torch.nextafter(below, torch.tensor(-math.inf).half())
            bias.copy_(below.float())
    return judge.prepare_for_drafting()


def scores(net: JudgeHead, states: Float[Tensor, "N D"], target_only: bool = False) -> Float[Tensor, " N"]:
    """Return the judge's log-odds that each token is harmless, from both models' states or the target's alone."""
    return net(states[:, : net.width], None if target_only else states[:, net.width :])


@torch.no_grad()
def evaluate_judge(net: JudgeHead, held: Tokens, weight: float, target_only: bool = False) -> dict[str, float]:
    """Return the judge's metrics on the tokens of held-out problems, at the threshold `DEFAULT_THRESHOLD`."""
    harmless, wrong = scores(net, held.right, target_only), scores(net, held.wrong, target_only)
    passed, refused = _share(harmless.sigmoid() > DEFAULT_THRESHOLD), _share(wrong.sigmoid() <= DEFAULT_THRESHOLD)
    order = torch.searchsorted(wrong.sort().values, harmless).double() / len(wrong)
    return {
        "loss": float(balanced_loss(harmless, wrong, weight)),
        "balanced accuracy": (passed + refused) / 2,
        "right kept": passed,
        "wrong refused": refused,
        "area under the curve": float(order.mean()),
    }


@torch.no_grad()
def by_threshold(net: JudgeHead, held: Tokens) -> list[list[float]]:
    """Return for each judge threshold the share of harmless tokens and the share of wrong tokens that pass."""
    harmless, wrong = scores(net, held.right).sigmoid(), scores(net, held.wrong).sigmoid()
    return [[t, _share(harmless > t), _share(wrong > t)] for t in THRESHOLDS]


@torch.no_grad()
def by_group(net: JudgeHead, held: Tokens) -> dict[str, list[float]]:
    """Return for each task the numbers of harmless and wrong tokens, and the shares that pass `DEFAULT_THRESHOLD`."""
    passes, figures = scores(net, held.states).sigmoid() > DEFAULT_THRESHOLD, dict[str, list[float]]()
    for group in dict.fromkeys(held.groups):
        in_group = torch.tensor([name == group for name in held.groups])
        harmless, wrong = in_group & ~held.is_wrong, in_group & held.is_wrong
        figures[group] = [int(harmless.sum()), _share(passes[harmless]), int(wrong.sum()), _share(passes[wrong])]
    return figures


def _share(which: Bool[Tensor, " n"]) -> float:
    return round(float(which.float().mean()), 4) if len(which) else 0.0


def card(model: TrainedModel) -> str:
    """Return the text of the judge's model card below the title, as Markdown."""
    config, figures = model.config, model.figures
    if "by_kind" in figures:
        return _card_with_generated_mistakes(model)
    held, alone, out = figures["held"], figures["target_alone"], figures["held_out"]
    learnt, calibration = figures["learnt"], figures["calibration"]
    most_wrong, wrong_pass = f"{MAX_WRONG_PASS_SHARE:.0%}", f"{1 - held['wrong refused']:.1%}"
    thresholds = [tuple(f"{value:.3f}" for value in row) for row in figures["thresholds"]]
    groups = [
        (group, f"{n_harmless:,}", f"{right_passed:.3f}", f"{n_wrong:,}", f"{wrong_passed:.3f}")
        for group, (n_harmless, right_passed, n_wrong, wrong_passed) in figures["by_group"].items()
    ]
    return f"""\
A linear judge for `verifier=judge` (Judge Decoding, Bachmann et al. 2025, arXiv 2501.19309) of drafts for
`{config["target"]}`: a unit on the last hidden states of the target and of its draft model `{config["draft_model"]}`
after a draft, and a unit on the target's alone ({config["hidden_size"]} weights) for other drafters.
Accepted tokens may differ from the target's: sampled and greedy output are approximate.

{training_runs(figures, "", " (harmless and wrong ones, each counted as often as it was sampled)").strip()}
- **Data**: labels as in AutoJudge (Garipov et al. 2025, arXiv 2504.20039). In the target's greedy answer one token is
  replaced by the draft model's, the target finishes the text, and the final answers are compared: see
  `workbench train judge`. Tasks: {", ".join(figures["groups"])}. {learnt["right"]:,} harmless and {learnt["wrong"]:,}
  wrong training tokens from {learnt["problems"]:,} problems; wrong ones have weight {figures["wrong_weight"]:g} in the
  loss, the squared norm of the judge's weights {figures["penalty"]:g}.
- **Bias**: at δ = {DEFAULT_THRESHOLD:g} at most {most_wrong} of the {calibration["wrong"]:,} wrong tokens of
  {calibration["problems"]:,} other problems pass.

## Held out

{out["problems"]:,} held-out problems: {out["right"]:,} harmless and {out["wrong"]:,} wrong tokens. At δ =
{DEFAULT_THRESHOLD:g}, {held["right kept"]:.1%} of the harmless and {wrong_pass} of the wrong tokens pass
(target's state alone: {alone["right kept"]:.1%} and {1 - alone["wrong refused"]:.1%}). Area under the curve
{held["area under the curve"]:.3f} (alone: {alone["area under the curve"]:.3f}).

{table(["δ", "harmless that pass", "wrong that pass"], thresholds, left=0)}

{table(["task", "harmless", "pass", "wrong", "pass"], groups)}
"""


def _card_with_generated_mistakes(model: TrainedModel) -> str:
    """Return the model card's text for judges of earlier versions.

    Such a judge has one linear unit, trained on mistakes that a program inserted.
    """
    config, figures = model.config, model.figures
    held, learnt, out = figures["held"], figures["learnt"], figures["held_out"]
    thresholds = [tuple(f"{value:.2f}" for value in row) for row in figures["thresholds"]]
    kinds = [(kind, f"{n:,}", f"{rejected:.2f}") for kind, (n, rejected) in figures["by_kind"].items()]
    return f"""\
A linear judge for `verifier=judge` (Judge Decoding, Bachmann et al. 2025, arXiv 2501.19309) of drafts for
`{config["target"]}`: one unit of {config["net"]["width"]} weights on the target's last hidden state after a draft.
Accepted tokens may differ from the target's: sampled and greedy output are approximate.

{training_runs(figures, "", " (right and wrong ones, each counted as often as it was sampled)").strip()}
- **Data**: {learnt["answers"]:,} right answers and {learnt["mistakes"]:,} mistakes in them, generated by a program. A
  mistake is another number, another word, an early end, or the draft model's token where the answer can have no other.
  Tasks: {", ".join(figures["groups"])}. {learnt["right"]:,} right and {learnt["wrong"]:,} wrong training tokens, of
  {learnt["read"]:,} that the target read. Right tokens together have weight 1 in the loss, wrong ones
  {figures["wrong_weight"]:g}.

## Held out

{out["answers"]:,} right answers and {out["mistakes"]:,} mistakes, to problems that were not used in training:
{out["right"]:,} right and {out["wrong"]:,} wrong tokens. At δ = {DEFAULT_THRESHOLD:g}, {held["right kept"]:.1%} of the
right tokens are accepted and {held["wrong refused"]:.1%} of the wrong ones rejected; balanced accuracy
{held["balanced accuracy"]:.1%}, area under the curve {held["area under the curve"]:.3f}, loss {held["loss"]:.3f}.

{table(["δ", "right accepted", "of them not the target's most probable", "wrong accepted"], thresholds, left=0)}

{table(["mistake", "wrong tokens", "rejected"], kinds)}
"""
