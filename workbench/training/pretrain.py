"""Training of the bundled target from scratch, with an early-exit loss.

In every step, the output of one early layer passes through the *shared* final norm and LM head, and is also trained to
predict the next token (as in LayerSkip, arXiv:2404.16710), so that the first layers can draft for the whole model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from workbench.kernels.disk_cache import code_folder
from workbench.models.chat_markers import ASSISTANT, END, USER
from workbench.training.loop import Report, RunOptions, RunResult
from workbench.training.models import (
    EARLY_EXIT_LAYERS,
    build_model,
    half_precision,
    save_model,
    target_config,
)
from workbench.training.repeats import repeat_windows
from workbench.training.tokenizer import load_tokenizer, token_id
from workbench.training.trainer import Step, StepLoss, Trainer, step_generator
from workbench.training.windows import Windows, held_windows, user_positions


@dataclass
class PretrainOptions(RunOptions):
    """Options of the `target` recipe, besides those of `RunOptions`.

    Attributes:
        corpus: Folder written by the `corpus` recipe.
        tokenizer: Folder written by the `tokenizer` recipe.
        out: Folder of the finished model; also written at every checkpoint.
        hidden: Hidden size.
        layers: Number of decoder layers.
        window: Window length, in tokens.
        rows: Batch size: windows per forward pass.
        exact_rows: Number of windows per forward pass that come from `exact.bin`, with more of the tasks that need
            exact answers.
        repeat_rows: Number of windows that are replaced by repeated random spans (see `repeats`) in the first
            `repeat_steps` steps.
        repeat_steps: Number of first steps with repeated random spans.
        parts: Forward passes per optimizer step (gradient accumulation).
        user_share: Share of the tokens in user turns that have a loss.
        exit_weight: Weight of the early-exit loss.
        exit_layers: Layers trained for early exit, one per step in turn.
        compile: Compile the layers with torch.compile.
        decay: Share of the run, at its end, in which the learning rate decreases.
    """

    corpus: Path = Path(".cache/train/corpus")
    tokenizer: Path = Path(".cache/train/tokenizer")
    out: Path = Path(".cache/models/text-target")
    checkpoint: Path | None = Path(".cache/train/target.pt")
    minutes: float | None = 85.0
    hidden: int = 288
    layers: int = 12
    window: int = 512
    rows: int = 8
    exact_rows: int = 2
    repeat_rows: int = 3
    repeat_steps: int = 400
    parts: int = 1
    user_share: float = 0.25
    exit_weight: float = 0.3
    exit_layers: tuple[int, ...] = field(default=EARLY_EXIT_LAYERS)
    other_rate: float = 0.003
    threads: int = 2
    compile: bool = False
    checkpoint_seconds: float = 300.0
    decay: float = 0.3


class TargetObjective:
    """Training objective of the target: the next-token loss of the whole model, and of one early layer per step."""

    def __init__(self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, options: PretrainOptions) -> None:
        self.model, self.options = model, options
        self.user, answer, end = (token_id(tokenizer, token) for token in (USER, ASSISTANT, END))
        self.user_end_ids = (answer, end)
        if options.compile:  # Inductor's default is a predictable, shared path in /tmp
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(code_folder("inductor")))
        self.trunk = torch.compile(model.model, dynamic=False) if options.compile else model.model

    def losses(self, ids: Tensor, step: int, predictable: Tensor | None = None) -> tuple[Tensor, Tensor, float]:
        """Return the losses of the last layer, of this step's early layer, and of the last layer on repeated spans.

        Three of four steps process every window as two halves, because attention over short windows is cheaper. Only a
        share of the tokens inside user turns is predicted, since user messages are mostly unpredictable.

        Args:
            ids: Windows, int64 [B, T].
            step: Step number; selects the early layer and the user tokens.
            predictable: Predictable tokens of the last windows, bool [b, T]; in the other windows all tokens count.
        """
        options = self.options
        generator = step_generator(options.seed, step)
        inside = user_positions(ids, self.user, self.user_end_ids)
        loss_mask = ~inside | (torch.rand(ids.shape, generator=generator) < options.user_share)
        if predictable is not None:
            loss_mask[-len(predictable) :] = predictable
        if step % 4:
            ids, loss_mask = ids.reshape(-1, ids.shape[1] // 2), loss_mask.reshape(-1, ids.shape[1] // 2)
        # Windows keep their length, a multiple of 32, because odd lengths are slower; the last token predicts nothing.
        labels, loss_mask = ids.roll(-1, dims=1), loss_mask.roll(-1, dims=1)
        loss_mask[:, -1] = False
        layer = options.exit_layers[step % len(options.exit_layers)]
        n_early = max(1, ids.shape[0] // 4)  # a quarter of the windows is enough for the early layer
        with half_precision():
            states = self.trunk(ids, output_hidden_states=True, use_cache=False).hidden_states
            last_losses = self._losses(states[-1], labels, loss_mask)
            early = self._losses(
                self.model.model.norm(states[layer][:n_early]), labels[:n_early], loss_mask[:n_early]
            ).mean()
        spans = 0 if predictable is None else int(loss_mask.reshape(-1)[-predictable.numel() :].sum())
        return last_losses.mean(), early, float(last_losses.detach()[-spans:].mean()) if spans else 0.0

    def _losses(self, states: Tensor, labels: Tensor, keep: Tensor) -> Tensor:
        logits = self.model.lm_head(states[keep])
        return F.cross_entropy(logits.float(), labels[keep], reduction="none")


def held_losses(model: LlamaForCausalLM, corpus: Path, window: int, count: int = 2) -> dict[str, float]:
    """Return the mean held-out loss for every group of the corpus, in nats per token, user turns included."""
    result: dict[str, float] = {}
    with torch.inference_mode(), half_precision():
        for path in sorted(corpus.glob("held-*.bin")):
            ids = held_windows(path, window, count)
            if len(ids) == 0:
                continue
            logits = model(ids[:, :-1]).logits.float()
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].reshape(-1))
            result[path.stem.removeprefix("held-")] = float(loss)
    return result


def pretrain(options: PretrainOptions, report: Report) -> RunResult:
    """Train the bundled target from scratch and write it to `options.out`."""
    torch.set_num_threads(options.threads)
    tokenizer = load_tokenizer(options.tokenizer)
    model = build_model(target_config(tokenizer, options.hidden, options.layers), options.seed)
    objective = TargetObjective(model, tokenizer, options)
    mixed = Windows(options.corpus / "train.bin", options.window, options.rows - options.exact_rows, options.seed)
    exact = Windows(options.corpus / "exact.bin", options.window, max(1, options.exact_rows), options.seed)

    def losses(step: Step) -> Iterator[StepLoss]:
        for part in range(options.parts):
            index = step.number * options.parts + part
            ids, predictable = mixed.batch(index), None
            extra = [exact.batch(index)] if options.exact_rows else []
            if options.repeat_rows and step.number < options.repeat_steps:
                spans, predictable = repeat_windows(
                    index, options.repeat_rows, options.window, ids.unique(), options.seed
                )
                ids, extra = ids[: -options.repeat_rows], [*extra, spans]
            ids = torch.cat([ids, *extra])
            top, early, spans_loss = objective.losses(ids, step.number, predictable)
            figures = {name: float(loss.detach()) / options.parts for name, loss in (("loss", top), ("exit", early))}
            if predictable is not None:
                figures["spans"] = spans_loss / options.parts
            loss = (top + options.exit_weight * early) / options.parts
            yield StepLoss(loss, options.rows * options.window, figures)

    return Trainer(
        "target",
        options,
        model,
        losses,
        report,
        evaluate=lambda: held_losses(model, options.corpus, options.window),
        save=lambda: save_model(model, tokenizer, options.out, {"early_exit_layers": list(options.exit_layers)}),
        decay=options.decay,
    ).run()
