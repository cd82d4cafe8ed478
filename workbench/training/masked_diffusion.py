"""Training of the bundled masked-diffusion model: it fills masked positions of an answer, reading in both directions.

Source: Nie et al. 2025, LLaDA, arXiv:2502.09992, §2.3: the share of masked positions is drawn per text, the prompt is
never masked, and answers are padded with end-of-text tokens, which are learned too. The model starts from the first
layers of the bundled target, which can predict by themselves (early exits). Like that target, the model predicts the
token at position i + 1 from the state at position i (Ye et al. 2025, Dream 7B, arXiv:2508.15487, §3.1).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from workbench.models.bundle import DEFAULT_TARGET, DIFFUSION_TARGET, bundled
from workbench.models.chat_markers import ASSISTANT, END, USER
from workbench.models.masked_lm import MASK
from workbench.models.weight_files import count_weights
from workbench.training.cards import TrainedModel, table, training_runs
from workbench.training.generators import TASKS, Instance
from workbench.training.graded_answers import GradedAnswer, grade, is_right_for_task, share_right
from workbench.training.loop import Report, RunOptions, RunResult
from workbench.training.models import half_precision, save_model
from workbench.training.tokenizer import load_tokenizer, token_id
from workbench.training.trainer import Step, StepLoss, Trainer

LEAST_MASKED = 1e-3
"""Smallest probability that a position is masked (LLaDA's ε)."""


@dataclass
class MaskedDiffusionOptions(RunOptions):
    """Options of the `diffusion-target` recipe, besides those of `RunOptions`.

    Attributes:
        out: Folder of the finished model; also written at every checkpoint.
        layers: Number of layers; the model starts from as many first layers of the bundled target.
        tasks: Generator tasks on which the model is trained.
        longest: Maximum length of prompt and answer, in tokens; the length of a batch is at least half of it.
        rows: Windows per forward pass.
        held: Number of held-out problems per task that the model answers at each checkpoint.
    """

    out: Path = Path(".cache/models") / DIFFUSION_TARGET
    checkpoint: Path | None = Path(".cache/train/diffusion-target.pt")
    minutes: float | None = 20.0
    layers: int = 4
    tasks: tuple[str, ...] = ("json", "extract", "sort_words", "sort_numbers", "copy", "quote", "addition")
    longest: int = 112
    rows: int = 24
    held: int = 20
    other_rate: float = 0.003


class AnswerWindows:
    """Training windows, each a prompt with its answer, padded with end-of-text tokens to the length of their batch.

    Args:
        tokenizer: tokenizer of the model.
        options: options of the run.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, options: MaskedDiffusionOptions) -> None:
        self.tokenizer, self.options = tokenizer, options
        self.end = token_id(tokenizer, END)

    def batch(self, step: int) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
        """Return the token ids of a training step's windows, int64 [B, T], and the lengths of their prompts, [B]."""
        chooser = random.Random(f"diffusion/{self.options.seed}/{step}")
        length = chooser.randint(self.options.longest // 2, self.options.longest)
        rows, prompts = list[list[int]](), list[int]()
        while len(rows) < self.options.rows:
            prompt, answer = self.encode(TASKS[chooser.choice(self.options.tasks)].draw(chooser, held_out=False))
            if len(prompt) + len(answer) < length:
                rows.append([*prompt, *answer, *[self.end] * (length - len(prompt) - len(answer))])
                prompts.append(len(prompt))
        return torch.tensor(rows), torch.tensor(prompts)

    def encode(self, instance: Instance) -> tuple[list[int], list[int]]:
        """Return the token ids of a problem's prompt in the chat format, and of its answer."""
        prompt = self.tokenizer.encode(f"{USER}{instance.prompt}{ASSISTANT}", add_special_tokens=False)
        return prompt, self.tokenizer.encode(instance.answer, add_special_tokens=False)


def masked_loss(
    model: LlamaForCausalLM,
    ids: Int[Tensor, "B T"],
    prompts: Int[Tensor, " B"],
    mask_token: int,
    generator: torch.Generator,
) -> Float[Tensor, ""]:
    """Return LLaDA's loss: cross-entropy at masked positions, divided by the probability of being masked.

    Args:
        model: the masked-diffusion model.
        ids: token ids of prompts with answers, padded.
        prompts: length of each prompt, which is never masked.
        mask_token: id of the mask token.
        generator: random generator of the masks.

    Source: Nie et al. 2025, LLaDA, arXiv:2502.09992, equation 5 (the loss of an answer is divided by its length).
    """
    n_rows, length = ids.shape
    is_answer = torch.arange(length) >= prompts[:, None]
    share = LEAST_MASKED + (1 - LEAST_MASKED) * torch.rand(n_rows, 1, generator=generator)
    is_masked = (torch.rand(n_rows, length, generator=generator) < share) & is_answer
    both_directions = torch.zeros(1, 1, length, length)
    with half_precision():
        hidden = model.model(
            ids.masked_fill(is_masked, mask_token), attention_mask=both_directions, use_cache=False
        ).last_hidden_state
        logits = model.lm_head(hidden[:, :-1][is_masked[:, 1:]])  # the state before a position predicts its token
    losses = F.cross_entropy(logits.float(), ids[is_masked], reduction="none")
    weights = 1 / (share * is_answer.sum(1, keepdim=True))
    return (losses * weights.expand(n_rows, length)[is_masked]).sum() / n_rows


def train_masked_diffusion(options: MaskedDiffusionOptions, report: Report) -> tuple[RunResult, dict[str, Any]]:
    """Train the masked-diffusion model, write it to `options.out`, and return metrics and facts for its card."""
    torch.set_num_threads(options.threads)
    tokenizer = load_tokenizer(bundled()[DEFAULT_TARGET])
    mask_token = token_id(tokenizer, MASK)
    model = first_layers(options.layers)
    windows = AnswerWindows(tokenizer, options)
    extra: dict[str, object] = {"is_bidirectional": True, "mask_token_id": mask_token, "predicts_next": True}

    def loss(step: Step) -> StepLoss:
        ids, prompts = windows.batch(step.number)
        return StepLoss(masked_loss(model, ids, prompts, mask_token, step.generator), ids.numel())

    result = Trainer(
        "diffusion-target",
        options,
        model,
        loss,
        report,
        evaluate=lambda: {
            name: share_right(answer_problems(model, windows, name, options.held, mask_token)) for name in options.tasks
        },
        save=lambda: save_model(model, tokenizer, options.out, extra, is_int8=True),
    ).run()
    return result, {"problems": options.held, "parameters": count_in(options.out)}


def count_in(folder: Path) -> int:
    """Return the number of parameters in the weight files of the model in a folder."""
    return sum(count_weights(path) for path in folder.glob("*.safetensors"))


def first_layers(n: int) -> LlamaForCausalLM:
    """Return a float32 model of the bundled target's first `n` layers, with its norm and embeddings."""
    source = LlamaForCausalLM.from_pretrained(bundled()[DEFAULT_TARGET], dtype=torch.float32)
    config = LlamaConfig.from_dict(source.config.to_dict() | {"num_hidden_layers": n})
    model = LlamaForCausalLM(config)
    kept = {name: weight for name, weight in source.state_dict().items() if name in model.state_dict()}
    model.load_state_dict(kept)
    return model


@torch.inference_mode()
def answer_problems(
    model: LlamaForCausalLM, windows: AnswerWindows, task: str, n: int, mask_token: int
) -> list[GradedAnswer[Instance]]:
    """Return the masked-diffusion model's answers; each forward pass fills the most certain masked position."""
    stream = TASKS[task].stream(1, held_out=True)
    problems = [next(stream) for _ in range(n)]
    prompts = [windows.encode(problem)[0] for problem in problems]
    length = windows.options.longest
    ids = torch.tensor([[*prompt, *[mask_token] * (length - len(prompt))] for prompt in prompts])
    attention = torch.zeros(1, 1, length, length)
    while (masked := ids == mask_token).any():
        logits = model(ids, attention_mask=attention, use_cache=False).logits.roll(1, 1)
        logits[..., mask_token] = -torch.inf
        p, token = logits.softmax(-1).max(-1)
        at = p.masked_fill(~masked, -1).argmax(1, keepdim=True)
        ids.scatter_(1, at, torch.where(masked, token, ids).gather(1, at))
    answers: list[str] = []
    for prompt, row in zip(prompts, ids.tolist(), strict=True):
        answer = row[len(prompt) :]
        end = answer.index(windows.end) if windows.end in answer else len(answer)
        answers.append(str(windows.tokenizer.decode(answer[:end])))
    return grade(problems, answers, is_right_for_task)


_CARD = """\
A masked-diffusion language model for the method `llada`: {layers} layers × {hidden}, {parameters:,} parameters, the
tokenizer of `text-target`. It fills masked positions of an answer and reads in both directions. It was trained by
`workbench train diffusion-target` from the first layers of `text-target`, as LLaDA (Nie et al. 2025, arXiv:2502.09992)
is trained on answers, and predicts a position from the state before it, like Dream 7B (Ye et al. 2025).

Format: `<|user|>question<|assistant|>answer<|endoftext|>`; masked positions are `{mask}`. It is a teaching aid, not an
assistant, and knows only the tasks below.
"""


def card(model: TrainedModel) -> str:
    """Return the text of the masked-diffusion model's card below the title, as Markdown."""
    config, figures = model.config, model.figures
    text = _CARD.format(
        layers=config["num_hidden_layers"], hidden=config["hidden_size"], parameters=figures["parameters"], mask=MASK
    )
    rows = [(name, f"{share:.0%}") for name, share in figures["held"].items()]
    return (
        text
        + training_runs(figures, "a CPU")
        + f"\n## Right answers\n\nShare of {figures['problems']} held-out problems per task that the model "
        f"answers exactly, one position per forward pass, the most certain first.\n\n{table(['task', 'right'], rows)}\n"
    )
