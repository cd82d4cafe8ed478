"""Dataclasses that a method declares besides its parts: claims of its paper, benchmark suites, demo, trained head."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.models.bundle import DEFAULT_TARGET, VISION_TARGET
from workbench.models.masked_lm import MASKED_LM
from workbench.models.names import ANY_DRAFTER as ANY_DRAFTER
from workbench.models.names import bundled_drafter, heads_of

DRAFTERS = frozenset({"drafter", ANY_DRAFTER})
"""Requirements that are met by a draft model."""
NEEDS = {
    "drafter": "a draft model with the target's vocabulary",
    ANY_DRAFTER: "a draft model of any vocabulary",
    "sight": "a draft model that reads images",
    "pictures": "a target that reads images",
    "trees": "a target that verifies trees",
    MASKED_LM: "a masked-diffusion model as the target",
}
"""Requirement of a method besides the target → text. Any requirement not listed here is a kind of trained head."""

BUNDLED = "bundled"
"""Name of the claims board's column for the bundled models."""
WRONG_SCALE, WRONG_SETTING, OUR_FAULT = "wrong scale", "wrong setting", "a fault of ours"
KINDS = (WRONG_SCALE, WRONG_SETTING, OUR_FAULT)
"""Possible reasons for a contradicted or undecided claim: models or samples are too small; settings differ from the
paper's; the workbench has a bug."""
AT_LEAST_ONE = "a round emits at least one token, so one accepted draft token makes τ exceed 1; the paper gives "
"no number to compare with"
"""Reason why a claim that τ is above 1, without a figure, holds by construction (`Claim.by_construction`)."""
MIN_RETAINED = 0.95
"""Minimum share of the exact rule's correct answers that an approximate rule must retain so that its speed-up
counts."""
MAX_REASON_CHARS = 160
"""Maximum number of characters of a reason, because it is shown in a table cell."""
TOLERANCE = 0.25
"""Relative distance from the paper's figure within which a measured figure counts as equal."""
FOR_ANY_TARGET = "chat-heads"
"""Name of the training recipe for heads that `workbench train KIND --target MODEL` trains for any target."""
DEFAULT_AGREEMENT = "the head's most likely token equals the most likely token of the target's whole vocabulary"
"""Default definition of agreement between head and target at a position of held-out text: see `Head.agreement`."""


def training_hint(kind: str, target: str) -> str:
    """Return a sentence with the command that trains heads of one kind (such as "medusa") for a target."""
    return f"Train a head: workbench train {kind} --target {target}."


