"""SpecDec++'s acceptance head, which predicts from a draft model's states whether the target accepts a drafted token.

At each position of an answer a token Y is sampled from the draft model's distribution q; its label is
min(1, p(Y) / q(Y)). The head reads the draft model's hidden state after Y, in a text in which most tokens of the answer
were replaced by such samples, as in a real draft. Both models are frozen: their states are computed once, and only the
head is trained on them.

Source: Huang et al. 2025, SpecDec++, arXiv:2405.19715, §3.2 and its code: 85 % of the tokens are replaced, labels are
soft, rejections have weight 6. In the paper, all answers are sampled from the target. Here each answer has its own
temperature, which both distributions use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from workbench.core.errors import ParameterError
from workbench.core.sampling import SamplingParams, to_probs
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.methods.policies.specdec_plus_plus import AcceptanceHead
from workbench.methods.tree_builders.chain import fit_vocabulary
from workbench.models.fingerprint import WEIGHTS, fingerprint
from workbench.models.loading import HeadInfo, Models, load_models
from workbench.models.local_models import short_name
from workbench.models.runner import Runner
from workbench.trace import metrics
from workbench.training.answers import ANSWERS, check_answers, encode_message, is_held_out, read_answers
from workbench.training.cards import TrainedModel, table, training_runs
from workbench.training.generators import TASKS
from workbench.training.heads.artefact import save_net
from workbench.training.loop import Report, RunOptions, RunResult
from workbench.training.text_forward import forward_text
from workbench.training.trainer import Losses, Step, StepLoss, Trainer, count_parameters, step_generator

REJECTION_WEIGHTS = (1.0, 3.0, 6.0)
"""Weights of rejected tokens in the loss; for the threshold sweep an acceptance head is trained with each."""
RISKS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
"""Thresholds h of the acceptance head's sweep: drafting stops when the draft's rejection probability exceeds h."""
DEPTHS = (1, 2, 3, 4, 6, 8)
"""Fixed draft lengths that are compared with the acceptance heads in the threshold sweep."""
BINS = 5
"""Number of bins of the acceptance head's reliability table."""
HELD_EVERY = 10
"""One prompt in `HELD_EVERY` is held out to evaluate the acceptance head, besides the prompts held out of all training.

With few answers, the prompts held out of all training are too few.
"""


@dataclass
class AcceptanceOptions(RunOptions):
    """Options of the `acceptance` recipe, besides those of `RunOptions`.

    Attributes:
        target: Name or folder of the target.
        drafter: Name or folder of the draft model; "auto": the draft model that belongs to the target.
        answers: Folder with the target's answers, written by the `answers` recipe.
        out: Parent folder of the finished head's folder, which is named after the target.
        tokens: Maximum number of answer tokens to train on.
        blocks: Number of residual blocks (D in the SpecDec++ paper).
        tied: Share the weights of all residual blocks, as in the code of SpecDec++.
        drawn: Share of an answer's tokens that are replaced by samples from the draft model.
        draws: Number of passes over each training answer, each with new samples from the draft model.
        rejection_weight: Weight of rejected tokens in the loss, relative to accepted ones.
        swept: Number of held-out problems for the threshold sweep; 0: no sweep.
        swept_tokens: Maximum length of a generation in the sweep, in tokens.
        rows: Batch size: draft tokens per step.
        dtype: Number format of the target.
    """

    target: str = "text-target"
    drafter: str = "auto"
    answers: Path = Path(".cache/train/answers")
    out: Path = Path(".cache/models")
    tokens: int = 100_000
    blocks: int = 3
    tied: bool = False
    drawn: float = 0.85
    draws: int = 3
    rejection_weight: float = 6.0
    swept: int = 24
    swept_tokens: int = 48
    rows: int = 512
    dtype: str = "float32"
    steps: int | None = 400
    matrix_rate: float = 0.004
    other_rate: float = 0.001

    @property
    def folder(self) -> Path:
        """Return the folder of the finished acceptance head."""
        return self.out / f"{short_name(self.target).removesuffix('-target')}-{AcceptanceHead.kind}"


