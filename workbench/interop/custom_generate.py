"""Run any registered method as the decoding loop of transformers' `generate`.

    out = model.generate(**inputs, max_new_tokens=100, custom_generate=speculative("prompt-lookup", depth=4))

The user's model is used without a copy. Only this callable form of `custom_generate` is supported: the string form runs
code from a repository's `custom_generate/generate.py` and needs `trust_remote_code=True`.
"""

from __future__ import annotations

import sys
import warnings
from collections import abc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.logits_process import (
    LogitsProcessorList,
)
from transformers.generation.stopping_criteria import StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from workbench.core.errors import MethodUnavailableError, ModelError, ParameterError, WorkbenchError
from workbench.decoders.declarations import DRAFTERS
from workbench.decoders.method import ConfiguredMethod
from workbench.engine import Engine, Models, Request, Runner
from workbench.engine.request import ENDED, ERROR, Sequence
from workbench.interop.generate_args import BatchStop, Stop, first_tokens, histories, pad_of, sampling, with_texts
from workbench.interop.refusals import refuse
from workbench.methods import registry
from workbench.models.admission import admit
from workbench.models.loading import find_heads
from workbench.models.local_models import short_name
from workbench.models.pretrained import load_model
from workbench.trace import metrics
from workbench.trace.events import Round, Trace

MOST_PADDING = 0.1
"""Maximum fraction of an embedding table that may be padding: models with the same tokenizer may pad it differently."""


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """Result of `generate(..., return_dict_in_generate=True)`.

    Attributes:
        sequences: token ids of prompts and new tokens, int64 [B, L + new], with shorter sequences padded on the right.
        figures: measurements, one dict per sequence: tau, acceptance_rate, tokens, rounds, …
            (`workbench.trace.metrics.summary`).
        traces: recorded generations, one per sequence.
    """

    figures: list[dict[str, Any]] | None = None
    traces: list[Trace] | None = None


def speculative(
    method: str = "draft-model",
    *,
    assistant: PreTrainedModel | str | None = None,
    seed: int | None = None,
    tokenizer: Any = None,
    record: bool = False,
    **params: Any,
) -> Speculative:
    """Return a decoding method as a value for the argument `custom_generate` of Transformers' `generate`.

    Greedy decoding returns the same tokens as `generate` itself, with any drafter. With a lossless method, sampling
    follows the same distribution as `generate`, but uses other random numbers. They depend on `seed`, or without it on
    torch's global generator, so that `torch.manual_seed` or `transformers.set_seed` makes a run repeatable. Logits
    processors and stopping criteria are called at every position with the tokens of the sequence so far; they must not
    depend on anything else.

    Args:
        method: name of a method, as `workbench methods` lists it.
        assistant: draft model for methods that need one: a model object, bundled name, folder or Hub id. The argument
            `assistant_model` of `generate` works as well.
        seed: seed of the run; sequence b of a batch uses `seed + b`.
        tokenizer: the model's tokenizer, for methods that read text; other methods use it only for the texts in traces.
        record: whether traces also contain the most likely tokens and the entropy at every node.
        params: parameters of the method.

    Raises:
        WorkbenchError: the method or a parameter does not exist, or a value is out of range.

    Example:
        >>> speculative("prompt-lookup", depth=4)
        speculative('prompt-lookup', depth=4)
    """
    configured = registry.get(method).with_params(**params)
    if not configured.is_speculative:
        raise MethodUnavailableError(
            f"{configured.method.title} cannot run in Hugging Face's generate, whose logits processors and "
            f"stopping criteria need tokens one by one.",
            "Choose a speculative method, or run this method in the workbench.",
        )
    return Speculative(configured, params, assistant, seed, tokenizer, record)


