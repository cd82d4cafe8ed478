"""A user's request for a generation, and the sequence that runs it in the engine."""

from __future__ import annotations

import threading
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from workbench.core.random_stream import Purpose, RandomStream
from workbench.core.sampling import SamplingParams
from workbench.core.transfer import from_numpy, to_device
from workbench.engine.detokenise import TextOutput
from workbench.engine.method_protocols import ConfiguredMethodProtocol, MethodProtocol
from workbench.engine.pacing import Pace
from workbench.engine.pending_actions import PendingActions
from workbench.engine.request_options import RequestOptions, TokenLogprob
from workbench.engine.settings import SAMPLING_NAMES, ActiveSettings, ImageChange, Settings, SettingsChange
from workbench.kernels.device_clock import Mark
from workbench.kernels.segment import Slot
from workbench.trace.events import Change, Round, Trace

if TYPE_CHECKING:
    from PIL.Image import Image

    from workbench.decoders.draft_verify.parts import Drafter, Policy, Verifier
    from workbench.models.loading import Models

QUEUED, PREFILL, RUNNING, PAUSED = "queued", "prefill", "running", "paused"
FINISHED, CANCELLED, ERROR = "finished", "cancelled", "error"
ENDED = (FINISHED, CANCELLED, ERROR)


@dataclass(slots=True)
class Request:
    """Prompt, method and settings of one generation.

    Attributes:
        prompt: at least one token id; or a text, which the target's tokenizer encodes unchanged.
        method: a registered method, with or without values for its parameters.
        sampling: sampling parameters: temperature, filters, penalties, logits processors.
        max_new_tokens: maximum number of generated tokens.
        seed: seed of all random numbers of the run.
        stop: stop strings, which end the text; it is cut before the earliest stop string that a token completes.
        stop_at_eos: whether the model's end-of-text token ends the text.
        stop_when: function that is called after every token with all tokens so far, prompt included; True ends the
            text.
        image_inputs: output of the target's processor for prompt and images (`input_ids`, `pixel_values`, …), for
            vision-language targets; drafters that process the images themselves use `prompt`.
        pil_images: the RGB images, for the trace and for drafters that process the images themselves; see
            `image_inputs.process_prompt`.
        on_round: callback after every round, in the engine's thread, which must return at once. With it a backend
            counts the round and wakes waiting threads (`Run.record`); viewers, such as the page, poll `Run.since`
            instead.
        paused: whether the sequence is paused after its prefill.
        pace: tokens per second to which rounds are slowed down so that people can follow; 0: full speed. See `Pace`.
        options: other options of server APIs, such as stop tokens and log-probabilities.
        models: models with another drafter or other heads for the engine's target; by default the engine's models.
        image_changes: image changes during the run, each with the number of tokens generated before it. The engine
            writes them; attribution reads them.
        drafter_state: saved state of a drafter (`state_actions.save`), loaded by the drafter of the first round.
        keep_drafter_state: whether to save the drafter's state when the sequence ends: see
            `DraftState.final`.
        logprobs: log-probabilities of the emitted tokens, if `options` request them; written by the engine.
        prompt_logprobs: log-probabilities of the prompt's tokens, from the second token on; written by the engine.
    """

    prompt: abc.Sequence[int] | str
    method: MethodProtocol | ConfiguredMethodProtocol
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int = 128
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_at_eos: bool = True
    stop_when: Callable[[list[int]], bool] | None = None
    image_inputs: dict[str, Tensor] | None = None
    pil_images: tuple[Image, ...] = ()
    on_round: Callable[[Round], None] | None = None
    paused: bool = False
    pace: float = 0.0
    options: RequestOptions = field(default_factory=RequestOptions)
    models: Models | None = None
    image_changes: list[tuple[int, ImageChange]] = field(default_factory=list)
    drafter_state: bytes | None = None
    keep_drafter_state: bool = False
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    def configured_method(self) -> ConfiguredMethodProtocol:
        """Return the method of the request with values for all parameters."""
        return self.method.with_params() if isinstance(self.method, MethodProtocol) else self.method


@dataclass(slots=True)
class RoundReport:
    """Data for the next round in the trace that do not come from the phases of this round.

    Attributes:
        signals: numbers that drafter, policy or verifier computed, by name.
        notes: warnings.
        changes: settings of the sequence that were changed before the round.
        revoked: positions of tokens that were revoked.
        other_work: work that ran in parallel with the phases of the round, as (phase, start, end, row of the timeline).
    """

    signals: dict[str, float] = field(default_factory=dict[str, float])
    notes: list[str] = field(default_factory=list[str])
    changes: list[Change] = field(default_factory=list[Change])
    revoked: list[int] = field(default_factory=list[int])
    other_work: list[tuple[str, Mark, Mark, str]] = field(default_factory=list[tuple[str, Mark, Mark, str]])


