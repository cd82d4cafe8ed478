"""Any registered method as a decoding loop of transformers' `generate`.

    out = model.generate(**inputs, max_new_tokens=100, custom_generate=speculative("prompt-lookup", depth=4))

The user's model runs as it is, without a copy. Only this callable form of `custom_generate` is supported; the string
form runs code from a repository's `custom_generate/generate.py` and needs `trust_remote_code=True`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.logits_process import (
    LogitNormalization,
    LogitsProcessorList,
    MinPLogitsWarper,
    PrefixConstrainedLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import MaxLengthCriteria, StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from workbench.core.errors import MethodUnavailableError, ModelError, ParameterError, WorkbenchError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request, Runner
from workbench.engine.admission import admit
from workbench.engine.method import Configured
from workbench.engine.models import find_heads
from workbench.engine.placed import named
from workbench.engine.pretrained import load_model
from workbench.engine.request import ENDED, ERROR, Row
from workbench.methods import registry
from workbench.trace import metrics
from workbench.trace.events import Round, Trace

KEEP_STATE = ("ClassifierFreeGuidance", "SynthID", "WhisperNoSpeech", "DiaEOSDelay")
"""Parts of the names of processors that advance a state of their own at each call. Drafted tokens that are rejected
cannot be taken back from it."""
ROW_BY_ROW = ("RepetitionPenaltyLogitsProcessor", "Encoder", "PrefixConstrained")
"""Beginnings of the names of transformers' own processors that keep something for each row of the batch."""
MODES = ("greedy_search", "sample", "assisted_generation")
OURS = ("attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "cache_position")
"""Arguments of forward that `generate` prepares; the engine has its own cache, positions and masks."""


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """What `generate(..., return_dict_in_generate=True)` returns.

    Attributes:
        sequences: int64 [B, L + new], prompts included, shorter rows padded on the right.
        figures: one dict a row: tau, acceptance_rate, tokens, rounds, … (`workbench.trace.metrics.summary`).
        traces: the recorded generations, one a row.
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
    """A registered method in the form that `generate` takes as `custom_generate`.

    Greedy decoding gives the tokens of `generate` itself, whatever the drafter. Sampling keeps the law of `generate`
    (for methods that promise it), not its random numbers: these follow from `seed`, or else from torch's global
    generator, so that `torch.manual_seed` or `transformers.set_seed` repeats a run. Logits processors and stopping
    criteria are asked about every position, each row with its own history; they must depend on nothing else.

    Args:
        method: registry name, see `workbench methods`.
        assistant: draft model, as an object or as bundled name, folder or Hub id, for methods that need one.
            `assistant_model` of `generate` serves as well.
        seed: of the run; row b of a batch uses `seed + b`.
        tokenizer: only for the texts in traces.
        record: keep the likeliest tokens and the entropy at every node in the traces, too.
        params: the method's parameters.

    Raises:
        WorkbenchError: no such method or parameter, or a value out of range.

    Example:
        >>> speculative("prompt-lookup", depth=4)
        speculative('prompt-lookup', depth=4)
    """
    configured = registry.get(method).with_params(**params)
    if not configured.drafts:
        raise MethodUnavailableError(
            f"{configured.method.title} cannot run in generate, which asks processors and criteria about one token "
            "behind the other: it writes in rounds of its own.",
            "Choose a method that drafts, or run it in the workbench.",
        )
    return Speculative(configured, params, assistant, seed, tokenizer, record)


class Speculative:
    """The decoding loop; made by `speculative`. Keeps nothing between calls but the traces of the last one.

    Attributes:
        traces: of the last call, one a row.
    """

    def __init__(
        self,
        configured: Configured,
        params: dict[str, Any],
        assistant: PreTrainedModel | str | None,
        seed: int | None,
        tokenizer: Any,
        record: bool,
    ) -> None:
        self._configured, self._params, self._seed, self._record = configured, params, seed, record
        self._assistant, self._tokenizer = assistant, tokenizer or _Ids()
        self.traces: list[Trace] = []

    def __repr__(self) -> str:
        values = "".join(f", {name}={value!r}" for name, value in self._params.items())
        return f"speculative({self._configured.name!r}{values})"

    @property
    def figures(self) -> list[dict[str, Any]]:
        """Figures of the last call, one dict a row: tau, acceptance_rate, tokens, rounds, …."""
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
        """Called by `generate` in place of its own loop.

        Raises:
            WorkbenchError: an option that speculation cannot honour, by name; or the run failed.
        """
        streamer = streamer or _argument_of_generate("streamer")
        assistant = self._assistant or assistant_model or _argument_of_generate("assistant_model")
        _refuse(generation_config, logits_processor, synced_gpus, streamer, len(input_ids), model, model_kwargs)
        if isinstance(assistant, str):
            assistant = self._assistant = load_model(assistant, model.device, model.dtype)
        histories = _histories(input_ids, model_kwargs.get("attention_mask"))
        assert generation_config.max_length is not None
        seed = int(torch.randint(2**62, ()).item()) if self._seed is None else self._seed
        with _hooks_taken_off(model, assistant):
            models = self._models(model, assistant, generation_config.max_length, len(histories))
            engine = Engine(models, len(histories), self._record)
            rows = []
            for history in histories:
                request = Request(
                    history.prompt,
                    self._configured,
                    sampling=_sampling(logits_processor, generation_config, history),
                    max_new_tokens=generation_config.max_length - input_ids.shape[1],
                    seed=seed + history.row,
                    stop_at_eos=False,  # the criteria know the configuration's end-of-text tokens
                    stop_when=_Stop(stopping_criteria, history),
                    on_round=_Feed(streamer) if streamer is not None else None,
                )
                rows.append(engine.submit(request))
            while any(row.status not in ENDED for row in rows):
                engine.step()
        self.traces = [_finished(row) for row in rows]
        if streamer is not None:
            streamer.end()
        sequences = _assemble(input_ids, self.traces, generation_config)
        if not generation_config.return_dict_in_generate:
            return sequences
        return SpeculativeOutput(sequences=sequences, figures=self.figures, traces=self.traces)  # type: ignore[arg-type]

    def _models(self, model: PreTrainedModel, assistant: PreTrainedModel | None, length: int, n_rows: int) -> Models:
        """The user's models as the engine wants them: for this call only, with room for this call."""
        models = Models(Runner(model, length, n_rows), self._tokenizer, _name_of(model))
        _admit(models.target, models.target_name)
        if models.target.context < length and models.target.why_context:
            raise ModelError(
                f"{models.target_name} cannot write up to {length} tokens here: {models.target.why_context}.",
                f"Set max_length={models.target.context} or less.",
            )
        models.drafter_problem = "No draft model was given: use speculative(…, assistant=…)."
        models.heads = find_heads(models.target_name, models.target)
        if assistant is not None and "drafter" in self._configured.method.needs:
            models.drafter = Runner(assistant, length, n_rows)
            _admit(models.drafter, "The assistant")
            models.drafter_name = models.target_name if assistant is model else f"{_name_of(assistant)} (assistant)"
            if models.drafter.vocab_size != models.target.vocab_size:
                raise ModelError(
                    f"The assistant has {models.drafter.vocab_size} tokens, the model {models.target.vocab_size}.",
                    "Take an assistant with the model's tokenizer, or a method that needs none.",
                )
        return models


def _admit(runner: Runner, name: str) -> None:
    """Refuse a model that the engine cannot call; one in training mode with the likeliest reason.

    Raises:
        ModelError: with what to do.
    """
    try:
        admit(runner, name)
    except ModelError as error:
        if not runner.model.training:
            raise
        raise ModelError(
            f"{name} is in training mode, and what it says of one text differs from call to call, as with dropout.",
            "Call model.eval() first.",
        ) from error


# -- what generate says, in the engine's words ------------------------------------------------------------------------


@dataclass(frozen=True)
class _History:
    """A row's tokens as `generate`'s own loop would show them: prompts padded on the left to one length."""

    prompts: Int[Tensor, "B L"]
    row: int
    skipped: int

    @property
    def prompt(self) -> list[int]:
        return self.prompts[self.row, self.skipped :].tolist()

    def padded(self, ids: Int[Tensor, "1 n"]) -> Int[Tensor, "1 n_plus_skipped"]:
        left = self.prompts[self.row : self.row + 1, : self.skipped]
        return torch.cat([left, ids.to(left.device)], dim=1)


@dataclass(frozen=True)
class _Processor:
    """A logits processor for one row.

    One that may keep something for each row of the batch sees as many rows as `generate` has, all of them this row's.
    """

    processor: Any
    history: _History

    def __call__(self, ids: Int[Tensor, "1 n"], scores: Float[Tensor, "1 V"]) -> Float[Tensor, "1 V"]:
        n_rows, row = len(self.history.prompts), self.history.row
        if not _knows_rows(self.processor):
            n_rows, row = 1, 0
        ids = self.history.padded(ids)
        found = self.processor(ids.repeat(n_rows, 1), scores.to(ids.device).repeat(n_rows, 1))
        return found[row : row + 1].to(scores.device)


def _knows_rows(processor: Any) -> bool:
    kind = type(processor)
    return kind.__module__ != LogitNormalization.__module__ or kind.__name__.startswith(ROW_BY_ROW)


def _histories(prompts: Int[Tensor, "B L"], mask: Tensor | None) -> list[_History]:
    """One a row.

    Raises:
        ParameterError: padding anywhere but on the left.
    """
    if mask is None:
        return [_History(prompts, row, 0) for row in range(len(prompts))]
    skipped = mask.long().argmax(1)
    if not torch.equal(mask.bool(), torch.arange(mask.shape[1], device=mask.device) >= skipped.unsqueeze(1)):
        raise ParameterError("A prompt is masked elsewhere than on its left.", "Set tokenizer.padding_side to 'left'.")
    return [_History(prompts, row, n) for row, n in enumerate(skipped.tolist())]


def _sampling(processors: LogitsProcessorList, config: GenerationConfig, history: _History) -> SamplingParams:
    """The law of the configuration.

    The usual filters at the end of the list become the engine's own, which drafters share; what stands before them,
    and filters in any other order, are applied as they are.
    """
    left = [p for p in processors if not isinstance(p, LogitNormalization)]
    values: dict[str, Any] = {"temperature": 1.0 if config.do_sample else 0.0}
    if config.do_sample:
        for kind, name in ((MinPLogitsWarper, "min_p"), (TopPLogitsWarper, "top_p"), (TopKLogitsWarper, "top_k"),
                           (TemperatureLogitsWarper, "temperature")):  # fmt: skip
            if left and type(left[-1]) is kind and getattr(left[-1], "min_tokens_to_keep", 1) == 1:
                values[name] = getattr(left.pop(), name)
    return SamplingParams(**values, processors=tuple(_Processor(_of_row(p, history.row), history) for p in left))


def _of_row(processor: Any, row: int) -> Any:
    """The same processor; one that asks a function by the row's number asks it for this row only."""
    if not isinstance(processor, PrefixConstrainedLogitsProcessor):
        return processor
    allowed = processor._prefix_allowed_tokens_fn
    return PrefixConstrainedLogitsProcessor(lambda _, sent: allowed(row, sent), num_beams=1)


class _Stop:
    """Stopping criteria for one row, asked after every token. The length is the engine's business."""

    def __init__(self, criteria: StoppingCriteriaList, history: _History) -> None:
        self._history = history
        self._eos: set[int] = set()
        self._others = StoppingCriteriaList()
        for criterion in criteria:
            eos = getattr(criterion, "eos_token_id", None)
            if isinstance(eos, Tensor):
                self._eos |= set(eos.flatten().tolist())
            elif not isinstance(criterion, MaxLengthCriteria):
                self._others.append(criterion)

    def __call__(self, tokens: list[int]) -> bool:
        if tokens[-1] in self._eos:
            return True
        if not self._others:
            return False
        ids = self._history.padded(torch.tensor([tokens]))
        return bool(self._others(ids, None).any())  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Feed:
    """Gives a streamer the tokens of each round, one at a time, as it expects them."""

    streamer: Any

    def __call__(self, record: Round) -> None:
        for emitted in record.emitted:
            self.streamer.put(torch.tensor([emitted.token]))


def _refuse(
    config: GenerationConfig,
    processors: LogitsProcessorList,
    synced_gpus: bool,
    streamer: Any,
    n_rows: int,
    model: PreTrainedModel,
    model_kwargs: dict[str, Any],
) -> None:
    """Say no, by name, to what would silently be ignored."""
    mode = config.get_generation_mode()
    refused = [f"generation mode {mode.value}"] if mode.value not in MODES else []
    wanted = ("output_scores", "output_logits", "output_attentions", "output_hidden_states", "use_mtp",
              "prompt_lookup_num_tokens", "assistant_early_exit", "token_healing")  # fmt: skip
    refused += [name for name in wanted if getattr(config, name, None)]
    refused += ["synced_gpus"] if synced_gpus else []
    refused += ["streamer with several prompts"] if streamer is not None and n_rows > 1 else []
    refused += ["a model on several devices"] if len(set(getattr(model, "hf_device_map", {}).values())) > 1 else []
    refused += [name for name, value in model_kwargs.items() if name not in OURS and value is not None]
    refused += ["position_ids that do not count the prompt's tokens"] if _counts_otherwise(model_kwargs) else []
    if getattr(model_kwargs.get("past_key_values"), "_is_user_defined", False):
        refused.append("past_key_values")
    for processor in processors:
        name = type(processor).__name__
        refused += [name] if any(part in name for part in KEEP_STATE) else []
    if refused:
        raise ParameterError(
            f"speculative() cannot honour: {', '.join(refused)}.", "Leave it out, or call generate without it."
        )


def _counts_otherwise(model_kwargs: dict[str, Any]) -> bool:
    """Whether positions were given that are not those `generate` would have counted, padding left out."""
    positions, mask = model_kwargs.get("position_ids"), model_kwargs.get("attention_mask")
    if positions is None:
        return False
    if mask is None:
        mask = torch.ones_like(positions)
    usual = (mask.long().cumsum(-1) - 1).expand_as(positions)
    return not torch.equal(positions * mask, usual * mask)


def _argument_of_generate(name: str) -> Any:
    """An argument of the `generate` that called `__call__`; None when something else did.

    Transformers 5.23 keeps `streamer` and `assistant_model` from callables, and a streamer that is never ended would
    keep its reader waiting.
    """
    frame = sys._getframe(2)
    return frame.f_locals.get(name) if frame.f_code.co_name == "generate" else None


# -- around the run ---------------------------------------------------------------------------------------------------


@contextmanager
def _hooks_taken_off(*models: nn.Module | None) -> Iterator[None]:
    """Leave no hook of the engine on the user's models."""
    modules = [m for model in models if model is not None for m in model.modules()]
    hooks = [registered for m in modules for registered in (m._forward_hooks, m._forward_pre_hooks)]
    before = [set(registered) for registered in hooks]
    try:
        yield
    finally:
        for registered, kept in zip(hooks, before, strict=True):
            for key in set(registered) - kept:
                del registered[key]


def _finished(row: Row) -> Trace:
    assert row.trace is not None
    if row.status == ERROR:
        cause = row.error
        raise cause if cause is not None else WorkbenchError(row.trace.footer.error)
    for warning in row.trace.footer.warnings:
        warnings.warn(warning, stacklevel=4)
    return row.trace


def _assemble(prompts: Int[Tensor, "B L"], traces: Sequence[Trace], config: GenerationConfig) -> Tensor:
    """Prompts and new tokens as one tensor; rows that ended earlier are padded on the right."""
    new = [trace.token_ids for trace in traces]
    longest = max(len(ids) for ids in new)
    pad = getattr(config, "_pad_token_tensor", None)
    if pad is None and any(len(ids) < longest for ids in new):
        raise ParameterError("Rows ended at different lengths and there is no pad token.", "Set pad_token_id.")
    fill = 0 if pad is None else int(pad)
    tail = [ids + [fill] * (longest - len(ids)) for ids in new]
    return torch.cat([prompts, torch.tensor(tail, dtype=prompts.dtype, device=prompts.device)], dim=1)


def _name_of(model: PreTrainedModel) -> str:
    """Its name here: of a bundled model the one by which its trained heads are found."""
    return named(str(getattr(model, "name_or_path", ""))) or type(model).__name__


@dataclass(frozen=True)
class _Ids:
    """Stands in for a tokenizer, which `generate` does not have: traces show token ids."""

    all_special_ids: tuple[int, ...] = field(default=())

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(self.convert_ids_to_tokens(i) for i in ids)

    def convert_ids_to_tokens(self, token: int) -> str:
        return f"\u2039{token}\u203a"
