"""A loop that simulates reinforcement learning for a drafter: rollouts, and updates of the target between them.

Each step generates answers to new prompts, with log-normal lengths: by plain decoding, with a frozen EAGLE head, and
with TLT's head, which is trained online. Then the target is trained on a format, by likelihood. Reinforcement learning
is not needed here: the drafter is affected only by the changes of the target's weights and texts.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from workbench.core.errors import ParameterError
from workbench.decoders.method import ConfiguredMethod
from workbench.engine import Engine, Models, Request
from workbench.kernels.packed import unpack_temporarily
from workbench.methods import registry
from workbench.methods.drafters.tlt import TLT
from workbench.models.chat_markers import ASSISTANT, END, USER
from workbench.models.loading import load_models
from workbench.models.local_models import short_name
from workbench.models.machine import machine_facts
from workbench.trace.files import write_atomically
from workbench.training.family.rollouts_board import ADAPTIVE, BOARD, FROZEN, PLAIN, figures, page, tau
from workbench.training.generators import TASKS
from workbench.training.loop import Report
from workbench.training.recipe import changed_options


@dataclass
class RolloutOptions:
    """Options of the `rollouts` recipe.

    Attributes:
        target: Name or folder of the target; it must have an EAGLE head.
        out: Folder of the report.
        steps: Number of rollouts; the target is trained between them.
        batch: Number of prompts per rollout.
        median: Median length of an answer, in tokens (log-normal distribution).
        spread: Standard deviation of the logarithm of the length.
        longest: Maximum length of an answer, in tokens.
        updates: Number of AdamW steps on the target between two rollouts.
        rows: Batch size of the target's training steps: texts per step.
        target_rate: Learning rate of the target.
        lessons: Number of training steps of the drafter between two rollouts, while the target is trained.
        every: Rounds between two training steps of the drafter in the tail of a rollout.
        share: The tail of a rollout begins when at most this share of its sequences is still running; the drafter is
            trained from then on.
        rate: Learning rate of the drafter.
        texts: Number of texts per training step of the drafter.
        reads: Number of tokens per text in a training step of the drafter.
        again: Recompute the drafter's KV cache after each of its training steps.
        seed: Seed of prompts and lengths.
        threads: Number of CPU threads.
    """

    target: str = "text-target"
    out: Path = Path(".cache/train/rollouts")
    steps: int = 6
    batch: int = 10
    median: int = 40
    spread: float = 0.8
    longest: int = 192
    updates: int = 5
    rows: int = 8
    target_rate: float = 1e-4
    lessons: int = 24
    every: int = 4
    share: float = 0.25
    rate: float = 3e-4
    texts: int = 4
    reads: int = 64
    again: bool = False
    seed: int = 0
    threads: int = 1


def number_sentences(answer: str) -> str:
    """Return an answer in the format that the target is trained on: one numbered sentence per line.

    >>> print(number_sentences("Tom ran. He fell!"))
    1. Tom ran.
    2. He fell!
    """
    sentences = re.split(r"(?<=[.!?])\s+", answer.strip())
    return "\n".join(f"{i}. {sentence}" for i, sentence in enumerate(sentences, 1))


def is_numbered(text: str) -> bool:
    """Return whether a text, which may be cut off at any position, is in the format of `number_sentences`."""
    lines = text.strip().split("\n")
    return all(line.startswith(f"{i}. "[: max(1, len(line))]) for i, line in enumerate(lines, 1))


def lengths(options: RolloutOptions, step: int) -> list[int]:
    """Return the length limits of a step's answers: log-normal, so that a few are long."""
    samples = np.random.default_rng((options.seed, step)).lognormal(
        np.log(options.median), options.spread, options.batch
    )
    return [int(min(max(round(n), 8), options.longest)) for n in samples]