def heads_in(needs: Sequence[str]) -> list[str]:
    """Return the kinds of trained heads among a method's requirements."""
    return [need for need in needs if need not in NEEDS]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A figure measured with this workbench.

    Attributes:
        value: the figure.
        low: lower end of the figure's 95 % interval, or of the observed range; equal to the value if it is exact.
        high: upper end of this interval or range.
        n: number of observations (prompts, rounds: `setting` says which).
        setting: models, prompts, sampling, and anything else needed to interpret the figure.
        answers: for an approximate rule, ratio of its number of correct answers to the number with the exact rule in
            the same runs: "value", and the ends "low" and "high" of its 95 % interval. None: no answers were checked.
    """

    value: float
    low: float
    high: float
    n: int
    setting: str
    answers: Mapping[str, float] | None = field(default=None, hash=False)

    @property
    def keeps_answers(self) -> bool | None:
        """Return whether the rule retains at least the share `MIN_RETAINED` of the exact rule's correct answers.

        The result is None if the interval contains `MIN_RETAINED`, or if no answers were checked.
        """
        if self.answers is None or self.answers["low"] < MIN_RETAINED <= self.answers["high"]:
            return None
        return self.answers["low"] >= MIN_RETAINED

    @classmethod
    def of(cls, found: Mapping[str, Any] | None, setting: str) -> Measurement:
        """Convert a figure of `workbench.bench.statistics` to a `Measurement`.

        Args:
            found: the figure, with "value", "low", "high" and "n". If "low" or "high" is None, as for a single
                observation, it is set to the value. None: nothing was measured.
            setting: see `Measurement.setting`.

        Raises:
            WorkbenchError: nothing was measured, or a number is not finite because there were too few observations for
                an interval.
        """
        if found is None:
            raise WorkbenchError("The measurement has no observations.", "Measure more prompts.")
        low, high = (found["value"] if found[end] is None else found[end] for end in ("low", "high"))
        if not all(map(math.isfinite, (found["value"], low, high))):
            raise WorkbenchError(
                f"The measurement has too few observations for a confidence interval ({setting}).",
                "Measure more prompts.",
            )
        return cls(found["value"], low, high, found["n"], setting)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a paper about its method.

    Attributes:
        quantity: definition of the figure, with its denominator: "speed-up over plain decoding".
        setting: the paper's models, data and sampling.
        low: the paper's figure; with `high` a range. None: the paper only states a direction.
        high: upper end of the paper's range; equal to `low` for one figure.
        source: paper, section or table, address; "from memory" if the figure was not checked in the paper.
        measure: function that measures the quantity with the functions of `workbench.bench.text_lab.TextLab`, or of
            `vision_lab.VisionLab` if `home` reads images; None if it cannot be measured here, and `lacks` says why.
        key: distinguishes the claims of one method; "main": the paper's main claim.
        neutral: value of the quantity if the method had no effect. The claim's direction is from this value to the
            paper's figure; without a figure, the claim is that the quantity is larger.
        timed: whether nothing else may run on the machine during the measurement.
        lacks: capabilities that the workbench lacks for a full test of this claim; a figure may be measured
            nevertheless.
        tolerance: relative distance from the figure that counts as equal; closed forms use a smaller one.
        home: bundled target for the measurement unless another is named. Claims about images are measured only on this
            target.
        matched: whether the claim is about an approximate rule, so that its figure counts only if correct answers are
            retained (`Measurement.answers`).
        by_construction: why the figure follows from a definition or from the structure of the measurement, so that no
            measurement could support the claim; such a claim is not counted. Empty: a measurement can support it.
        explanation: date and reason of a contradicted or inconclusive figure on the bundled models, written by a
            person. The reason has at most `MAX_REASON_CHARS` characters and begins with one of `KINDS`. It does not
            apply to figures measured after this date.
        explanation_by_column: column name → date and reason, as in `explanation`, for a figure in another column.
        method: registry name of the method that declares the claim, filled in by the method. In a part's claim
            (`Part.claims`): the method with which the claim is measured.
        needs: requirements besides the target. The method fills in its own; a claim declares those of a compared
            method.
    """

    quantity: str
    setting: str
    low: float | None
    high: float | None
    source: str
    measure: Callable[[Any], Measurement] | None
    key: str = "main"
    neutral: float = 1.0
    timed: bool = False
    lacks: str = ""
    tolerance: float = TOLERANCE
    home: str = DEFAULT_TARGET
    matched: bool = False
    by_construction: str = ""
    explanation: tuple[str, str] = ("", "")
    explanation_by_column: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)
    method: str = ""
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the claim: "method/key"."""
        return f"{self.method}/{self.key}"

    def row(self, column: str = BUNDLED) -> str:
        """Return the key of the claim's figure in one column of the claims board."""
        return self.name if column == BUNDLED else f"{self.name}@{column}"

    def reason(self, column: str = BUNDLED) -> tuple[str, str]:
        """Return (date, reason) that explain a column's contradicted or inconclusive figure; ("", "") if absent."""
        return self.explanation if column == BUNDLED else self.explanation_by_column.get(column, ("", ""))

    def command(self, column: str = BUNDLED) -> str:
        """Return the shell command that measures this claim again."""
        key = "" if self.key == "main" else f" --key {self.key}"
        return f"workbench claims --method {self.method}{key}{'' if column == BUNDLED else f' --target {column}'}"

    def target(self, column: str = BUNDLED) -> str:
        """Return the target on which a column's figure is measured."""
        return self.home if column == BUNDLED else column

    def missing_requirement(self, column: str = BUNDLED) -> str:
        """Return in a few words which requirement a column's target does not meet; "" if none. Checks only files."""
        target = self.target(column)
        if self.home == VISION_TARGET and target != self.home:
            return "a method for images"
        if DRAFTERS & set(self.needs) and bundled_drafter(target) is None:
            return f"there is no draft model for {target} yet"
        missing = [kind for kind in heads_in(self.needs) if not heads_of(target, (kind,))]
        return f"there are no {missing[0]} heads for {target} yet" if missing else ""

    def to_wire(self) -> dict[str, Any]:
        """Return the claim as JSON values, without the function."""
        return {
            k: v
            for k, v in asdict(self).items()
            if k not in ("measure", "needs", "explanation", "explanation_by_column")
        } | {"name": self.name}


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of a benchmark suite: a method with some of its parameters set.

    Attributes:
        name: name of the row.
        params: parameters that differ from the method's defaults.
        drafter: draft model to use, if the method needs one.
        line: name of the curve of τ against vision tokens, if the row is one compression ratio of a compressor.
        main: whether the row represents the method in comparisons, in addition to its curve.
        method: registry name of the method that declares it, filled in by the method.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    drafter: str | None = None
    line: str | None = None
    main: bool = True
    method: str = ""


