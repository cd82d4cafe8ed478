"""Load models once in the app on ZeroGPU, and run whole generations with them in forked processes that get a GPU."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from workbench.core.errors import ModelError, WorkbenchError
from workbench.engine import Engine, Models, Request, Runner
from workbench.engine.image_inputs import process_prompt
from workbench.engine.request import ENDED
from workbench.methods import registry
from workbench.models.admission import admit
from workbench.models.bundle import DEFAULT_TARGET, config_of
from workbench.models.loading import find_heads, same_vocabulary
from workbench.models.masked_lm import is_masked_lm
from workbench.models.names import bundled_drafter, is_drafter, locate
from workbench.models.other_vocabulary import OtherVocabularyDrafter
from workbench.models.pretrained import load_model, load_processor, load_tokenizer, resolve_device, resolve_dtype
from workbench.models.tokenizer_source import tokenizer_source_for
from workbench.service import choices
from workbench.service.names import Pair
from workbench.service.params import split_params

log = logging.getLogger("workbench.service")

PACE_S = 0.05
"""Interval in seconds between two messages with which a GPU process sends its rounds to the app."""


class ZeroGpuModels:
    """Models that the app loads on ZeroGPU. GPU processes inherit them, because they are forked from the app.

    Args:
        isolated: whether each generation runs in a separate process.
        device: device of all models.
        dtype: number format of all models; see `workbench.models.pretrained.resolve_dtype`.

    Attributes:
        loaded: model and tokenizer by name.
        processors: image processors by model name; None: text only.
        problems: reasons why named models are not loaded, by name.
    """

    def __init__(self, isolated: bool, device: str, dtype: str) -> None:
        self.isolated = isolated
        self.device = resolve_device(device)
        self.dtype = resolve_dtype(dtype, self.device)
        self.loaded: dict[str, tuple[Any, Any]] = {}
        self.processors: dict[str, Any] = {}
        self.problems: dict[str, str] = {}
        self._engines: dict[tuple[int, Pair], Engine] = {}

    def load(self, name: str) -> None:
        """Load the model with the given name; if this fails, store the error in `problems`."""
        try:
            source = tokenizer_source_for(name)
            if source is not None and source.target not in self.loaded:
                raise ModelError(f"{name} uses the tokenizer of {source.target}, which this server has not loaded.")
            model = load_model(name, self.device, self.dtype)
            self.processors[name] = load_processor(name, model)
            self.loaded[name] = model, load_tokenizer(name)
        except WorkbenchError as error:
            log.warning("not loaded: %s", error)
            self.problems[name] = str(error)

    @property
    def kind(self) -> str:
        """Return the number format of all models, such as "bfloat16"."""
        return str(self.dtype).removeprefix("torch.")

    def resolve_pair(self, target: str | None, drafter: str | None, blind: bool = False) -> Pair:
        """Resolve the names of a target and a draft model, as `workbench.service.names.Names.resolve_pair` does.

        Raises:
            ModelError: a model is not loaded.
        """
        target = target or next(iter({DEFAULT_TARGET} & self.loaded.keys()), next(iter(self.loaded)))
        if drafter in (None, "", "auto"):
            own_name = bundled_drafter(target, blind)
            drafter = own_name if own_name in self.loaded else "none"
        for name in (target, drafter):
            if name != "none" and name not in self.loaded:
                raise ModelError(
                    "This server has not loaded the requested model.", f"Use one of: {', '.join(self.loaded)}."
                )
        return target, None if drafter == "none" else drafter

    def drafters(self, target: str) -> list[dict[str, Any]]:
        """Return a dict for each draft model, which says whether it shares the target's vocabulary.

        The draft model that was trained for the target comes first.
        """
        entries, details = [], {entry["name"]: entry["detail"] for entry in choices.drafters(target)}
        for name, (_, tokenizer) in self.loaded.items():
            if name != target and not is_masked_lm(config_of(Path(locate(name)))):
                shares_vocabulary = same_vocabulary(self.loaded[target][1], tokenizer)
                reason = "" if shares_vocabulary else f"{name} and {target} do not share a vocabulary."
                entries.append(
                    {
                        "name": name,
                        "title": name,
                        "available": shares_vocabulary,
                        "reason": reason,
                        "detail": details.get(name, ""),
                    }
                    | {"pictures": self.processors[name] is not None, "stranger": not shares_vocabulary}
                )
        return sorted(entries, key=lambda entry: entry["name"] != bundled_drafter(target))

    def sizes(self) -> list[dict[str, Any]]:
        """Return the models in memory with their sizes, in the format of `workbench.client.Client.loaded_models`."""
        return [
            {"name": name, "role": "drafter" if is_drafter(name) else "target", "device": "cuda", "runs": 0,
             "bytes": sum(p.numel() * p.element_size() for p in model.parameters()), "idle_s": 0.0, "dtype": self.kind}
            for name, (model, _) in self.loaded.items()
        ]  # fmt: skip

    def generation(self, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Run one whole generation, usually in a forked process, where the app's threads do not exist.

        Args:
            job: request as plain data.

        Yields:
            Messages as plain dicts: the trace's header first, then its rounds, its footer last; or an error.
        """
        started = time.perf_counter()
        if self.isolated:
            torch.set_num_threads(1)  # the threads of the app's OpenMP pool do not survive a fork
        try:
            engine = self.engine((job["target"], job["drafter"]))
            chosen = registry.get(job["method"])
            values, sampling = split_params(chosen, job["params"])
            prompt, inputs = job["prompt"], None
            if job["pictures"]:
                prompt, inputs = process_prompt(engine.models, prompt, job["pictures"])
            sequence = engine.submit(
                Request(prompt, chosen.with_params(**values), sampling, job["max_new_tokens"], job["seed"], job["stop"],
                        image_inputs=inputs, pil_images=job["pictures"])
            )  # fmt: skip
        except WorkbenchError as error:
            yield {"error": (error.message, error.remedy)}
            return
        trace = sequence.trace
        try:
            yield {"header": trace.header.to_wire()}
            n_sent, last_s, rules = 0, time.perf_counter(), 0
            while sequence.status not in ENDED:
                engine.step()
                if time.perf_counter() - last_s >= PACE_S and len(trace.rounds) > n_sent:
                    header = {} if rules == len(trace.header.rules) else {"header": trace.header.to_wire()}
                    yield {**header, "rounds": [record.to_wire() for record in trace.rounds[n_sent:]]}
                    n_sent, last_s, rules = len(trace.rounds), time.perf_counter(), len(trace.header.rules)
            yield {
                "header": trace.header.to_wire(),  # again, now with the prefill time
                "rounds": [record.to_wire() for record in trace.rounds[n_sent:]],
                "footer": trace.footer.to_wire(),
                "busy_s": time.perf_counter() - started,
            }
        finally:
            if sequence.status not in ENDED:
                sequence.cancel()
                engine.step()

    def engine(self, pair: Pair) -> Engine:
        """Return this process's engine for a target and a draft model; it is created at their first use."""
        key = (os.getpid(), pair)
        if key not in self._engines:
            target, drafter = pair
            model, tokenizer = self.loaded[target]
            models = Models(Runner(model), tokenizer, target, processor=self.processors[target])
            admit(models.target, target, locate(target))
            models.heads = find_heads(target, models.target)
            if drafter is not None:
                draft_model, draft_tokenizer = self.loaded[drafter]
                runner = Runner(draft_model, models.target.context)
                admit(runner, drafter, locate(drafter))
                if not same_vocabulary(tokenizer, draft_tokenizer):
                    models.other_vocabulary_drafter = OtherVocabularyDrafter(runner, draft_tokenizer, drafter)
                    models.drafter_problem = f"{drafter} and {target} do not share a vocabulary."
                else:
                    models.drafter, models.drafter_name, models.drafter_problem = runner, drafter, ""
                    models.drafter_processor = self.processors[drafter]
            self._engines[key] = Engine(models, max_sequences=1)
        return self._engines[key]
