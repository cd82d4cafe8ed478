"""Contenders of a bench: a method on the workbench's engine, or Hugging Face's `generate` on the same model objects."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from workbench.bench.sample import Sample, sample_of
from workbench.core.sampling import SamplingParams
from workbench.decoders.declarations import DRAFTERS
from workbench.decoders.method import ConfiguredMethod
from workbench.engine import Engine, Request
from workbench.models.weight_files import weight_files

DRAFTING = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
"""Fields of an assistant's generation configuration from which transformers determines the draft length."""


def weights_of(*models: Any) -> int:
    """Return the size of the parameters of these models in bytes; parameters that models share count once."""
    tensors = {p.data_ptr(): p.numel() * p.element_size() for m in models if m is not None for p in m.parameters()}
    return sum(tensors.values())


@dataclass
class EngineContender:
    """Contender of a bench: a method of the registry that runs on the workbench's engine.

    Attributes:
        engine: the engine, with its models.
        configured: the method with values for its parameters.
        sampling: `SamplingParams` of every run.
        max_new_tokens: length limit of every run, in tokens.
        seed: seed of every run, so that repetitions do the same work.
        label: name of this contender, if another contender is a setting of the same method.
    """

    engine: Engine
    configured: ConfiguredMethod
    sampling: SamplingParams
    max_new_tokens: int
    seed: int = 0
    kind: str = "workbench"
    label: str = ""

    @property
    def name(self) -> str:
        """Return the label of this contender; without a label, the registry name of its method."""
        return self.label or self.configured.name

    @property
    def title(self) -> str:
        """Return the title of the contender's method for display."""
        return self.configured.method.title

    @property
    def promise(self) -> str:
        """Return the promise of the contender's method, such as "exact" (the target's distribution)."""
        return self.configured.promise.value

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the parameter values of the contender's method."""
        return dict(self.configured.values)

    @property
    def changed_parameters(self) -> dict[str, Any]:
        """Return the parameter values of the contender's method that differ from their defaults."""
        specs = self.configured.method.params
        return {name: value for name, value in self.configured.values.items() if value != specs[name].default}

    def shortened(self, max_new_tokens: int) -> EngineContender:
        """Return a copy of this contender that generates at most `max_new_tokens` tokens, for warm-up runs."""
        return replace(self, max_new_tokens=min(self.max_new_tokens, max_new_tokens))

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of all weights that the method uses: target, drafter, and files of trained heads."""
        models, needs = self.engine.models, self.configured.method.needs
        drafter = models.draft_model.model if models.draft_model is not None and DRAFTERS & set(needs) else None
        heads = [models.heads[need].folder for need in needs if need in models.heads]
        sizes = [file.stat().st_size for folder in heads for file in weight_files(folder)]
        return weights_of(models.target.model, drafter) + sum(sizes)

    def request(self, prompt: Any) -> Request:
        """Return the engine request for a prompt of token ids."""
        return Request(
            list(prompt),
            method=self.configured,
            sampling=self.sampling,
            max_new_tokens=self.max_new_tokens,
            seed=self.seed,
        )

    def run(self, prompt_ids: Any, prompt: int = 0, repeat: int = 0) -> Sample:
        request = self.request(prompt_ids)
        start = time.perf_counter()
        trace = self.engine.generate(request)
        seconds = time.perf_counter() - start
        return sample_of(trace, self.name, prompt, repeat, seconds)


@dataclass
class HuggingFaceContender:
    """`generate` of transformers: plain, with an assistant model, or with prompt lookup.

    Draft lengths are fixed (constant schedule, no confidence stop), so that the workbench and transformers draft the
    same number of tokens per round and only the implementation differs. With an assistant and without `draft_tokens`,
    `generate` runs with transformers' own defaults for draft length, schedule and confidence stop.

    Attributes:
        model: the target, a model of transformers.
        eos: token ids that end the text.
        max_new_tokens: length limit of every run, in tokens.
        sampling: `SamplingParams` of every run.
        assistant: drafter, for assisted generation.
        draft_tokens: tokens drafted per round by the assistant or by prompt lookup; None for plain decoding, and for
            transformers' defaults.
        ngram: longest n-gram looked up by prompt lookup.
        seed: seed of the first sampled run; it rises by 1 per repeat.
        dtype: number format, if it differs from the engine's: on a CPU without bfloat16 products torch emulates them,
            so users of transformers choose float32 there.
    """

    model: Any
    eos: Sequence[int]
    max_new_tokens: int
    sampling: SamplingParams
    assistant: Any = None
    draft_tokens: int | None = None
    ngram: int | None = None
    seed: int = 0
    dtype: str = ""
    kind: str = "hugging-face"
    promise: str = "exact"

    @property
    def name(self) -> str:
        """Return the contender's name in reports, such as "hf-generate" or "hf-assisted"."""
        if self.assistant is not None:
            return "hf-assisted-defaults" if self.draft_tokens is None else "hf-assisted"
        return "hf-generate" if self.draft_tokens is None else "hf-prompt-lookup"

    @property
    def title(self) -> str:
        """Return the contender's title for display."""
        variants = {
            "hf-assisted": "assistant_model",
            "hf-assisted-defaults": "assistant_model with its defaults",
            "hf-generate": "plain",
            "hf-prompt-lookup": "prompt lookup",
        }
        return f"Hugging Face generate, {variants[self.name]}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the draft length and all other options of `generate` that determine the work of a round."""
        options: dict[str, Any] = {"draft_tokens": self.draft_tokens, "ngram": self.ngram, "dtype": self.dtype or None}
        if self.name == "hf-assisted-defaults":
            options |= {name: getattr(self.assistant.generation_config, name, None) for name in DRAFTING}
        return {name: value for name, value in options.items() if value is not None}

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of the weights of target and assistant."""
        return weights_of(self.model, self.assistant)

    def run(self, prompt_ids: Sequence[int], prompt: int = 0, repeat: int = 0) -> Sample:
        ids = torch.tensor([list(prompt_ids)], device=self.model.device)
        options = self._options()
        with _count_forwards(self.model) as forwards, self._fixed_length():
            if self.sampling.temperature > 0:
                torch.manual_seed(self.seed + repeat)  # noqa: TID251  (generate draws from the global generator)
            start = time.perf_counter()
            with torch.inference_mode():
                out = self.model.generate(ids, attention_mask=torch.ones_like(ids), **options)
            new = out[0, len(prompt_ids) :].tolist()
            seconds = time.perf_counter() - start
        return Sample(self.name, prompt, repeat, new, seconds, None, forwards[0])

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "do_sample": self.sampling.temperature > 0,
            "eos_token_id": list(self.eos) or None,
            "pad_token_id": next(iter(self.eos), 0),
        }
        if self.sampling.temperature > 0:
            options |= {
                "temperature": self.sampling.temperature,
                "top_k": self.sampling.top_k or 0,
                "top_p": self.sampling.top_p,
            }
        if self.assistant is not None:
            options["assistant_model"] = self.assistant
        elif self.draft_tokens is not None:
            options["prompt_lookup_num_tokens"] = self.draft_tokens
            if self.ngram is not None:
                options["max_matching_ngram_size"] = self.ngram
        return options

    @contextmanager
    def _fixed_length(self) -> Iterator[None]:
        """Fix the assistant's draft length: transformers reads it from the assistant's generation configuration.

        With transformers' own defaults nothing is set. Changes by transformers' schedule of draft lengths are undone
        afterwards, so that every run starts with the same draft length.
        """
        if self.assistant is None:
            yield
            return
        config = self.assistant.generation_config
        before = {name: getattr(config, name, None) for name in DRAFTING}
        if self.draft_tokens is not None:
            for name, value in zip(DRAFTING, (self.draft_tokens, "constant", 0.0), strict=True):
                setattr(config, name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(config, name, value)


@contextmanager
def _count_forwards(model: Any) -> Iterator[list[int]]:
    """Count the model's forward passes with a hook, since transformers inspects `forward`; yield [number of passes]."""
    count = [0]

    def add(*_: Any) -> None:
        count[0] += 1

    handle = model.register_forward_hook(add)
    try:
        yield count
    finally:
        handle.remove()