class Speculative:
    """Decoding loop for `custom_generate` of Transformers' `generate`, created by `speculative`.

    Only the traces of the last call are stored.

    Attributes:
        traces: traces of the last call, one per sequence.
    """

    def __init__(
        self,
        configured: ConfiguredMethod,
        params: dict[str, Any],
        assistant: PreTrainedModel | str | None,
        seed: int | None,
        tokenizer: Any,
        record: bool,
    ) -> None:
        self._configured, self._params, self._seed, self._record = configured, params, seed, record
        self._assistant, self._tokenizer = assistant, tokenizer
        self.traces: list[Trace] = []

    def __repr__(self) -> str:
        values = "".join(f", {name}={value!r}" for name, value in self._params.items())
        return f"speculative({self._configured.name!r}{values})"

    @property
    def figures(self) -> list[dict[str, Any]]:
        """Return measurements of the last call, one dict per sequence: tau, acceptance_rate, tokens, rounds, …."""
        return [metrics.summary(trace) for trace in self.traces]

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Int[Tensor, "B L"],
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        streamer: Any = None,
        assistant_model: Any = None,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Int[Tensor, "B L_plus_new"] | SpeculativeOutput:
        """Generate text for a batch of prompts. Transformers' `generate` calls this instead of its decoding loop.

        Raises:
            WorkbenchError: an option is not supported (the message names it), or the run failed.
        """
        streamer = streamer or _argument_of_generate("streamer")
        assistant = self._assistant or assistant_model or _argument_of_generate("assistant_model")
        tokenizer = self._tokenizer or _Ids(self._configured.name)
        refuse(generation_config, logits_processor, synced_gpus, streamer, len(input_ids), model, model_kwargs)
        if isinstance(assistant, str):
            assistant = self._assistant = load_model(assistant, model.device, model.dtype)
        sequence_histories = histories(input_ids, model_kwargs.get("attention_mask"))
        assert generation_config.max_length is not None
        seed = int(torch.randint(2**62, ()).item()) if self._seed is None else self._seed
        with _hooks_removed(model, assistant):
            models = self._models(model, assistant, tokenizer, generation_config.max_length, len(sequence_histories))
            engine = Engine(models, len(sequence_histories), self._record)
            max_new_tokens = generation_config.max_length - input_ids.shape[1]
            stop = BatchStop(stopping_criteria, input_ids, pad_of(generation_config) or 0, max_new_tokens)
            sequences = list[Sequence]()
            for history in sequence_histories:
                request = Request(
                    history.prompt,
                    self._configured,
                    sampling=sampling(logits_processor, generation_config, history),
                    max_new_tokens=max_new_tokens,
                    seed=seed + history.row,
                    stop_at_eos=False,  # the stopping criteria contain the configuration's EOS tokens
                    stop_when=Stop(stopping_criteria, history),
                    on_round=_Feed(streamer) if streamer is not None else None,
                )
                sequences.append(engine.submit(request))
            while any(sequence.status not in ENDED for sequence in sequences):
                engine.step()
                texts = [sequence.committed[sequence.prompt_length :] for sequence in sequences]
                sequence_histories[0].texts[:] = texts
                if stop.is_needed and all(sequence.status != ERROR for sequence in sequences):
                    stop.decide(texts)
                    for sequence, end in zip(sequences, stop.ends, strict=True):
                        if end is not None and sequence.status not in ENDED:
                            sequence.cancel()
        self.traces = [_finished(sequence) for sequence in sequences]
        for trace, end in zip(self.traces, stop.ends, strict=True):
            if end is not None:
                first_tokens(trace, end)
        if streamer is not None:
            streamer.end()
        sequences = _assemble(input_ids, self.traces, generation_config)
        if not generation_config.return_dict_in_generate:
            return sequences
        return SpeculativeOutput(sequences=sequences, figures=self.figures, traces=self.traces)  # type: ignore[arg-type]

    def _models(
        self, model: PreTrainedModel, assistant: PreTrainedModel | None, tokenizer: Any, length: int, n_rows: int
    ) -> Models:
        """Wrap the user's models for the engine, with KV caches that exist only during this call."""
        models = Models(Runner(model, length, n_rows, past_trained=True), tokenizer, _name_of(model))
        _admit(models.target, models.target_name)
        if models.target.context < length:
            reason = models.target.why_context or f"its context is {models.target.context} tokens"
            raise ModelError(
                f"{models.target_name} cannot generate texts of up to {length} tokens: {reason}.",
                f"Set max_length={models.target.context} or less.",
            )
        models.drafter_problem = "No draft model was given: use speculative(…, assistant=…)."
        models.heads = find_heads(models.target_name, models.target)
        if assistant is not None and DRAFTERS & set(self._configured.method.needs):
            models.drafter = Runner(assistant, length, n_rows, past_trained=True)
            _admit(models.drafter, "The assistant")
            models.drafter_name = models.target_name if assistant is model else f"{_name_of(assistant)} (assistant)"
            sizes = sorted((models.drafter.vocab_size, models.target.vocab_size))
            if sizes[1] - sizes[0] > MOST_PADDING * sizes[1]:
                raise ModelError(
                    f"The assistant has a vocabulary of {models.drafter.vocab_size} tokens and the model one of "
                    f"{models.target.vocab_size}, so their tokenizers differ.",
                    "Use an assistant with the model's tokenizer, or a method that needs no assistant.",
                )
        return models


