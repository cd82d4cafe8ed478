"""On-policy evaluation of a chat model's drafters: speculative decoding of answers to held-out prompts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workbench.core.errors import ParameterError
from workbench.decoders.declarations import Setting
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.models.bundle import config_of
from workbench.models.int8_checkpoint import STORED
from workbench.models.loading import HeadInfo, Models, load_models, other_weights
from workbench.models.local_models import short_name
from workbench.trace import metrics
from workbench.trace.events import Trace
from workbench.trace.files import write_atomically
from workbench.training.answers import is_held_out, read_answers
from workbench.training.cards import BITS, write_card
from workbench.training.family.cards import RANKED, card
from workbench.training.loop import Report

SUITE = "on-policy"
"""Key in `Method.suites` under which methods declare the settings in which their trained drafters are measured. In the
setting named "chain" the draft tree has one branch, so that each position is either accepted or not."""
RECIPES = ("chat-drafter", "chat-heads")
"""Training recipes whose drafters the recipe `chat-evaluate` measures."""


@dataclass
class ChatEvaluateOptions:
    """Options of the `chat-evaluate` recipe.

    Attributes:
        target: Name or folder of the target.
        answers: Folder with the target's answers, from the `answers` recipe; its held-out prompts are the evaluation
            set.
        models: Folder with the drafters, each in its own subfolder: `smollm2-drafter`, `smollm2-eagle`, …
        each: Number of held-out prompts per group of tasks.
        max_new_tokens: Maximum length of an answer, in tokens.
        dtype: Number format of the target; "auto": the fastest on this machine.
        threads: Number of CPU threads.
        only: Kind of the only drafter to measure; "": all that exist.
        device: Device: cpu, cuda, cuda:1, …; "auto" uses a GPU if there is one.
    """

    target: str = "smollm2"
    answers: Path = Path(".cache/train/answers")
    models: Path = Path(".cache/models")
    each: int = 2
    max_new_tokens: int = 96
    dtype: str = "auto"
    threads: int = 2
    only: str = ""
    device: str = "auto"


def evaluate_drafters(options: ChatEvaluateOptions, report: Report) -> dict[str, Any]:
    """Measure each drafter with greedy decoding, write `evaluation.json` and its model card, and return the metrics.

    Raises:
        ParameterError: there are no held-out prompts or no drafters.
    """
    torch.set_num_threads(options.threads)
    prompts = list(read_held_out_prompts(options.answers / "answers.jsonl", options.each))
    name, results = short_name(options.target), {}
    folders = {kind: options.models / folder for kind, folder in folders_of(name).items()}
    folders = {kind: folder for kind, folder in folders.items() if options.only in ("", kind)}
    for kind, folder in list(folders.items()):
        if not all((folder / f"{file}.json").exists() for file in ("config", "training")):
            del folders[kind]  # it does not exist, or is being trained
            report(f"the drafter {folder.name} is left out, because its training has not ended")
    if not prompts or not folders:
        raise ParameterError(
            f"Nothing can be measured: there are {len(prompts)} held-out prompts and {len(folders)} trained "
            f"drafters of {name}.",
            "First run the training recipes answers, readings, and chat-drafter or chat-heads.",
        )
    drafter = str(folders["drafter"]) if "drafter" in folders else None
    models = load_models(options.target, drafter, options.device, options.dtype, strict=drafter is not None)
    for kind, folder in list(folders.items()):
        if kind != "drafter":
            config = json.loads((folder / "config.json").read_text())
            if problem := other_weights(folder.name, config, name, models.target):
                del folders[kind]
                report(f"{folder.name} is left out: {problem}")
            else:
                models.heads[kind] = HeadInfo(folder.name, folder, config)
    dtype = str(models.target.weight_dtype).removeprefix("torch.")
    for kind, folder in folders.items():
        figures: dict[str, Any] = {"prompts": len(prompts), "tokens": options.max_new_tokens, "dtype": dtype}
        stored = config_of(folder).get(STORED, {})
        figures |= {BITS: stored[BITS]} if stored else {}
        for setting in evaluation_settings(kind):
            setting_models = with_chain_drafts(models) if setting.name == "chain" else models
            figures[setting.name] = measure_drafter(
                setting_models, setting.method, dict(setting.params), prompts, options.max_new_tokens
            )
            report(f"{folder.name}: {setting.name}: τ {figures[setting.name]['tau']:.2f}")
        write_atomically(folder / "evaluation.json", (json.dumps(figures, indent=2) + "\n").encode())
        write_card(folder, card)
        results[kind] = figures
    return results


def folders_of(target: str) -> dict[str, str]:
    """Return the folder names of a target's drafters by kind: "drafter" (a draft model), or a kind of head."""
    heads = [kind for kind, head in registry.heads().items() if head.recipe in RECIPES]
    return {kind: f"{target}-{kind}" for kind in ("drafter", *heads)}


def evaluation_settings(kind: str) -> list[Setting]:
    """Return the method settings with which drafters of a kind are measured.

    These are the settings that methods declare; if there are none, the first method with such a drafter at its
    defaults.
    """
    methods = [method for method in registry.methods() if kind in method.needs]
    settings = [setting for method in methods for setting in method.suites.get(SUITE, ())]
    return settings or [Setting("draft", method=method.name) for method in methods[:1]]


def with_chain_drafts(models: Models) -> Models:
    """Return models whose heads with a static draft tree draft only the most probable token of each level."""
    heads = {
        kind: HeadInfo(f"{info.name}, chain drafts", info.folder, info.config | {RANKED: [r[:1] for r in ranked]})
        if (ranked := info.config.get(RANKED))
        else info
        for kind, info in models.heads.items()
    }
    return dataclasses.replace(models, heads=heads)


def read_held_out_prompts(path: Path, each: int) -> Iterator[tuple[str, list[int]]]:
    """Yield (group, token ids) of the first `each` held-out prompts of each group, ordered by prompt number."""
    count: dict[str, int] = {}
    for line in sorted((line for line in read_answers(path) if is_held_out(line["n"])), key=lambda line: line["n"]):
        if count.setdefault(line["group"], 0) < each:
            count[line["group"]] += 1
            yield line["group"], line["prompt"]


def measure_drafter(
    models: Models, method: str, params: dict[str, Any], prompts: list[tuple[str, list[int]]], n_tokens: int
) -> dict[str, Any]:
    """Generate answers with a drafter; return τ in total and by group of prompts, and the acceptance by draft depth.

    The acceptance is a list of [depth, rounds that tested a token there, rounds that accepted it].
    """
    configured = registry.get(method).with_params(**params)
    groups: dict[str, list[Trace]] = {}
    for group, ids in prompts:
        trace = Engine(models).generate(Request(ids, configured, max_new_tokens=n_tokens))
        groups.setdefault(group, []).append(trace)
    rounds = [r for traces in groups.values() for trace in traces for r in trace.rounds]
    by_group = {group: metrics.tau([r for trace in traces for r in trace.rounds]) for group, traces in groups.items()}
    return {
        "method": method,
        "params": params,
        "tau": metrics.tau(rounds),
        "groups": {group: round(tau, 3) for group, tau in sorted(by_group.items()) if tau is not None},
        "by_depth": [
            [depth, n_tested, n_accepted] for depth, n_tested, n_accepted in metrics.acceptance_by_depth(rounds)
        ],
    }
