"""A request as a user states it, and the row that runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from workbench.core.draw import Draw
from workbench.core.rejection import Reason
from workbench.core.sampling import SamplingParams
from workbench.engine.configured import Choice, Chosen
from workbench.engine.detokenise import Detokeniser
from workbench.engine.draft_plan import Plan
from workbench.engine.drafter_state import Left
from workbench.engine.pacing import Pace
from workbench.engine.pending_actions import Errands
from workbench.engine.request_options import Extras, Scored
from workbench.engine.settings import Ask, Settings, Swap
from workbench.kernels.device_clock import Mark
from workbench.kernels.segment import Slot
from workbench.trace.events import Change, Round, Trace

if TYPE_CHECKING:
    from PIL.Image import Image

    from workbench.models.loading import Models

QUEUED, PREFILL, RUNNING, PAUSED = "queued", "prefill", "running", "paused"
FINISHED, CANCELLED, ERROR = "finished", "cancelled", "error"
ENDED = (FINISHED, CANCELLED, ERROR)


@dataclass(slots=True)
class Request:
    """What to generate.

    Attributes:
        prompt: token ids, at least one; or text, which the target's tokenizer turns into ids as it stands.
        method: a registered method, or one with parameters set.
        sampling: temperature, filters, penalties, processors.
        max_new_tokens: end after this many.
        seed: decides every random number of the run.
        stop: strings that end the text; it is cut before the earliest of those that a token completes.
        stop_at_eos: whether the model's end-of-text token ends the text.
        stop_when: asked after every token with all tokens so far, prompt included; true ends the text there.
        images: what a processor returned for prompt and pictures (`input_ids`, `pixel_values`, …), for vision-language
            targets; `prompt` is then for drafters that read the pictures by a processor of their own.
        pictures: the pictures themselves, RGB, for the trace and for such drafters; see `vision.reading.read`.
        on_round: called in the engine's thread after every round; must return at once.
        paused: start paused, after prefill.
        pace: tokens a second at which rounds are held back so that people can follow; 0: they are not. See `Pace`.
        extras: what clients of servers ask for beyond that.
        models: another drafter or other heads for the engine's target; the engine's own by default.
        swaps: pictures that were changed in mid-run, each with the number of tokens generated before; the engine
            writes it, whoever explains the text reads it.
        memory: a drafter's state, as `keeping.save` writes it, that the drafter of the first round takes in.
        keeps: the row leaves its drafter's state behind when it ends: see `Row.left`.
        scores: log-probabilities of the emitted tokens, where `extras` ask for them; the engine writes it.
        prompt_scores: the same for the prompt, from its second token on.
    """

    prompt: Sequence[int] | str
    method: Choice | Chosen
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int = 128
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_at_eos: bool = True
    stop_when: Callable[[list[int]], bool] | None = None
    images: dict[str, Tensor] | None = None
    pictures: tuple[Image, ...] = ()
    on_round: Callable[[Round], None] | None = None
    paused: bool = False
    pace: float = 0.0
    extras: Extras = field(default_factory=Extras)
    models: Models | None = None
    swaps: list[tuple[int, Swap]] = field(default_factory=list)
    memory: bytes | None = None
    keeps: bool = False
    scores: list[Scored] = field(default_factory=list)
    prompt_scores: list[Scored] = field(default_factory=list)

    def configured(self) -> Chosen:
        """The method with all parameters decided."""
        return self.method.with_params() if isinstance(self.method, Choice) else self.method


class Row:
    """A request while it runs. The engine's thread owns everything but the controls at the end of the class."""

    def __init__(self, request: Request, prompt: list[int], models: Models) -> None:
        self.request = request
        self.models = models
        self.configured = request.configured()
        eos = models.eos if request.stop_at_eos else ()  # one that ends nothing is barred nowhere
        self.sampling = request.extras.shaped(request.sampling, len(prompt), eos)
        self.draw = Draw(request.seed)
        self.prompt_length = len(prompt)
        self.committed: list[int] = prompt
        self.max_new_tokens = request.max_new_tokens
        self.slot: Slot | None = None
        self.images = request.images  # what the target has read
        self.pictures = request.pictures  # what the drafter is shown
        self.vision: dict[str, Any] = {}  # what the drafter says of what it sees; see `vision.showing.see`
        self.vision_said: dict[str, Any] = {}  # what of it is in the trace already
        self.swapped: list[Swap] = []  # pictures that the trace does not know yet
        self.state: Any = None
        self.learners: dict[Hashable, Any] = {}  # drafters that watch, by their memories' names; see `learning.Learner`
        self.silenced = ""  # why the drafter in force drafts nothing more; "" while it does
        self.verifier_state: Any = None
        self.policy_state: Any = None
        self.grower_state: Any = None
        self.taps: set[int] = set()  # layers of the target whose streams the method in force reads
        self.plan = Plan(0)
        self.status = QUEUED
        self.primed = False
        self.trace: Trace | None = None
        self.detokeniser: Detokeniser | None = None
        self.origin: Mark | None = None
        self.signals: dict[str, float] = {}
        self.notes: list[str] = []
        self.changes: list[Change] = []
        self.revoked: list[int] = []  # positions taken back since the last round that was recorded
        self.undecided: list[Any] = []  # the last of `committed`, which may be taken back; see `holding.Held`
        self.decided = 0  # the first of these that are final from the next round on
        self.tries = 0  # how often tokens were taken back since the last that became final
        self.beside: list[tuple[str, Mark, Mark, str]] = []  # what ran beside the round: phase, start, end, lane
        self.uniform: list[float] | None = None
        self.reason: Reason | None = None
        self.pays_less = False  # whether what the round is said to pay is the most it may be
        self.raw: Tensor | None = None  # the target's own logits of the round, where log-probabilities are wanted
        self.cut_text_at: int | None = None
        self.prefill_start = 0.0
        self.origin_s: float | None = None
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._changes: list[Ask] = []
        self.errands = Errands()
        self.left: Left | None = None  # what of its drafter it has left behind
        self._cancelled = False
        self._steps = 0
        self._paused = request.paused
        self.pace = Pace(request.pace)
        self.held = False  # stands still while another row has the device to itself

    @property
    def place(self) -> Slot:
        """The row's place in the target's cache, which it has from prefill to its end."""
        assert self.slot is not None
        return self.slot

    @property
    def drafter(self) -> Any:
        """The `Drafter` in force."""
        return self.configured.drafter

    @property
    def verifier(self) -> Any:
        """The `Verifier` in force."""
        return self.configured.verifier

    @property
    def policy(self) -> Any:
        """The `Policy` in force."""
        return self.configured.policy

    @property
    def n_new(self) -> int:
        """Tokens generated so far."""
        return len(self.committed) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        return self.max_new_tokens - self.n_new

    def say(self, note: str) -> None:
        """Warn: in the coming round's record, and in the run's, where a sentence stands once."""
        assert self.trace is not None
        self.notes.append(note)
        if not self.has_said(note):
            self.trace.footer.warnings.append(note)

    def has_said(self, note: str) -> bool:
        """Whether the run's record has this sentence."""
        assert self.trace is not None
        return note in self.trace.footer.warnings

    # -- controls, from any thread; they act between rounds ------------------------------------------------------

    def change(
        self,
        method: Choice | None = None,
        params: dict[str, Any] | None = None,
        sampling: SamplingParams | None = None,
        models: Models | None = None,
        swap: Swap | None = None,
    ) -> None:
        """Switch the method, some of its parameters, the sampling, draft model or pictures, from the next round on."""
        with self._lock:
            self._changes.append(Ask(method, dict(params or {}), sampling, models, swap))

    def pause(self) -> None:
        """Stop before the next round; nothing is lost."""
        with self._lock:
            self._paused, self._steps = True, 0

    def resume(self) -> None:
        """Go on."""
        with self._lock:
            self._paused = False

    def step(self) -> None:
        """Run one round, then pause."""
        with self._lock:
            self._paused = True
            self._steps += 1

    def cancel(self) -> None:
        """End before the next round; the trace is kept."""
        with self._lock:
            self._cancelled = True

    @property
    def is_cancelled(self) -> bool:
        """Whether the run was asked to end."""
        return self._cancelled

    def may_run(self) -> bool:
        """Whether a round may start now; uses up one step when paused. A step is not held back by the run's pace."""
        with self._lock:
            may = not self._paused or self._steps > 0
            self.status = RUNNING if may else PAUSED
            if not may or (not self._paused and self.pace.left_s > 0):
                self.pace.stand(True)
                return False
            if self.held:
                return False
            self.pace.stand(False)
            if self._paused:
                self._steps -= 1
            return True

    @property
    def due_s(self) -> float | None:
        """Seconds until the row's pace lets it go on; None where it is not that which keeps it."""
        return self.pace.left_s if self.primed and self.status == RUNNING and not self.held else None

    def take_changes(self) -> list[Ask]:
        """The changes asked for from the coming round on."""
        with self._lock:
            taken, self._changes = self._changes, []
        return taken

    def asked(self) -> Settings:
        """What the row will run with once the changes asked for so far are in force."""
        with self._lock:
            return self.settings_after(self._changes)

    def settings_after(self, asks: Sequence[Ask]) -> Settings:
        """The row's settings with changes taken in; those that cannot be are left out, and say why."""
        settings = Settings(self.configured, self.sampling, self.models, [])
        for ask in asks:
            settings = settings.with_(ask)
        return settings