def _admit(runner: Runner, name: str) -> None:
    """Refuse a model that the engine cannot use. If the model is in training mode, the error names this as the reason.

    Raises:
        ModelError: the model cannot be used.
    """
    try:
        admit(runner, name)
    except ModelError as error:
        if not runner.model.training:
            raise
        raise ModelError(
            f"{name} is in training mode: with dropout, for example, its logits differ between calls with the "
            f"same input.",
            "Call model.eval() first.",
        ) from error


# -- around the run ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Feed:
    """Send the tokens of each round to a Transformers streamer, one at a time."""

    streamer: Any

    def __call__(self, record: Round) -> None:
        for emitted in record.emitted:
            self.streamer.put(torch.tensor([emitted.token]))


def _argument_of_generate(name: str) -> Any:
    """Return an argument of the call of `generate` that is running; None if `generate` is not the caller.

    Transformers 5.23 does not pass `streamer` and `assistant_model` to a callable `custom_generate`. Without
    `streamer.end()`, the reader of the streamer would wait forever.
    """
    frame = sys._getframe(2)
    return frame.f_locals.get(name) if frame.f_code.co_name == "generate" else None


@contextmanager
def _hooks_removed(*models: nn.Module | None) -> Iterator[None]:
    """Context manager that removes the hooks that were registered on the user's models within it."""
    modules = [m for model in models if model is not None for m in model.modules()]
    hooks = [registered for m in modules for registered in (m._forward_hooks, m._forward_pre_hooks)]
    snapshots = [set(registered) for registered in hooks]
    try:
        yield
    finally:
        for registered, earlier in zip(hooks, snapshots, strict=True):
            for key in set(registered) - earlier:
                del registered[key]


def _finished(sequence: Sequence) -> Trace:
    if sequence.status == ERROR:
        cause = sequence.error
        raise cause if cause is not None else WorkbenchError(sequence.trace.footer.error)
    for warning in sequence.trace.footer.warnings:
        warnings.warn(warning, stacklevel=4)
    return sequence.trace


def _assemble(prompts: Int[Tensor, "B L"], traces: abc.Sequence[Trace], config: GenerationConfig) -> Tensor:
    """Return prompts and new tokens as one tensor, int64 [B, L + n]; shorter sequences are padded on the right."""
    new = [trace.token_ids for trace in traces]
    longest = max(len(ids) for ids in new)
    pad = pad_of(config)
    if pad is None and any(len(ids) < longest for ids in new):
        raise ParameterError(
            "The generated sequences have different lengths, and no pad token is set.", "Set pad_token_id."
        )
    return with_texts(prompts, new, longest, pad or 0)


def _name_of(model: PreTrainedModel) -> str:
    """Return the name of a model object; for a bundled model this is its bundled name, by which its heads are found."""
    return short_name(str(getattr(model, "name_or_path", ""))) or type(model).__name__


class TokenizerNeededError(MethodUnavailableError, AttributeError):
    """Raised if a method needs the tokenizer, but no tokenizer was given.

    The error is also an AttributeError, so that `getattr` with a default works on the substitute for the tokenizer.
    """


@dataclass(frozen=True)
class _Ids:
    """Substitute for a missing tokenizer: traces show token ids, and any other use raises an error."""

    method: str
    all_special_ids: tuple[int, ...] = field(default=())

    def decode(self, ids: abc.Sequence[int], **_: Any) -> str:
        return "".join(self.convert_ids_to_tokens(i) for i in ids)

    def convert_ids_to_tokens(self, token: int) -> str:
        return f"\u2039{token}\u203a"

    def __getattr__(self, name: str) -> Any:
        raise TokenizerNeededError(
            f"{self.method} needs the model's tokenizer, which generate does not pass on.",
            f"Use speculative({self.method!r}, …, tokenizer=tokenizer).",
        )

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self.__getattr__("__call__")

    def __len__(self) -> int:
        return self.__getattr__("__len__")