@dataclass(frozen=True)
class Drafts:
    """Drafted tokens as training data of the acceptance head.

    Attributes:
        states: the draft model's last hidden state after each drafted token, float [N, D].
        accept_probs: probability that the target accepts each drafted token, min(1, p / q), float [N].
        answers: number of answers that contain these drafted tokens.
    """

    states: Float[Tensor, "N D"]
    accept_probs: Float[Tensor, " N"]
    answers: int


def train_acceptance(options: AcceptanceOptions, report: Report) -> tuple[RunResult, dict[str, Any]]:
    """Train the acceptance head and write it to its folder; return its metrics, and facts for the model card.

    Raises:
        ParameterError: there is no draft model, or there are too few answers.
    """
    torch.set_num_threads(options.threads)
    models = load_models(options.target, options.drafter, "cpu", options.dtype)
    if models.drafter is None:
        raise ParameterError(
            f"{options.target} has no draft model: {models.drafter_problem}", "Set the option drafter to a draft model."
        )
    train_drafts, held_drafts = (read_drafts(models, options, is_test, report) for is_test in (False, True))
    net = _new_head(train_drafts, options)
    report(
        f"acceptance: {len(train_drafts.accept_probs):,} training drafts, {len(held_drafts.accept_probs):,} held out"
    )
    w = options.rejection_weight
    config = {"hidden_size": models.target.hidden_size, "drafter": models.drafter_name}
    config |= {"parameters": count_parameters(net), WEIGHTS: fingerprint(models.target.model)}
    result = Trainer(
        "acceptance",
        options,
        net,
        _losses(net, train_drafts, w, options.rows),
        report,
        evaluate=lambda: evaluate_head(net, held_drafts, w),
        save=lambda: save_net(net, options.folder, models.target_name, torch.float16, **config, rejection_weight=w),
        weight_decay=0.0,
    ).run()
    facts: dict[str, Any] = {
        "drafts": len(train_drafts.accept_probs),
        "answers": train_drafts.answers,
        "held_drafts": len(held_drafts.accept_probs),
    }
    facts |= {"held_answers": held_drafts.answers, "reliability": reliability(net, held_drafts, w)}
    if options.swept:
        facts["swept"] = options.swept
        nets = {w: net}
        for other in REJECTION_WEIGHTS:
            if other not in nets:
                nets[other] = _new_head(train_drafts, options)
                losses = _losses(nets[other], train_drafts, other, options.rows)
                name = f"acceptance, weight {other:g}"
                Trainer(name, options, nets[other], losses, report, weight_decay=0.0).run()
        facts["sweep"] = sweep(
            models,
            nets,
            make_held_out_prompts(models, options.swept, options.seed),
            options.swept_tokens,
            config,
            report,
        )
    return result, facts


def _new_head(drafts: Drafts, options: AcceptanceOptions) -> AcceptanceHead:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        return AcceptanceHead(drafts.states.shape[1], options.blocks, options.tied)


def _losses(net: AcceptanceHead, drafts: Drafts, weight: float, rows: int) -> Losses:
    def loss(step: Step) -> StepLoss:
        sample = torch.randint(len(drafts.accept_probs), (rows,), generator=step.generator)
        return StepLoss(weighted_loss(net(drafts.states[sample]), drafts.accept_probs[sample], weight), rows)

    return loss


