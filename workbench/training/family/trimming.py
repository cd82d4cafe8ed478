"""A study of VocabTrim: drafters with decreasing vocabulary sizes, compared with plain decoding on the same prompts.

The kept tokens are the most frequent ones in two kinds of text: the target's answers, and the training text's answers
to the same kind of prompts. Nothing is trained.

Source: Goel et al. 2025, VocabTrim, arXiv:2506.22694, §3 (the counts) and §4 (size against speed).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from workbench.core.errors import ParameterError
from workbench.decoders import ConfiguredMethod
from workbench.engine import Models
from workbench.kernels.reduced_vocabulary import KEY
from workbench.methods import registry
from workbench.methods.method_info import PLAIN
from workbench.models.bundle import bundled
from workbench.models.loading import HeadInfo, load_models
from workbench.models.local_models import short_name
from workbench.models.machine import machine_facts
from workbench.trace import metrics
from workbench.trace.events import Round
from workbench.trace.files import write_atomically
from workbench.training.family.cells import load_study_prompts, tallies
from workbench.training.family.evaluate import evaluation_settings, with_chain_drafts
from workbench.training.family.readings import TEXT_ANSWER, Readings
from workbench.training.family.training_texts import TARGET, TEXT
from workbench.training.family.validation_drafts import decode_greedily
from workbench.training.family.vocabulary import count_tokens, coverage, most_frequent_tokens
from workbench.training.loop import Report
from workbench.training.recipe import changed_options

REPORT, DRAFTER, WHOLE = "trimming.json", "drafter", ""
WARM_TOKENS = 4


@dataclass
class TrimmingOptions:
    """Options of the `trimming` recipe.

    Attributes:
        target: Name or folder of the target.
        drafter: Name or folder of the target's draft model.
        kinds: Drafters to trim: "drafter" for the draft model, or kinds of heads that use the target's LM head.
        form: Shape of the measured draft: "chain" or "tree".
        readings: Folder with stored hidden states, from the `readings` recipe: of the target's answers and of the
            training text's answers (option `given` of `answers`).
        answers: Folder with the target's answers that `readings` was computed from; its held-out prompts are the
            evaluation set.
        out: Folder of the report.
        sizes: Draft vocabulary sizes to measure; the full vocabulary is always measured, too.
        each: Number of held-out prompts per group of tasks.
        max_new_tokens: Maximum length of an answer, in tokens.
        repeats: Timed repetitions of each prompt.
        dtype: Number format of the target and of its draft model.
        threads: Number of CPU threads.
    """

    target: str = "text-target"
    drafter: str = "text-drafter"
    kinds: tuple[str, ...] = (DRAFTER, "eagle")
    form: str = "chain"
    readings: Path = Path(".cache/train/readings")
    answers: Path = Path(".cache/train/answers")
    out: Path = Path(".cache/train/trimming")
    sizes: tuple[int, ...] = (256, 512, 1024, 2048)
    each: int = 2
    max_new_tokens: int = 64
    repeats: int = 3
    dtype: str = "float32"
    threads: int = 2


@dataclass
class Lane:
    """A drafter with a reduced vocabulary, and its results per prompt.

    Attributes:
        kind: kind of drafter.
        count_source: kind of text in which tokens were counted; empty if nothing was trimmed.
        draft_vocabulary: the tokens, increasing.
        models: models with this drafter.
        method: decoding method.
        rounds: rounds of each prompt, from the first repeat.
        rates: tokens per second of each prompt, by repeat.
    """

    kind: str
    count_source: str
    draft_vocabulary: list[int]
    models: Models
    method: ConfiguredMethod
    rounds: list[list[Round]] = field(default_factory=list)
    rates: list[list[float]] = field(default_factory=list)

    def answer(self, ids: list[int], tokens: int) -> None:
        """Decode a prompt and record its rate; for a new prompt the caller first appends a list to `rates`."""
        rounds = decode_greedily(self.models, ids, self.method, tokens)
        if not self.rates[-1]:
            self.rounds.append(rounds)
        self.rates[-1].append(metrics.tokens_per_second(rounds) or 0.0)

    def to_wire(self) -> dict[str, Any]:
        """Return plain JSON, with one number per prompt."""
        return tallies(self.rounds) | {
            "drafted": [metrics.count_drafted(rounds) for rounds in self.rounds],
            "draft_s": [round(sum(r.draft_s for r in rounds), 6) for rounds in self.rounds],
            "kind": self.kind, "counted": self.count_source, "kept": len(self.draft_vocabulary), "rates": self.rates,
        }  # fmt: skip


def run_trimming_study(options: TrimmingOptions, report: Report) -> dict[str, Any]:
    """Measure every size of every kind, interleaved prompt by prompt, so that other load slows all of them equally.

    Raises:
        ParameterError: no such kind, form or size, or there are no readings or held-out prompts.
    """
    torch.set_num_threads(options.threads)
    prompts = load_study_prompts(options.target, options.answers, options.readings, options.each)
    readings = Readings(options.readings)
    size = readings.facts["vocabulary"]
    if wrong := [k for k in options.sizes if not 0 < k < size]:
        raise ParameterError(f"{wrong[0]} is not below the full {size:,} tokens.", f"Use sizes from 1 to {size - 1:,}.")
    train = readings.split_indices(held_out=False)
    rows_of_kind = {TARGET: [row for row in train if readings.rows[row, 4] != TEXT_ANSWER],
               TEXT: [row for row in train if readings.rows[row, 4] == TEXT_ANSWER]}  # fmt: skip
    counts = {name: count_tokens(readings, rows) for name, rows in rows_of_kind.items() if rows}
    with TemporaryDirectory(prefix="trimming-") as scratch:
        models = load_models(options.target, options.drafter, "cpu", options.dtype, strict=True)
        vocabularies = {(WHOLE, size): list(range(size))}
        vocabularies |= {
            (name, k): most_frequent_tokens(tally, k, models.eos)
            for name, tally in counts.items()
            for k in sorted(options.sizes)
        }
        lanes = [
            _lane(options, models, kind, *key, tokens, Path(scratch))
            for kind in options.kinds
            for key, tokens in vocabularies.items()
        ]
        plain = Lane(PLAIN, WHOLE, vocabularies[WHOLE, size], models, registry.get(PLAIN).with_params())
        for lane in (plain, *lanes):  # warm-up: compilation must not count
            decode_greedily(lane.models, prompts[0][1], lane.method, WARM_TOKENS)
        for i, (_, ids) in enumerate(prompts):
            for lane in (plain, *lanes):
                lane.rates.append([])
            for repeat in range(options.repeats):
                first = (i + repeat) % len(lanes)
                for lane in (plain, *lanes[first:], *lanes[:first]):
                    lane.answer(ids, options.max_new_tokens)
            report(f"trimming: prompt {i + 1} of {len(prompts)}")
    answers = [[emitted.token for r in rounds for emitted in r.emitted] for rounds in plain.rounds]
    study: dict[str, Any] = {
        "target": short_name(options.target), "drafter": short_name(options.drafter), "form": options.form,
        "vocabulary": size, "prompts": len(prompts), "max_new_tokens": options.max_new_tokens,
        "counted": {name: int(tally.sum()) for name, tally in counts.items()},
        "covered": {name: {str(k): round(coverage(tally, vocabularies[name, k]), 4) for k in sorted(options.sizes)}
                    for name, tally in counts.items()},
        "options": changed_options(options), "machine": machine_facts(), "plain": plain.to_wire(),
        "cells": [lane.to_wire() | {"outside": _count_unproposable(answers, lane.draft_vocabulary)} for lane in lanes],
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out / REPORT, (json.dumps(study, ensure_ascii=False, indent=1) + "\n").encode())
    return {"cells": len(lanes), "out": str(options.out / REPORT)}


def _count_unproposable(answers: Sequence[Sequence[int]], draft_vocabulary: Sequence[int]) -> list[int]:
    """Return, per answer, the number of tokens that a drafter with this vocabulary could not propose."""
    vocab = set(draft_vocabulary)
    return [sum(token not in vocab for token in tokens) for tokens in answers]


def _lane(
    options: TrimmingOptions,
    full_models: Models,
    kind: str,
    count_source: str,
    size: int,
    draft_vocabulary: list[int],
    scratch: Path,
) -> Lane:
    """Return a lane for a kind of drafter with these tokens; a trimmed draft model's folder is created in `scratch`."""
    setting = next((setting for setting in evaluation_settings(kind) if setting.name == options.form), None)
    if setting is None or (kind != DRAFTER and kind not in full_models.heads):
        raise ParameterError(
            f"{options.target} has no {kind!r:.40} that drafts in the form {options.form!r:.40}.",
            "Use a kind of head that it has, or form=chain.",
        )
    method, models = registry.get(setting.method).with_params(**dict(setting.params)), full_models
    if kind == DRAFTER:
        source = bundled().get(options.drafter) or Path(options.drafter)
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    else:
        source, config = full_models.heads[kind].folder, full_models.heads[kind].config
    if count_source or KEY in config:  # a drafter trained with a reduced vocabulary is measured without it
        other_entries = {name: value for name, value in config.items() if name != KEY}
        new_config = other_entries | ({KEY: draft_vocabulary} if count_source else {})
        if kind == DRAFTER:
            folder = scratch / f"{count_source or 'whole'}-{size}"
            shutil.copytree(source, folder)
            (folder / "config.json").write_text(json.dumps(new_config), encoding="utf-8")
            models = full_models.with_drafter(str(folder), options.dtype)
        else:
            head = HeadInfo(f"{kind}, {count_source or 'whole'} {size}", source, new_config)
            models = dataclasses.replace(full_models, heads=dict(full_models.heads) | {kind: head}, shared={})
    models = with_chain_drafts(models) if options.form == "chain" else models
    return Lane(kind, count_source, draft_vocabulary, models, method)