def run_rollouts_study(options: RolloutOptions, report: Report) -> dict[str, Any]:
    """Run the loop, and write the report and its page.

    Raises:
        ParameterError: the target has no EAGLE head, or fewer than two steps or prompts are requested.
    """
    torch.set_num_threads(options.threads)
    if min(options.steps, options.batch) < 2:
        raise ParameterError("The study needs two or more steps and prompts.", "Set steps and batch to 2 or more.")
    models = load_models(options.target, None, "cpu", "float32")
    drafter = TLT(
        every=options.every, tail=options.share, rate=options.rate, texts=options.texts, reads=options.reads,
        again=options.again, warm=True,
    )  # fmt: skip
    if problem := models.unsupported_reason(drafter.needs):
        raise ParameterError(f"{options.target} has no EAGLE head: {problem}", "Use smollm2.")
    settings = {f.name: getattr(drafter, f.name) for f in dataclasses.fields(drafter)}
    methods = {
        PLAIN: registry.get("autoregressive").with_params(),
        FROZEN: registry.get("eagle-2").with_params(),
        ADAPTIVE: registry.get("tlt").with_params(**settings),
    }
    facts, stream = machine_facts(), TASKS["story"].stream(options.seed, held_out=True)
    tuning, steps = TargetTraining(models, options), list[dict[str, Any]]()
    for number in range(options.steps):
        prompts = [encode(models, f"{USER}{instance.prompt}{ASSISTANT}") for instance in islice(stream, options.batch)]
        step: dict[str, Any] = {"lengths": lengths(options, number), "loss": tuning.loss}
        for name, method in methods.items():
            seconds_before = drafter.online_head(models).seconds
            texts, step[name] = rollout(models, method, prompts, step["lengths"], options.share)
            step[name]["lessons_s"] = drafter.online_head(models).seconds - seconds_before
            step[name]["same"] = sum(a == b for a, b in zip(texts, step.setdefault("texts", texts), strict=True))
        step["in_format"] = sum(is_numbered(models.tokenizer.decode(ids)) for ids in step.pop("texts"))
        n_steps = drafter.online_head(models).n_steps
        step["tail_lessons"] = n_steps - sum(s["tail_lessons"] + s["idle_lessons"] for s in steps)
        step["idle_lessons"] = drafter.train_between_batches(models, options.lessons)
        steps.append(step)
        report(
            f"rollouts: {number + 1} of {options.steps}: τ {tau(step[FROZEN]):.2f} frozen, {tau(step[ADAPTIVE]):.2f} "
            f"adaptive; {step['in_format']} of {options.batch} answers in the format"
        )
        if number:
            _write(options, facts, steps)
        if number + 1 < options.steps:
            tuning()
    lessons = drafter.online_head(models).n_steps
    return {"figures": figures(steps), "lessons": lessons, "out": str(options.out / BOARD)}


def _write(options: RolloutOptions, facts: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """Write the report and its page for the steps so far, so that a stopped loop has results."""
    changed, settings = (
        {n: v for n, v in d.items() if n != "out"} for d in (changed_options(options), dataclasses.asdict(options))
    )
    board: dict[str, Any] = {
        "target": short_name(options.target),
        "options": changed,
        "machine": facts,
        "settings": settings,
        "steps": steps,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out / BOARD, (json.dumps(board, ensure_ascii=False, indent=1) + "\n").encode())
    write_atomically((options.out / BOARD).with_suffix(".md"), page(board).encode())


def rollout(
    models: Models, method: ConfiguredMethod, prompts: Sequence[list[int]], longest: Sequence[int], share: float
) -> tuple[list[list[int]], dict[str, Any]]:
    """Generate a batch greedily, all sequences starting together; return its texts and costs.

    Args:
        models: target and head.
        method: decoding method.
        prompts: token ids.
        longest: length limit of each answer.
        share: share of the sequences; once no more than these are running, the tail begins.

    Returns:
        Token ids of the answers; and per prompt emitted tokens and rounds, and CPU seconds in total and of the tail.
    """
    engine = Engine(models, max_sequences=len(prompts), record=False)
    pairs = zip(prompts, longest, strict=True)
    sequences = [engine.submit(Request(ids, method, max_new_tokens=n, paused=True)) for ids, n in pairs]
    while not all(sequence.is_open for sequence in sequences):
        engine.step()
    for sequence in sequences:
        sequence.resume()
    start, tail = time.process_time(), None
    while not engine.is_idle:
        engine.step()
        if tail is None and len(engine.running) <= share * len(sequences):
            tail = time.process_time()
    end = time.process_time()
    for sequence in sequences:
        if sequence.error is not None:
            raise sequence.error
    traces = [sequence.trace for sequence in sequences if sequence.trace is not None]
    return [trace.token_ids for trace in traces], {
        "emitted": [len(trace.token_ids) for trace in traces],
        "rounds": [len(trace.rounds) for trace in traces],
        "seconds": round(end - start, 3),
        "tail_s": round(end - (end if tail is None else tail), 3),
    }


class TargetTraining:
    """Training of the target, in place: a few steps on stories in the format.

    Attributes:
        loss: loss of the last step, in nats per token; None before the first.
    """

    def __init__(self, models: Models, options: RolloutOptions) -> None:
        self.models, self.options, self.loss = models, options, None
        model: Any = models.target.model
        self._steps = torch.optim.AdamW(model.parameters(), lr=options.target_rate, weight_decay=0.0)
        self._texts = self._training_texts()

    def __call__(self) -> None:
        """Run the updates between two rollouts."""
        model: Any = self.models.target.model
        with unpack_temporarily(model):
            model.requires_grad_(True)
            for _ in range(self.options.updates):
                texts = [torch.tensor(ids) for ids in islice(self._texts, self.options.rows)]
                ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=-100)
                logits = model(input_ids=ids.clamp_min(0), use_cache=False).logits[:, :-1]
                loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-100)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                self._steps.step()
                self._steps.zero_grad()
                self.loss = round(float(loss.detach()), 4)
            model.requires_grad_(False)

    def _training_texts(self) -> Iterator[list[int]]:
        for instance in TASKS["story"].stream(self.options.seed, held_out=False):
            yield encode(self.models, f"{USER}{instance.prompt}{ASSISTANT}{number_sentences(instance.answer)}{END}")


def encode(models: Models, text: str) -> list[int]:
    """Return the token ids of a text that includes its own chat markers."""
    return models.tokenizer(text, add_special_tokens=False)["input_ids"]