def sweep(
    models: Models,
    nets: Mapping[float, AcceptanceHead],
    prompts: Sequence[Sequence[int]],
    tokens: int,
    config: Mapping[str, Any],
    report: Report,
    risks: Sequence[float] = RISKS,
) -> list[dict[str, Any]]:
    """Generate texts at temperature 1 with every acceptance head at every threshold, and with fixed draft lengths.

    Args:
        models: target and draft model.
        nets: heads by the weight of a rejection in their training loss.
        prompts: token ids of each prompt.
        tokens: length limit of a generation.
        config: configuration of the heads.
        report: function that receives progress lines.
        risks: thresholds; drafting stops when the probability of a rejection in the draft exceeds the threshold.

    Returns:
        For each setting its `weight` and `risk`, or its `depth`; `discarded` drafts and target `passes`, both per
        generated token; `front`: whether the setting is on the Pareto front.
    """
    method, results = registry.get("draft-model"), list[dict[str, Any]]()
    sampling = SamplingParams(temperature=1.0)

    def measure(own: Models, setting: dict[str, Any], params: dict[str, Any]) -> None:
        engine = Engine(own, record=False)
        requests = [
            Request(list(ids), method.with_params(**params), sampling, tokens, seed) for seed, ids in enumerate(prompts)
        ]
        rounds = [r for trace in engine.generate_all(requests) for r in trace.rounds]
        n = metrics.count_emitted(rounds)
        discarded = sum(len(r.nodes) for r in rounds) - metrics.count_accepted(rounds)
        results.append(setting | {"discarded": discarded / n, "passes": len(rounds) / n})
        report(f"acceptance: {results[-1]}")

    for depth in DEPTHS:
        measure(models, {"depth": depth}, {"policy": "fixed", "depth": depth})
    for weight, net in nets.items():
        with TemporaryDirectory() as folder:
            saved = save_net(net, Path(folder), models.target_name, torch.float16, **config, rejection_weight=weight)
            swept_models = replace(
                models, heads={AcceptanceHead.kind: HeadInfo("swept", Path(folder), saved)}, shared={}
            )
            for risk in risks:
                measure(swept_models, {"weight": weight, "risk": risk}, {"policy": "specdec++", "risk": risk})
    return [row | {"front": _is_on_front(row, results)} for row in results]