class SequenceControls:
    """Controls of a sequence (pause, change, cancel), which any thread may use. They take effect between rounds.

    Attributes:
        status: status of the sequence: `QUEUED`, `PREFILL`, `RUNNING`, `PAUSED`, or a status in `ENDED`.
        is_suspended: whether the sequence waits because another one uses the device exclusively.
        pace: delays between the sequence's rounds.
        pending_actions: actions between two rounds.
    """

    def __init__(self, paused: bool, pace: float) -> None:
        self.status = QUEUED
        self.is_suspended = False
        self.pace = Pace(pace)
        self.pending_actions = PendingActions()
        self._lock = threading.Lock()
        self._changes: list[SettingsChange] = []
        self._cancelled = False
        self._requested_steps: int | None = 0 if paused else None  # None: not paused

    def change(
        self,
        method: MethodProtocol | None = None,
        params: dict[str, Any] | None = None,
        sampling: SamplingParams | None = None,
        models: Models | None = None,
        image_change: ImageChange | None = None,
    ) -> None:
        """Change method, parameters, sampling, draft model or images of the sequence from its next round on."""
        with self._lock:
            self._changes.append(SettingsChange(method, dict(params or {}), sampling, models, image_change))

    def pause(self) -> None:
        """Pause the sequence before its next round."""
        with self._lock:
            self._requested_steps = 0

    def resume(self) -> None:
        """Continue the sequence after a pause."""
        with self._lock:
            self._requested_steps = None

    def step(self) -> None:
        """Let the sequence run one round, then pause it."""
        with self._lock:
            self._requested_steps = (self._requested_steps or 0) + 1

    def cancel(self) -> None:
        """End the sequence before its next round; the trace stays available."""
        with self._lock:
            self._cancelled = True

    @property
    def is_open(self) -> bool:
        """Return whether a decoder has a state for the sequence, as it does from the end of prefill on."""
        return self.status in (RUNNING, PAUSED)

    @property
    def is_interrupted(self) -> bool:
        """Return whether another round may not follow directly, because the run is paused, stepped or slowed down."""
        with self._lock:
            return self._requested_steps is not None or self.is_suspended or self.pace.is_slowed

    @property
    def is_cancelled(self) -> bool:
        """Return whether the cancellation of the sequence was requested."""
        return self._cancelled

    def take_turn(self) -> bool:
        """Return whether the next round may start now, and set the status of the sequence.

        If the sequence is paused, a requested single step is used up. The display rate does not delay requested steps.
        """
        with self._lock:
            steps = self._requested_steps
            self.status = PAUSED if steps == 0 else RUNNING
            if steps == 0 or (steps is None and self.pace.remaining_s > 0):
                self.pace.set_paused(True)
                return False
            if self.is_suspended:
                return False
            self.pace.set_paused(False)
            if steps is not None:
                self._requested_steps = steps - 1
            return True

    @property
    def due_s(self) -> float | None:
        """Return the seconds until the display rate allows the next round; None if the sequence cannot run."""
        return self.pace.remaining_s if self.is_open and self.status == RUNNING and not self.is_suspended else None

    def take_changes(self) -> list[SettingsChange]:
        """Return the changes of settings that were requested for the next round, and clear the list."""
        with self._lock:
            changes, self._changes = self._changes, []
        return changes


@dataclass(slots=True)
class RunTimes:
    """Start of a run's prefill, and start of its rounds, by the clock of the host and by that of the device."""

    prefill_start: float = 0.0
    origin_s: float | None = None
    origin: Mark | None = None