GROUPS: Mapping[str, str] = {
    "Draft model": "A small draft model, with the target's vocabulary or another one.",
    "Trained heads": "Small layers, trained for the target, draft from the target's hidden states.",
    "The text itself": "Drafts are copied from the prompt, the output or a datastore.",
    "The target itself": "The target itself drafts, with fewer of its layers or with its own earlier predictions.",
    "Images": "Drafters of vision-language targets.",
    "No draft": "Plain decoding, and decoders that draft nothing.",
    "Simulation": "Simulated drafters, which use information that no real drafter has.",
}
"""Group of methods (`Method.group`) → sentence that describes it. Lists show the groups in this order."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The gallery's demo of a method: a suitable prompt, and the settings.

    Attributes:
        presets: names of prompts in `workbench.service.presets`. If a recording lacks something that the guided tour
            asks the reader to find, the next prompt is used.
        params: parameters of the method and of sampling; missing ones have their defaults.
        scene: name of a bundled image that is described instead of a preset, or None.
        drafter: draft model instead of the target's own, or None.
        target: bundled target that the method needs; None: the target given to the command.
    """

    presets: tuple[str, ...] = ("story", "chat", "code")
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    scene: str | None = None
    drafter: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Testing:
    """Facts about a method that the common tests of all methods need.

    Attributes:
        short: parameters for drafts of two levels, with which exact distributions are tested.
        real: parameters for tests on a real model (SmolLM2).
        perfect: parameters for the test in which every draft must be accepted, because the draft model is a copy of the
            target or the head outputs the target's own text. None: there is no such test.
        no_perfect_reason: why there is no such test, and which test replaces it.
    """

    short: Mapping[str, Any] = field(default_factory=dict, hash=False)
    real: Mapping[str, Any] = field(default_factory=dict, hash=False)
    perfect: Mapping[str, Any] | None = field(default=None, hash=False)
    no_perfect_reason: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """The trained head of a method's drafter: its class, its training, and its model card.

    Attributes:
        net: class of the head (`workbench.methods.common.trained_net.TrainedNet`).
        idea: text for the head's model card: the head's inputs and source; may contain the net's sizes as fields in
            braces.
        recipe: training recipe, run by `workbench train RECIPE --set method=KIND`.
        folder_suffix: last part of the name of the head's folder, after the target's name; empty: the head's kind.
        agreement: text for the head's model card: definition of agreement between head and target at a position of
            held-out text. The learning curve shows the share of positions with agreement.
        train: for heads without a bundled recipe: a function of options and a `report` function for lines of text. It
            writes the head to `options.out` (`save_net`) and returns a `RunResult`. Its first parameter is annotated
            with the dataclass of its options; `recipe` is then a new name: `workbench train RECIPE` runs the function,
            and writes figures and model card next to the weights.
    """

    net: type[Any]
    idea: str
    recipe: str = FOR_ANY_TARGET
    folder_suffix: str = ""
    agreement: str = DEFAULT_AGREEMENT
    train: Callable[..., Any] | None = None

    @property
    def is_for_any_target(self) -> bool:
        """Return whether `workbench train KIND --target MODEL` trains the head for any target: see `training_hint`."""
        return self.recipe == FOR_ANY_TARGET

    @property
    def kind(self) -> str:
        """Return the kind of the head: its name in `config.json`, in `needs` of methods, and in training options."""
        return self.net.kind

    def folder(self, target: str) -> str:
        """Return the name of the head's folder: "vision-msd" for the target "vision-target"."""
        return f"{target.removesuffix('-target')}-{self.folder_suffix or self.kind}"

    def build(self, width: int, options: Mapping[str, Any]) -> Any:
        """Create an untrained net.

        Args:
            width: hidden size of the target.
            options: options by name; those that the net's constructor does not accept are ignored.
        """
        accepted = inspect.signature(self.net).parameters
        return self.net(width, **{name: value for name, value in options.items() if name in accepted})