def _is_on_front(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a setting is on the Pareto front: no other one is as good in both metrics and better in one.

    Args:
        row: numbers of `discarded` drafts and target `passes` of the setting, both better if smaller.
        rows: these metrics of all settings.
    """
    figures = row["discarded"], row["passes"]
    all_figures = [(r["discarded"], r["passes"]) for r in rows]
    return not any(a <= figures[0] and b <= figures[1] and (a, b) != figures for a, b in all_figures)


def make_held_out_prompts(models: Models, n: int, seed: int) -> list[list[int]]:
    """Return the token ids of `n` prompts: held-out problems of the text generators, each task in turn."""
    streams = [task.stream(seed, held_out=True) for task in TASKS.values()]
    return [encode_message(models.tokenizer, next(streams[i % len(streams)]).prompt) for i in range(n)]


def _is_held_out(n: int) -> bool:
    return is_held_out(n) or n % HELD_EVERY == 0


def weighted_loss(logits: Float[Tensor, " N"], accept_probs: Float[Tensor, " N"], weight: float) -> Float[Tensor, ""]:
    """Return the weighted mean cross-entropy of predicted acceptance (logits) and soft labels (`accept_probs`).

    In each token's loss, the rejection share 1 − label has weight `weight`; the acceptance share has weight 1.

    Example:
        >>> weighted_loss(torch.zeros(1), torch.tensor([0.5]), 6.0)  # ln 2, whatever the weights
        tensor(0.6931)
    """
    lost = -(accept_probs * F.logsigmoid(logits) + weight * (1 - accept_probs) * F.logsigmoid(-logits))
    return lost.sum() / (accept_probs + weight * (1 - accept_probs)).sum()


def calibrated_probs(logits: Float[Tensor, " N"], weight: float) -> Float[Tensor, " N"]:
    """Return calibrated acceptance probabilities: training with rejection weight w lowered the logits by log w."""
    return (logits + torch.tensor(weight).log()).sigmoid()


@torch.no_grad()
def evaluate_head(net: AcceptanceHead, held: Drafts, weight: float) -> dict[str, float]:
    """Return the metrics of an acceptance head on held-out drafts.

    Returns:
        The weighted loss; "accuracy", the expected share of drafts for which "acceptance probability above ½" predicts
        the outcome; this share for a constant prediction; the mean divergence from the true probability, in nats; the
        mean predicted probability; and the mean true probability.
    """
    odds, accept_probs = net(held.states), held.accept_probs
    probs = calibrated_probs(odds, weight)
    accuracy = torch.where(probs > 0.5, accept_probs, 1 - accept_probs).mean()
    divergence = F.kl_div(
        torch.stack([probs, 1 - probs]).clamp_min(1e-9).log(),
        torch.stack([accept_probs, 1 - accept_probs]),
        reduction="sum",
    )
    return {
        "loss": float(weighted_loss(odds, accept_probs, weight)),
        "accuracy": float(accuracy),
        "accuracy of a constant": max(float(accept_probs.mean()), 1 - float(accept_probs.mean())),
        "divergence": float(divergence) / len(accept_probs),
        "kept, foretold": float(probs.mean()),
        "kept": float(accept_probs.mean()),
    }


@torch.no_grad()
def reliability(net: AcceptanceHead, held: Drafts, weight: float) -> list[list[float]]:
    """Return a reliability table of acceptance probabilities, with a row for each fifth of the range from 0 to 1.

    A row is [number of drafts, mean predicted probability, mean true probability].
    """
    probs = calibrated_probs(net(held.states), weight)
    bin_index = (probs * BINS).long().clamp_max(BINS - 1)
    bins = [bin_index == i for i in range(BINS) if (bin_index == i).any()]
    return [
        [int(b.sum()), round(float(probs[b].mean()), 4), round(float(held.accept_probs[b].mean()), 4)] for b in bins
    ]


def read_drafts(models: Models, options: AcceptanceOptions, held: bool, report: Report) -> Drafts:
    """Sample drafts over the training answers or the held-out answers, and compute their acceptance probabilities.

    Raises:
        ParameterError: there are no answers, or another target generated them.
    """
    states, accept_probs, n, n_tokens = [], [], 0, 0
    check_answers(options.answers, options.target)
    path = options.answers / ANSWERS
    for line in read_answers(path):
        if _is_held_out(line["n"]) != held or not line["answer"] or n_tokens >= options.tokens:
            continue
        generator = step_generator(options.seed, line["n"])
        for _ in range(1 if held else options.draws):
            drafts = sample_drafts(
                models, line["prompt"], line["answer"], line["temperature"], options.drawn, generator
            )
            states.append(drafts.states)
            accept_probs.append(drafts.accept_probs)
        n, n_tokens = n + 1, n_tokens + len(line["answer"])
    if not states:
        raise ParameterError(
            f"{path} contains no {'held-out' if held else 'training'} answers.", "Generate more answers."
        )
    report(f"acceptance: {n:,} answers read")
    return Drafts(torch.cat(states), torch.cat(accept_probs), n)


def sample_drafts(
    models: Models,
    prompt: Sequence[int],
    answer: Sequence[int],
    temperature: float,
    replaced_share: float,
    generator: torch.Generator,
) -> Drafts:
    """Replace a share of an answer's tokens by samples from the draft model; return these samples as `Drafts`.

    Args:
        models: target and draft model.
        prompt: token ids of the prompt.
        answer: token ids of the answer.
        temperature: temperature of the answer; at 0 the draft is the draft model's most probable token.
        replaced_share: share of positions at which the text contains the draft model's token.
        generator: random generator of all samples.
    """
    assert models.drafter is not None
    begin, sampling = len(prompt), SamplingParams(temperature=temperature)
    draft_logits, target_logits = (
        compute_logits_and_states(runner, [*prompt, *answer])[0][begin - 1 : -1]
        for runner in (models.drafter, models.target)
    )
    draft_logits = fit_vocabulary(draft_logits, models.target.vocab_size)
    if temperature == 0:
        tokens = draft_logits.argmax(1)
        accept_probs = (tokens == target_logits.argmax(1)).float()
    else:
        q, p = to_probs(draft_logits, sampling), to_probs(target_logits, sampling)
        tokens = torch.multinomial(q, 1, generator=generator)[:, 0]
        accept_probs = (p.gather(1, tokens[:, None]) / q.gather(1, tokens[:, None])).clamp(max=1)[:, 0]
    is_replaced = torch.rand(len(tokens), generator=generator) < replaced_share
    text = torch.where(is_replaced, tokens, torch.tensor(list(answer)))
    states = compute_logits_and_states(models.drafter, [*prompt, *text.tolist()])[1][begin:]
    return Drafts(states[is_replaced], accept_probs[is_replaced], 1)


def compute_logits_and_states(runner: Runner, ids: Sequence[int]) -> tuple[Float[Tensor, "n V"], Float[Tensor, "n D"]]:
    """Return a model's logits and last hidden states at each token of a text, in float32."""
    logits, hidden = [], []
    for output in forward_text(runner, ids):
        logits.append(output.logits[0].float())
        hidden.append(output.hidden[0].float())
    return torch.cat(logits).clone(), torch.cat(hidden).clone()


def card(model: TrainedModel) -> str:
    """Return the text of the acceptance head's model card below the title, as Markdown."""
    config, figures, held_figures = model.config, model.figures, model.figures["held"]
    net = config["net"]
    rows = [(f"{n:,}", f"{predicted:.2f}", f"{true:.2f}") for n, predicted, true in figures["reliability"]]
    weight = config["rejection_weight"]
    tied = (
        "one block that is applied repeatedly, as in the paper's code"
        if net["tied"]
        else ("each block with its own weights")
    )
    return f"""\
SpecDec++'s acceptance head (Huang et al. 2025, arXiv 2405.19715) for the draft model `{config["drafter"]}` of
`{config["target"]}`, for `policy=specdec++`: {net["blocks"]} residual blocks of width {net["width"]} on the draft
model's last hidden state after a draft, {tied}, {config["parameters"]:,} parameters. The paper's code applies one block
repeatedly, so its blocks share their weights. The output follows the target's distribution with or without the head,
which only decides the draft length.

{training_runs(figures, "", " (drafts, each counted as often as it was sampled)").strip()}
- **Data**: {figures["drafts"]:,} drafts in {figures["answers"]:,} answers of `{config["target"]}` to training prompts,
  half of them greedy (`workbench train answers`, then `workbench train acceptance`). The label is min(1, p / q); a
  rejection has weight {weight:g}.

## Held out

{figures["held_drafts"]:,} drafts in {figures["held_answers"]:,} answers to prompts that were not used in training: loss
{held_figures["loss"]:.3f}. "Accepted with probability above ½" predicts {held_figures["accuracy"]:.1%} of them
correctly ({held_figures["accuracy of a constant"]:.1%} for a constant prediction); divergence from the true acceptance
probability {held_figures["divergence"]:.3f} nats. Calibration, without the weight of a rejection in the head's odds:

{table(["drafts", "predicted probability", "true probability"], rows, left=0)}

With that weight, as the policy uses them, the odds of acceptance are {weight:g} times lower.
{_sweep_text(figures.get("sweep", []), figures.get("swept", 0))}"""


def _sweep_text(rows: Sequence[Mapping[str, Any]], problems: int) -> str:
    """Return the acceptance head's model card section on the threshold sweep; empty if there was no sweep."""
    if not rows:
        return ""
    cells = [
        (
            f"fixed draft length of {row['depth']} tokens"
            if "depth" in row
            else f"weight {row['weight']:g}, h = {row['risk']:g}",
            f"{row['discarded']:.3f}",
            f"{row['passes']:.3f}",
            "yes" if row["front"] else "",
        )
        for row in sorted(rows, key=lambda row: row["discarded"])
    ]
    return f"""
## Discarded drafts and target passes

Per generated token, at temperature 1, on {problems} held-out problems, for heads trained with several weights of a
rejection; no intervals. A setting is on the Pareto front if no other discards as few drafts in as few target passes
and is better in one of them.

{table(["setting", "discarded drafts", "target passes", "on the front"], cells)}
"""
