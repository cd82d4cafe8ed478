"""Evaluation of the bundled models: exact match per generator task, held-out loss, acceptance of the drafter."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from workbench.training.cards import write_results
from workbench.training.distill import generate_greedy, generate_held_out, greedy_acceptance, load_target
from workbench.training.generators import TASKS, Instance
from workbench.training.graded_answers import GradedAnswer, is_right_for_task, share_right
from workbench.training.loop import Report
from workbench.training.pretrain import held_losses
from workbench.training.text_cards import CARDS
from workbench.training.tokenizer import load_tokenizer

WRONG_SHOWN = 5
"""Number of wrong answers per generator task that the evaluation results quote."""


@dataclass
class EvaluateOptions:
    """Options of the `evaluate` recipe.

    Attributes:
        target: Folder of the target.
        drafter: Folder of the drafter; skipped if it does not exist.
        corpus: Folder of the corpus, for the held-out loss; skipped if it does not exist.
        out: JSON file for the results.
        count: Number of held-out problems per task.
        tasks: Tasks to measure; empty: all.
        rows: Batch size: prompts generated at once.
        threads: Number of CPU threads.
        hardware: Description of the machine for the model cards.
    """

    target: Path = Path("assets/models/text-target")
    drafter: Path = Path("assets/models/text-drafter")
    corpus: Path = Path(".cache/train/corpus")
    out: Path = Path(".cache/train/evaluation.json")
    count: int = 100
    tasks: tuple[str, ...] = field(default=())
    rows: int = 50
    threads: int = 2
    hardware: str = ""


def answer_tasks(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, task: str, count: int, rows: int = 50
) -> list[GradedAnswer[Instance]]:
    """Return the model's graded greedy answers to held-out problems; an answer without an end token is wrong.

    Args:
        model: Model that generates the answers.
        tokenizer: Tokenizer of the model.
        task: Name of the task.
        count: Number of held-out instances.
        rows: Number of prompts per batch.
    """
    instances = list(islice(TASKS[task].stream(9, held_out=True), count))
    answers: list[GradedAnswer[Instance]] = []
    for start in range(0, count, rows):
        part = instances[start : start + rows]
        longest = max(len(tokenizer(i.answer)["input_ids"]) for i in part) + 16
        limit = max(longest, 260) if task == "story" else longest
        for instance, ids in zip(part, generate_greedy(model, tokenizer, [i.prompt for i in part], limit), strict=True):
            output = str(tokenizer.decode(ids, skip_special_tokens=True))
            is_right = ids[-1] == tokenizer.eos_token_id and is_right_for_task(instance, output)
            answers.append(GradedAnswer(instance, output, is_right))
    return answers


def evaluate(options: EvaluateOptions, report: Report) -> dict[str, object]:
    """Measure the bundled models; write the metrics to `options.out`, and the model cards."""
    torch.set_num_threads(options.threads)
    tokenizer = load_tokenizer(options.target)
    target = load_target(options.target)
    parameters = {"text-target": target.num_parameters()}
    results: dict[str, object] = {"count": options.count, "threads": options.threads, "parameters": parameters}
    matches: dict[str, float] = {}
    wrong: dict[str, list[tuple[str, str]]] = {}
    for task in options.tasks or tuple(TASKS):
        answers = answer_tasks(target, tokenizer, task, options.count, options.rows)
        matches[task] = share_right(answers)
        wrong[task] = [(answer.problem.prompt, answer.text) for answer in answers if not answer.is_right][:WRONG_SHOWN]
        goal = f" (goal {TASKS[task].goal:.0%})" if TASKS[task].goal else ""
        report(f"evaluate: {task} {matches[task]:.0%}{goal}")
    results["exact_match"], results["wrong"] = matches, wrong
    if options.corpus.exists():
        results["held_loss"] = held_losses(target, options.corpus, 512, 12)
        report("evaluate: held-out loss " + json.dumps(results["held_loss"]))
    if (options.drafter / "config.json").exists():
        drafter = load_target(options.drafter)
        parameters["text-drafter"] = drafter.num_parameters()
        acceptance = {}
        for task in ("story", "addition", "json", "copy", "code", "summary"):
            held = generate_held_out(target, tokenizer, task, 24)
            acceptance[task] = greedy_acceptance(target, drafter, *held)
        results["acceptance"] = acceptance
        report("evaluate: drafter acceptance " + json.dumps(acceptance))
    write_results(options.out, options.target.parent, CARDS, results, options.hardware)
    return results
