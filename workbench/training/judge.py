"""Judge Decoding's linear judge: learns from answers that are right, and from the same with a mistake, which is which.

A target reads each answer behind its question. Its last hidden state behind each token of a right answer, the end
among them, is an example of a right token; of an answer with a mistake those of the mistake alone count, from the first
token that differs on: what stands before it is right and known, what follows is ignored. The target is frozen: states
are found once, and a logistic regression learns from them.

Source: Bachmann et al. 2025, Judge Decoding, arXiv:2501.19309, §4. There some 500 questions were answered right and
wrong by models and annotated by hand; here `mistakes` makes them wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from workbench.engine.fingerprint import WEIGHTS, fingerprint
from workbench.engine.models import load_models
from workbench.engine.placed import named
from workbench.methods.verifiers.judge import JudgeHead
from workbench.training.cards import Trained, table, told_runs, write_card
from workbench.training.corpus import DEFAULT_DATA
from workbench.training.generators import TASKS
from workbench.training.heads.artefact import save_net
from workbench.training.loop import Report, RunOptions, RunResult, run_loop
from workbench.training.marked import Tokens, read_answers
from workbench.training.mistakes import KINDS, graded

THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
"""δ in the card's table."""
CHOSEN = 0.5
"""δ of the figures on held-out answers; the verifier's default."""


@dataclass
class JudgeOptions(RunOptions):
    """Options of the `judge` recipe, beside those of every run.

    Attributes:
        target: Name or folder of the target.
        drafter: Draft model whose mistakes are learnt as well; "auto": the target's own, if any; empty: none.
        groups: Generators' tasks and groups of the public training text that answers come from; empty: all tasks.
        data: Folder with the public training text; not read where only tasks are asked for.
        out: Folder above that of the finished judge, which is named after the target.
        count: Answers of each group to learn from.
        held: Answers of each group to measure with, of problems kept out of training.
        mistakes: Wrong answers made of each right one, at most, and as many places where the draft model is wrong.
        wrong_weight: Weight of wrong tokens in the loss; right ones together have 1.
        rows: Right tokens per step, and wrong ones.
        dtype: Number format of the target.
    """

    target: str = "text-target"
    drafter: str = "auto"
    groups: tuple[str, ...] = ()
    data: Path = DEFAULT_DATA
    out: Path = Path(".cache/models")
    count: int = 60
    held: int = 20
    mistakes: int = 3
    wrong_weight: float = 2.0
    rows: int = 2048
    dtype: str = "float32"
    steps: int | None = 400
    other_rate: float = 0.01

    @property
    def folder(self) -> Path:
        """Where the finished judge is put."""
        return self.out / f"{named(self.target).removesuffix('-target')}-{JudgeHead.kind}"


def train_judge(options: JudgeOptions, report: Report) -> tuple[RunResult, dict[str, Any]]:
    """Train the judge and write it to `options.folder`; returns its figures, and what else its card says.

    Raises:
        ParameterError: there are no answers of a group.
    """
    torch.set_num_threads(options.threads)
    models = load_models(options.target, options.drafter, "cpu", options.dtype)
    groups = options.groups or tuple(TASKS)
    learnt, held = (
        read_answers(models, graded(groups, options.data, n, options.mistakes, options.seed, is_held), report)
        for n, is_held in ((options.count, False), (options.held, True))
    )
    every = torch.cat([learnt.right, learnt.wrong])
    mean, spread = every.mean(0), every.std(0).clamp_min(1e-6)
    net = JudgeHead(every.shape[1])
    report(f"judge: {len(learnt.right):,} right and {len(learnt.wrong):,} wrong tokens to learn from")

    def step_losses(step: int) -> tuple[int, dict[str, float]]:
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + step)
        some = [x[torch.randint(len(x), (options.rows,), generator=generator)] for x in (learnt.right, learnt.wrong)]
        right, wrong = (net((x - mean) / spread) for x in some)
        loss = balanced_loss(right, wrong, options.wrong_weight)
        loss.backward()
        return 2 * options.rows, {"loss": float(loss.detach())}

    def on_checkpoint(result: RunResult) -> str:
        finished = folded(net, mean, spread)
        result.held = measured(finished, held, options.wrong_weight)
        facts = {"hidden_size": models.target.hidden_size, WEIGHTS: fingerprint(models.target.model)}
        save_net(finished, options.folder, models.target_name, torch.float16, **facts)
        return f"judge: balanced accuracy {result.held['balanced accuracy']:.3f} on held-out answers"

    result = run_loop(options.loop("judge"), net, options.optimizers(net), step_losses, report, on_checkpoint)
    saved = folded(net, mean, spread)
    facts: dict[str, Any] = {"groups": list(groups), "wrong_weight": options.wrong_weight}
    facts |= {"thresholds": by_threshold(saved, held), "by_kind": by_kind(saved, held)}
    for name, tokens in (("learnt", learnt), ("held_out", held)):
        facts[name] = {"answers": tokens.answers, "mistakes": tokens.mistakes, "read": tokens.read}
        facts[name] |= {"right": len(tokens.right), "wrong": len(tokens.wrong)}
    return result, facts