class Sequence(SequenceControls):
    """Request that the engine runs. Only the engine's thread uses it, except for its controls.

    Attributes:
        request: the user's request.
        settings: method, sampling parameters and models in use.
        random_stream: random numbers, addressed by position and purpose.
        committed: all tokens of the prompt and the generated text so far.
        prompt_length: number of tokens of the prompt.
        output: text of the generated tokens.
        slot: slot in the target's KV cache; None before prefill and after the end.
        image_inputs: the target's image inputs.
        pil_images: images shown to the drafter.
        state: state of the decoder for this sequence, from `Decoder.open` on.
        report: data for the trace of the next round.
        trace: trace of the run, set by `Engine.submit`.
        times: start times of prefill and rounds.
        error: error that ended the sequence.
    """

    is_on_device: ClassVar[bool] = False
    """Whether the next round takes the last tokens from the device, because the host has not read them yet."""

    def __init__(self, request: Request, prompt: list[int], models: Models) -> None:
        super().__init__(request.paused, request.pace)
        self.request = request
        eos = models.eos if request.stop_at_eos else ()  # `min_tokens` blocks only tokens that would end the text
        sampling = request.options.add_processors(request.sampling, len(prompt), eos)
        self.settings = ActiveSettings(request.configured_method(), sampling, models)
        self.random_stream = RandomStream(request.seed)
        self.committed, self.prompt_length = prompt, len(prompt)
        self.output = TextOutput()
        self.slot: Slot | None = None
        self.image_inputs, self.pil_images = request.image_inputs, request.pil_images
        self.state: Any = None
        self.report = RoundReport()
        self.trace: Trace
        self.times = RunTimes()
        self.error: BaseException | None = None

    @property
    def owner(self) -> Sequence:
        """Return this sequence; a view (`DeviceSequence`) returns the sequence that it shows."""
        return self

    @property
    def configured_method(self) -> ConfiguredMethodProtocol:
        """Return the method with which the sequence runs now, with its parameters."""
        return self.settings.configured_method

    @property
    def sampling(self) -> SamplingParams:
        """Return the sampling parameters with which the sequence runs now."""
        return self.settings.sampling

    @property
    def models(self) -> Models:
        """Return the models with which the sequence runs now."""
        return self.settings.models

    @property
    def max_new_tokens(self) -> int:
        """Return the maximum number of generated tokens: the requested number, or as many as the context allows.

        An unbounded method may generate more tokens than fit the context.
        """
        settings, requested = self.settings, self.request.max_new_tokens
        room = settings.models.target.context - self.prompt_length
        return requested if requested <= room or settings.configured_method.is_unbounded else room

    @property
    def cache_slot(self) -> Slot:
        """Return the slot in the target's KV cache, which exists from prefill to the end of the sequence."""
        assert self.slot is not None
        return self.slot

    @property
    def drafter(self) -> Drafter:
        """Return the drafter of the sequence's current method."""
        return self.settings.configured_method.drafter

    @property
    def verifier(self) -> Verifier:
        """Return the verifier of the sequence's current method."""
        return self.settings.configured_method.verifier

    @property
    def policy(self) -> Policy:
        """Return the draft policy of the sequence's current method."""
        return self.settings.configured_method.policy

    @property
    def params(self) -> dict[str, Any]:
        """Return the current parameters of method and sampling, for the trace."""
        configured, sampling = self.configured_method, self.sampling
        return {**configured.values, **{name: getattr(sampling, name) for name in SAMPLING_NAMES}}

    @property
    def n_new(self) -> int:
        """Return the number of tokens that the sequence has generated so far."""
        return len(self.committed) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Return the number of tokens that the sequence may still generate."""
        return self.max_new_tokens - self.n_new

    def uniforms(self, purpose: Purpose, n: int, device: torch.device | None, level: int = 0) -> Float64[Tensor, " n"]:
        """Return random numbers in [0, 1) for the next round; see `RandomStream.uniform`.

        Args:
            purpose: purpose of the numbers.
            n: number of random numbers.
            device: device of the result; None: the memory of the host.
            level: level of the draft tree for which they are drawn.
        """
        numbers = from_numpy(self.random_stream.uniform(len(self.committed), purpose, n, level))
        return numbers if device is None else numbers.to(device, non_blocking=True)

    def uncached_tokens(self, slot: Slot, device: torch.device) -> Int64[Tensor, " n"]:
        """Return the committed tokens that a KV cache lacks, at least one, on a device.

        Args:
            slot: the sequence's slot of the target's or the draft model's KV cache.
            device: device of the tokens.
        """
        return to_device(self.committed[slot.text_length :], device)

    def add_warning(self, note: str) -> None:
        """Add a warning to the next round in the trace, and once to the trace's footer."""
        self.report.notes.append(note)
        if not self.has_warning(note):
            self.trace.footer.warnings.append(note)

    def has_warning(self, note: str) -> bool:
        """Return whether the trace's footer has a given warning."""
        return note in self.trace.footer.warnings

    def requested_settings(self) -> Settings:
        """Return the sequence's settings, including requested changes that no round has applied yet."""
        with self._lock:
            return self.settings_after(self._changes)

    def settings_after(self, changes: abc.Sequence[SettingsChange]) -> Settings:
        """Return the settings of the sequence after some changes.

        Impossible changes are left out; `refusals` of the result has the reasons.
        """
        settings = Settings(self.settings)
        for change in changes:
            settings = settings.with_(change)
        return settings
