"""The engine's scheduler: it admits sequences, prefills prompts, lets decoders run rounds, and ends sequences."""

from __future__ import annotations

import itertools
import logging
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable

import torch

import workbench
from workbench.core.errors import MethodUnavailableError, PromptError, WorkbenchError, to_workbench_error
from workbench.core.panics import convert_panics
from workbench.engine.changes import apply_changes, close
from workbench.engine.decoder import Decoder, EngineContext
from workbench.engine.detokenise import TokenText, detokeniser
from workbench.engine.image_inputs import check_end, check_text
from workbench.engine.image_trace import record_images
from workbench.engine.method_protocols import ConfiguredMethodProtocol
from workbench.engine.request import CANCELLED, ENDED, ERROR, PREFILL, RUNNING, Request, Sequence
from workbench.kernels.device_clock import Clock
from workbench.kernels.distributions import make_ready
from workbench.kernels.segment import PrefillHiddenStates
from workbench.models.loading import Models
from workbench.models.pretrained import encode
from workbench.trace.events import Footer, Header, Trace

log = logging.getLogger(__name__)

MOST_ROUNDS_LATE = 4
"""Maximum number of rounds that a decoder may queue before it reads the first. One hides the host's time."""


class Engine:
    """Engine that runs requests on one set of models, in rounds. Not thread-safe: one thread calls `step`.

    Requests join the batch (`submit`) and leave it between rounds. The output of a sequence does not depend on other
    sequences in the batch, up to floating-point rounding in batched matrix products.

    Args:
        models: target, tokenizer, draft model, heads.
        max_sequences: maximum number of requests that run at once; further requests wait in order of arrival.
        record: whether the trace stores the most likely tokens and the entropy at every node.
        max_rows: old name of `max_sequences`.
        rounds_late: number of rounds that a decoder may queue on the device before it reads the results of the first,
            for methods that allow it; 0: read each round before the next one starts. The text is the same.
    """

    def __init__(
        self,
        models: Models,
        max_sequences: int = 16,
        record: bool = True,
        *,
        max_rows: int | None = None,
        rounds_late: int = 0,
    ) -> None:
        if not 0 <= rounds_late <= MOST_ROUNDS_LATE:
            raise WorkbenchError(f"rounds_late={rounds_late} is not possible.", f"Use 0 to {MOST_ROUNDS_LATE}.")
        self.models = models
        self.max_sequences = max_sequences if max_rows is None else max_rows
        self.record = record
        self.clock = Clock(models.target.device)
        models.target.clock = self.clock
        make_ready(models.target.vocab_size, models.target.device)
        self.token_text = TokenText(models.tokenizer)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.rounds_late = rounds_late
        self._context = EngineContext(models, self.clock, self.token_text, record, self._guard, self._end, rounds_late)
        self._decoders: dict[type, Decoder] = {}  # by kind

    # -- requests ------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Sequence:
        """Check a request, queue it, and return its sequence.

        Raises:
            PromptError: the prompt is empty, or no new token fits into the context after it.
            MethodUnavailableError: the models lack a requirement of the method.
            WorkbenchError: a parameter is wrong.
        """
        prompt = self._prompt_ids(request)
        configured = request.configured_method()
        request.options.check(self.models.target.vocab_size)
        models = request.models or self.models
        if models.draft_model is not None:
            models.draft_model.clock = self.clock
        models.set_unknown_token()
        if request.max_new_tokens < 1:
            raise PromptError(f"max_new_tokens={request.max_new_tokens} requests no tokens.", "Use 1 or more.")
        request.image_changes, request.logprobs, request.prompt_logprobs = [], [], []  # clear results of an earlier run
        sequence = Sequence(request, prompt, models)
        if reason := configured.unsupported_reason(sequence, models, sequence.sampling):
            raise MethodUnavailableError(f"{configured.method.title} cannot run: {reason}", "See `workbench methods`.")
        configured.make_ready(models)
        notes = []
        if sequence.max_new_tokens < request.max_new_tokens:
            why = self.models.target.why_context or "the target's context has no more positions"
            notes.append(f"max_new_tokens was cut from {request.max_new_tokens} to {sequence.max_new_tokens}: {why}.")
        notes += [notice] if (notice := configured.notice()) else []
        notes += [note for picture in request.pil_images if (note := picture.info.get("note"))]
        sequence.trace = Trace(self._header(sequence), footer=Footer(warnings=notes))
        self.waiting.append(sequence)
        return sequence

    def generate(self, request: Request) -> Trace:
        """Run one request to its end, and return its trace.

        Raises:
            WorkbenchError: the request is wrong, or the run failed.
        """
        return self.generate_all([request])[0]

    def generate_all(self, requests: Iterable[Request]) -> list[Trace]:
        """Run requests to their end, at most `max_sequences` at once; return their traces in the order of the requests.

        Raises:
            WorkbenchError: a request is wrong, or a run failed.
        """
        sequences = [self.submit(request) for request in requests]
        while any(s.status not in ENDED for s in sequences):
            self.step()
        if error := next((s.trace.footer.error for s in sequences if s.status == ERROR), ""):
            raise WorkbenchError(error)
        return [s.trace for s in sequences]

    def _prompt_ids(self, request: Request) -> list[int]:
        if request.image_inputs is not None:
            prompt = request.image_inputs["input_ids"][0].tolist()
        elif isinstance(request.prompt, str):
            prompt = encode(self.models.tokenizer, request.prompt)
        else:
            prompt = [int(t) for t in request.prompt]
        if request.image_inputs is None:
            prompt = request.options.truncate(prompt)
        context, vocabulary = self.models.target.context, self.models.target.vocab_size
        if not prompt:
            raise PromptError("The prompt is empty.", "Write at least one token for the model to continue.")
        if len(prompt) >= context and not request.configured_method().is_unbounded:
            raise PromptError(
                f"The prompt has {len(prompt)} tokens; the target's context holds {context}, and one position "
                f"must stay free.",
                f"Shorten the prompt by {len(prompt) - context + 1} tokens or more"
                + (f": {why}." if (why := self.models.target.why_context) else "."),
            )
        if request.image_inputs is not None:
            check_end(self.models, prompt)
            return prompt
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            raise PromptError(
                f"The prompt contains token ids outside 0…{vocabulary - 1}.", "Use the target's tokenizer."
            )
        check_text(self.models, prompt)
        return prompt

    def _header(self, sequence: Sequence) -> Header:
        request, models = sequence.request, sequence.models
        is_cut = request.image_inputs is None and request.options.truncate_prompt == len(sequence.committed)
        prompt = request.prompt if len(request.prompt) and not is_cut else sequence.committed
        return Header(
            target=models.target_name,
            drafter=models.draft_model_name,
            method=sequence.configured_method.name,
            params=sequence.params,
            promise=sequence.configured_method.promise.value,
            simulation=sequence.configured_method.simulates,
            seed=request.seed,
            prompt=prompt if isinstance(prompt, str) else models.tokenizer.decode(prompt),
            prompt_tokens=list(sequence.committed),
            prompt_text=[self.token_text(t) for t in sequence.committed],
            max_new_tokens=sequence.max_new_tokens,
            dtype=str(models.target.weight_dtype).removeprefix("torch."),
            device=str(models.target.device),
            created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            hardware=platform.processor() or platform.machine(),
            workbench=workbench.__version__,
            pictures=[]
            if request.image_inputs is None
            else record_images(self.models, request.image_inputs, request.pil_images),
        )

    # -- one step ------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Return whether the engine has no waiting or running request."""
        return not self.waiting and not self.running

    idle = is_idle  # former name

    @property
    def n_queued_rounds(self) -> int:
        """Return how many rounds were queued on the device before the host had read the previous ones."""
        return sum(decoder.n_queued_rounds for decoder in self._decoders.values())

    @property
    def why_not_recorded(self) -> str:
        """Return why queued rounds are not recorded as CUDA graphs; "" if they are, or if none were queued."""
        return next((why for decoder in self._decoders.values() if (why := decoder.why_not_recorded)), "")

    @torch.inference_mode()
    def step(self) -> bool:
        """Admit a request, prefill a chunk, and run one round. Return False if there was nothing to do."""
        for sequence in [r for r in itertools.chain(self.waiting, self.running) if r.is_cancelled]:
            if sequence.is_open:
                self._settle(sequence)
            if sequence.status not in ENDED:
                self._end(sequence, CANCELLED, "cancelled")
        worked = self._admit()
        for sequence in list(self.running):
            if sequence.is_open and sequence.pending_actions.is_waiting and not sequence.is_suspended:
                self._settle(sequence)
                sequence.pending_actions.run(sequence)
        groups: dict[type, list[Sequence]] = {}  # by kind of decoder
        for sequence in self._sequences_with_turn():
            if self._guard(sequence, lambda s=sequence: apply_changes(s, self._decoder)):
                groups.setdefault(sequence.configured_method.decoder_kind, []).append(sequence)
        stepped = [self._step(self._decoders[kind], group) for kind, group in groups.items()]
        return any(stepped) or worked

    def _sequences_with_turn(self) -> list[Sequence]:
        """Return the sequences that may have a round now. Read the queued rounds of all others."""
        turns = list[Sequence]()
        for sequence in [s for s in self.running if s.is_open]:
            if sequence.take_turn():
                turns.append(sequence)
            else:
                self._settle(sequence)
        return turns

    def _settle(self, sequence: Sequence) -> None:
        """Read the queued rounds of a sequence; its text may end with them."""
        self._guard(sequence, lambda: self._decoder(sequence.configured_method).settle(sequence))

    def _step(self, decoder: Decoder, sequences: list[Sequence]) -> bool:
        """Run one round of the sequences of a decoder; an uncaught error ends only these sequences."""
        if decoder.isolates_errors:
            return decoder.step(sequences)
        try:
            with convert_panics():
                return decoder.step(sequences)
        except Exception as error:
            for sequence in [s for s in sequences if s.status not in ENDED]:
                self._fail(sequence, to_workbench_error(error), error)
            return True

    def _decoder(self, configured: ConfiguredMethodProtocol) -> Decoder:
        """Return the engine's decoder for a method; the engine has one decoder of each kind."""
        kind = configured.decoder_kind
        if kind not in self._decoders:
            self._decoders[kind] = configured.decoder(self._context)
        return self._decoders[kind]

    def _guard(self, sequence: Sequence, act: Callable[[], object]) -> bool:
        """Call a function for one sequence; an error ends only that sequence. Return whether it continues."""
        try:
            with convert_panics():
                act()
        except Exception as error:  # a bug in one method must not stop the others
            self._fail(sequence, to_workbench_error(error), error)
        return sequence.status not in ENDED

    def _fail(self, sequence: Sequence, error: WorkbenchError, cause: BaseException) -> None:
        sequence.trace.footer.error = str(error)
        sequence.error = cause
        self._end(sequence, ERROR, "error")

    def _admit(self) -> bool:
        """Start the prefill of one waiting request, and prefill one chunk of one sequence."""
        if self.waiting and len(self.running) < self.max_sequences:
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            sequence.status = PREFILL
            self._guard(sequence, lambda: self._open(sequence))
        for sequence in self.running:
            if not sequence.is_open and not sequence.is_suspended:
                self._guard(sequence, lambda s=sequence: self._prefill(s))
                return True
        return False

    def _open(self, sequence: Sequence) -> None:
        sequence.slot = self.models.target.open(id(sequence))
        sequence.output.detokeniser = detokeniser(self.models.tokenizer, sequence.committed, self.token_text.pieces)
        sequence.slot.prefill_states = PrefillHiddenStates(sequence.configured_method.captures(sequence.models))
        sequence.times.prefill_start = time.perf_counter()

    def _prefill(self, sequence: Sequence) -> None:
        """Prefill the next chunk of a sequence's prompt; after the last chunk, let the decoder open the sequence."""
        assert sequence.slot is not None
        decoder = self._decoder(sequence.configured_method)
        if not decoder.prefill(sequence):
            return
        decoder.open(sequence)
        sequence.slot.prefill_states = PrefillHiddenStates()
        sequence.status = RUNNING  # from here on `_end` must release its resources
        sequence.trace.header.prefill_s = time.perf_counter() - sequence.times.prefill_start
        sequence.times.origin = self.clock.mark()
        sequence.times.origin_s = time.perf_counter()

    def _end(self, sequence: Sequence, status: str, reason: str) -> None:
        """Close a sequence that has ended for any reason; its trace stays available."""
        t_end = time.perf_counter()  # saving the drafter's state is not part of the run
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.pending_actions.close(sequence)
        if sequence.is_open:
            decoder = self._decoder(sequence.configured_method)
            decoder.finish(sequence)
            close(decoder, sequence)
        if sequence.slot is not None:
            self.models.target.close(sequence.slot)
            sequence.slot = None
        footer = sequence.trace.footer
        footer.reason = reason
        if sequence.output.detokeniser is not None:
            try:
                with convert_panics():
                    sequence.output.detokeniser.flush()
            except Exception:  # the tokenizer itself may have failed: keep the text so far
                log.exception("the stop conditions of a generated text could not be checked")
            footer.text = sequence.output.text
        if sequence.times.origin_s is not None:
            footer.seconds = t_end - sequence.times.origin_s - sequence.pace.paused_s
        sequence.status = status