def balanced_loss(right: Float[Tensor, " R"], wrong: Float[Tensor, " W"], weight: float) -> Float[Tensor, ""]:
    """Cross-entropy in which right tokens together count 1, wrong ones `weight`, however many there are of each.

    Example:
        >>> balanced_loss(torch.zeros(3), torch.zeros(1), 2.0)  # ln 2, whatever the weight
        tensor(0.6931)
    """
    return (F.softplus(-right).mean() + weight * F.softplus(wrong).mean()) / (1 + weight)


@torch.no_grad()
def folded(net: JudgeHead, mean: Float[Tensor, " D"], spread: Float[Tensor, " D"]) -> JudgeHead:
    """The judge of raw states whose net was trained on (state − mean) / spread, rounded as it is saved."""
    raw = JudgeHead(net.width)
    raw.weight.copy_((net.weight / spread).half().float())
    raw.bias.copy_((net.bias - (raw.weight * mean).sum()).half().float())
    return raw.settle()


@torch.no_grad()
def measured(net: JudgeHead, held: Tokens, weight: float) -> dict[str, float]:
    """Figures on held-out answers, at the threshold `CHOSEN`."""
    right, wrong = net(held.right), net(held.wrong)
    kept, refused = _share(right.sigmoid() > CHOSEN), _share(wrong.sigmoid() <= CHOSEN)
    order = torch.searchsorted(wrong.sort().values, right).double() / len(wrong)
    return {
        "loss": float(balanced_loss(right, wrong, weight)),
        "balanced accuracy": (kept + refused) / 2,
        "right kept": kept,
        "wrong refused": refused,
        "area under the curve": float(order.mean()),
    }


@torch.no_grad()
def by_threshold(net: JudgeHead, held: Tokens) -> list[list[float]]:
    """For each of `THRESHOLDS`: right tokens kept, those of them that the target would not write, wrong ones kept."""
    right, wrong, other = net(held.right).sigmoid(), net(held.wrong).sigmoid(), ~held.likeliest
    return [[t, _share(right > t), _share(right[other] > t), _share(wrong > t)] for t in THRESHOLDS]


@torch.no_grad()
def by_kind(net: JudgeHead, held: Tokens) -> dict[str, list[float]]:
    """For each kind of mistake: wrong tokens, and the share of them that is refused at `CHOSEN`."""
    refused = net(held.wrong).sigmoid() <= CHOSEN
    of = {kind: refused[held.kinds == i] for i, kind in enumerate(KINDS)}
    return {kind: [len(which), _share(which)] for kind, which in of.items() if len(which)}


def _share(which: Bool[Tensor, " n"]) -> float:
    return round(float(which.float().mean()), 4) if len(which) else 0.0


def card(model: Trained) -> str:
    """What the judge's card says below its title."""
    config, figures = model.config, model.figures
    held, learnt, out = figures["held"], figures["learnt"], figures["held_out"]
    thresholds = [tuple(f"{value:.2f}" for value in row) for row in figures["thresholds"]]
    kinds = [(kind, f"{n:,}", f"{share:.2f}") for kind, (n, share) in figures["by_kind"].items()]
    return f"""\
A linear judge for `verifier=judge` (Judge Decoding, Bachmann et al. 2025, arXiv 2501.19309) of drafts for
`{config["target"]}`: one unit of {config["hidden_size"]} weights on the target's last hidden state behind a draft.
What it keeps may be what the target would not write: output is approximate, sampled and greedy.

{told_runs(figures, "", " (right and wrong ones, each as often as it was drawn)").strip()}
- **Data**: {learnt["answers"]:,} right answers and {learnt["mistakes"]:,} mistakes in them, made by a program
  (`workbench train judge`) of {", ".join(figures["groups"])}.
  A mistake is another number, another word, an early end, or the draft model's token where the answer can have no
  other. There are {learnt["right"]:,} right tokens and {learnt["wrong"]:,} wrong ones; the target read
  {learnt["read"]:,}.
  Right tokens together weigh 1 in the loss, wrong ones {figures["wrong_weight"]:g}: what the judge says is the chance
  of a token if as many were right as wrong, lowered by that weight.

## Held out

{out["answers"]:,} right answers and {out["mistakes"]:,} mistakes, to problems kept out of training: {out["right"]:,}
right and {out["wrong"]:,} wrong tokens. At δ = {CHOSEN:g}: balanced accuracy {held["balanced accuracy"]:.1%}, recall
{held["right kept"]:.1%} of right tokens and {held["wrong refused"]:.1%} of wrong ones; area under the curve
{held["area under the curve"]:.3f}, loss {held["loss"]:.3f}.

{table(["δ", "right kept", "of them not the target's likeliest", "wrong kept"], thresholds, left=0)}

{table(["mistake", "wrong tokens", "refused"], kinds)}
"""


def finish_card(folder: Path) -> None:
    """Write the card of a judge whose training has ended."""
    write_card(folder, card)
