"""Distillation of the bundled drafter from the bundled target.

The drafter is trained on the target's whole distribution (KL divergence) and on the text itself (cross-entropy), on
windows of the corpus and on the target's own greedy continuations: speculative decoding needs a drafter that predicts
the *target's* tokens, on text that the target writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from workbench.core.errors import ParameterError
from workbench.models.chat_markers import ASSISTANT, USER
from workbench.training.clock import RunClock
from workbench.training.generators import TASKS
from workbench.training.heads.losses import LOSSES, OF_FEATURES, Places, Weighted
from workbench.training.loop import Report, RunOptions, RunResult, run_loop
from workbench.training.models import build_model, drafter_config, half_precision, save_model
from workbench.training.tokenizer import load_tokenizer
from workbench.training.windows import Windows

FORWARD = Weighted.parse("forward_kl:1")
"""Default loss: the forward KL divergence from the target's distribution to the drafter's."""


@dataclass
class DistillOptions(RunOptions):
    """Options of the `drafter` recipe, beside those of every run.

    Attributes:
        target: Folder of the target.
        corpus: Folder written by the `corpus` recipe.
        out: Folder of the finished drafter.
        own_text: Token file of text written by the target, made by `write_own_text`; used if it exists.
        own_share: Share of the windows taken from `own_text`.
        hidden: Hidden size.
        layers: Number of layers.
        window: Tokens per window.
        rows: Windows per step.
        positions: Positions per step at which the distributions are compared.
        text_weight: Weight of the cross-entropy on the text itself, next to the divergence from the target.
        loss: Divergences from the target and their weights, for example "total_variation:1" (see DistillSpec).
    """

    target: Path = Path(".cache/models/text-target")
    corpus: Path = Path(".cache/train/corpus")
    out: Path = Path(".cache/models/text-drafter")
    checkpoint: Path | None = Path(".cache/train/drafter.pt")
    own_text: Path = Path(".cache/train/own-text.bin")
    own_share: float = 0.5
    minutes: float | None = 13.0
    hidden: int = 128
    layers: int = 1
    window: int = 256
    rows: int = 16
    positions: int = 3072
    text_weight: float = 0.1
    loss: str = "forward_kl:1"
    other_rate: float = 0.006
    seed: int = 1
    threads: int = 2


def load_target(folder: Path, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """Load a target for inference, its weights frozen."""
    return LlamaForCausalLM.from_pretrained(str(folder), dtype=dtype).eval().requires_grad_(False)


def greedy_batch(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[str], max_new_tokens: int
) -> list[list[int]]:
    """Return the model's greedy answers to prompts in the chat format, as token ids without padding.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        prompts: User messages.
        max_new_tokens: Longest answer.
    """
    texts = [f"{USER}{prompt}{ASSISTANT}" for prompt in prompts]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    with torch.inference_mode():
        output = model.generate(  # pyright: ignore[reportAttributeAccessIssue]  # from a mixin
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=max_new_tokens,
            do_sample=False,
        )
    answers = output[:, batch["input_ids"].shape[1] :].tolist()
    end = tokenizer.eos_token_id
    return [answer[: answer.index(end) + 1] if end in answer else answer for answer in answers]


def write_own_text(options: DistillOptions, minutes: float, report: Report, rows: int = 48) -> int:
    """Write greedy answers of the target to training prompts into `options.own_text`.

    Half of the prompts ask for stories, the rest come from the other tasks.

    Returns:
        The number of tokens written.
    """
    torch.set_num_threads(options.threads)
    tokenizer = load_tokenizer(options.target)
    target = load_target(options.target, torch.bfloat16)
    clock = RunClock(minutes=minutes)
    streams = {name: task.stream(options.seed + 77, held_out=False) for name, task in TASKS.items()}
    names = sorted(TASKS)
    ids: list[int] = []
    turn = 0
    while clock.progress(0) < 1.0:
        name = "story" if turn % 2 == 0 else names[turn // 2 % len(names)]
        prompts = [instance.prompt for instance in islice(streams[name], rows)]
        answers = greedy_batch(target, tokenizer, prompts, 200 if name in {"story", "summary"} else 80)
        for prompt, answer in zip(prompts, answers, strict=True):
            ids += tokenizer(f"{USER}{prompt}{ASSISTANT}", add_special_tokens=False)["input_ids"] + answer
        turn += 1
    np.asarray(ids, dtype=np.uint16).tofile(options.own_text)
    report(f"drafter: {len(ids):,} tokens written by the target in {clock.seconds / 60:.1f} min")
    return len(ids)


def greedy_acceptance(
    target: LlamaForCausalLM, drafter: LlamaForCausalLM, rows: list[list[int]], start: list[int]
) -> float:
    """Return the share of tokens at which drafter and target choose the same next token.

    Args:
        target: The target.
        drafter: The drafter.
        rows: Prompt and greedy continuation, one list of ids per sequence.
        start: Prompt length of each sequence; only the continuation counts.
    """
    agreed = total = 0
    with torch.inference_mode():
        for row, first in zip(rows, start, strict=True):
            ids = torch.tensor([row[:-1]])
            drafted = drafter(ids).logits[0, first - 1 :].argmax(-1)
            written = torch.tensor(row[first:])
            agreed += int((drafted == written).sum())
            total += len(written)
    return agreed / max(total, 1)


def held_continuations(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, task: str, count: int, max_new_tokens: int = 200
) -> tuple[list[list[int]], list[int]]:
    """Return greedy continuations of held-out prompts: token ids with the prompt, and prompt lengths."""
    prompts = [instance.prompt for instance in islice(TASKS[task].stream(5, held_out=True), count)]
    heads = [tokenizer(f"{USER}{p}{ASSISTANT}", add_special_tokens=False)["input_ids"] for p in prompts]
    answers = greedy_batch(target, tokenizer, prompts, max_new_tokens)
    return [head + answer for head, answer in zip(heads, answers, strict=True)], [len(head) for head in heads]


def distillation_loss(
    student: Tensor, teacher: Tensor, labels: Tensor, text_weight: float, losses: Weighted = FORWARD
) -> Tensor:
    """Return the divergence between drafter's and teacher's distributions, plus weighted cross-entropy with the text.

    Source: Zhou et al. 2024, DistillSpec, arXiv:2310.08461, §3: any divergence of the two may be minimised.

    Args:
        student: Drafter logits, [N, V].
        teacher: Target logits, [N, V].
        labels: The text, int64 [N]; negative where there is no label.
        text_weight: Weight of the text.
        losses: Divergences of the distributions.
    """
    said = student.float()
    nothing = said.new_empty(len(said), 0)
    divergence, _ = losses(Places(nothing, nothing, said, teacher.float()))
    text = F.cross_entropy(said, labels, reduction="sum") / (labels >= 0).sum().clamp_min(1)
    return divergence + text_weight * text


def law_losses(text: str) -> Weighted:
    """Return the losses that a draft model can be trained with, parsed by `Weighted.parse`.

    Raises:
        ParameterError: there is no loss of this name, or it compares features.
    """
    try:
        losses = Weighted.parse(text)
    except ValueError as error:
        raise ParameterError(f"loss={text}: {error}.") from None
    if wrong := [name for name, _ in losses.terms if name in OF_FEATURES]:
        raise ParameterError(
            f"loss={text}: {wrong[0]} compares features, and a draft model guesses none.",
            f"Take some of {', '.join(name for name in LOSSES if name not in OF_FEATURES)}.",
        )
    return losses


def distill(options: DistillOptions, report: Report) -> RunResult:
    """Train the drafter and write it to `options.out`."""
    torch.set_num_threads(options.threads)
    tokenizer = load_tokenizer(options.target)
    target, losses = load_target(options.target), law_losses(options.loss)
    drafter = build_model(drafter_config(tokenizer, options.hidden, options.layers), options.seed)
    report(f"drafter: {sum(p.numel() for p in drafter.parameters()):,} parameters")
    optimizers = options.optimizers(drafter)
    text = Windows(options.corpus / "train.bin", options.window, options.rows, options.seed)
    own = None
    if options.own_text.exists() and options.own_share > 0:
        own = Windows(options.own_text, options.window, options.rows, options.seed)
    held = held_continuations(target, tokenizer, "story", 16, min(200, 2 * options.window))

    def step_losses(step: int) -> tuple[int, dict[str, float]]:
        from_own = own is not None and int((step + 1) * options.own_share) > int(step * options.own_share)
        ids = (own if from_own and own else text).batch(step)
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + step)
        count = ids.shape[0] * (ids.shape[1] - 1)
        chosen = torch.randperm(count, generator=generator)[: options.positions]
        labels = ids[:, 1:].reshape(-1)[chosen]
        with half_precision():
            with torch.no_grad():
                teacher = target.lm_head(target.model(ids[:, :-1], use_cache=False)[0].flatten(0, 1)[chosen])
            student = drafter.lm_head(drafter.model(ids[:, :-1], use_cache=False)[0].flatten(0, 1)[chosen])
            loss = distillation_loss(student, teacher, labels, options.text_weight, losses)
        loss.backward()
        agreed = (student.argmax(-1) == teacher.argmax(-1)).float().mean()
        return ids.numel(), {"loss": float(loss.detach()), "agreement": float(agreed)}

    def on_checkpoint(result: RunResult) -> str:
        drafter.eval()
        result.held["acceptance"] = greedy_acceptance(target, drafter, *held)
        drafter.train()
        save_model(drafter, tokenizer, options.out, {"target": options.target.name})
        return f"drafter: greedy acceptance on held-out stories {result.held['acceptance']:.3f}"

    loop = options.loop("drafter")
    return run_loop(loop, drafter, optimizers, step_losses, report, on_checkpoint)
