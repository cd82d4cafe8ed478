"""Dataclasses with which a decoding method declares its paper's claims, benchmark settings, demo and trained head."""

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
"""Requirements of a method that stand for a draft model: with the target's vocabulary, or with any."""
NEEDS = {
    "drafter": "a draft model with the target's vocabulary",
    ANY_DRAFTER: "a draft model of any vocabulary",
    "sight": "a draft model that reads images",
    "pictures": "a target that reads images",
    "trees": "a target that verifies trees",
    MASKED_LM: "a masked-diffusion model as the target",
}
"""Texts for the requirements that a method may have besides the target, by requirement.

A requirement that is not listed here is a kind of trained head.
"""

BUNDLED = "bundled"
"""Name of the column for the bundled models on the board of paper claims."""
WRONG_SCALE, WRONG_SETTING, OUR_FAULT = "wrong scale", "wrong setting", "a fault of ours"
KINDS = (WRONG_SCALE, WRONG_SETTING, OUR_FAULT)
"""Possible reasons why a paper's claim is contradicted or undecided.

Models or samples are too small; settings differ from those of the paper; the workbench has a bug.
"""
AT_LEAST_ONE = (
    "a round emits at least one token, so one accepted draft token makes τ exceed 1; the paper gives no number to "
    "compare with"
)
"""Reason why the claim that τ is above 1 holds by construction (`Claim.by_construction`)."""
MIN_RETAINED = 0.95
"""Minimum number of correct answers with an approximate verifier, divided by the number with the exact verifier.

If an approximate verifier has fewer, its speed-up does not count.
"""
MAX_REASON_CHARS = 160
"""Maximum number of characters of the reason why a claim is contradicted or undecided; a table cell shows it."""
TOLERANCE = 0.25
"""Relative distance from the paper's value within which a measured value counts as equal."""
FOR_ANY_TARGET = "chat-heads"
"""Name of the training recipe of heads that `workbench train KIND --target MODEL` can train for any target."""
DEFAULT_AGREEMENT = "the head's most likely token equals the most likely token of the target's whole vocabulary"
"""Default definition of the agreement of a head with the target at a position of held-out text (`Head.agreement`)."""


def training_hint(kind: str, target: str) -> str:
    """Return a sentence with the command that trains heads of one kind (such as "medusa") for a target."""
    return f"Train a head: workbench train {kind} --target {target}."


def heads_in(needs: Sequence[str]) -> list[str]:
    """Return the kinds of trained heads among a method's requirements."""
    return [need for need in needs if need not in NEEDS]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Value measured with this workbench, with its interval and setting.

    Attributes:
        value: the measured value.
        low: lower end of the 95 % confidence interval, or of the observed range; equal to the value if it is exact.
        high: upper end of this interval or range.
        n: number of observations (prompts or rounds, as `setting` says).
        setting: models, prompts, sampling, and other conditions that are needed to interpret the value.
        answers: for an approximate verifier, the number of correct answers divided by the number with the exact
            verifier in the same runs: "value", and the ends "low" and "high" of its 95 % confidence interval. None: no
            answers were checked.
    """

    value: float
    low: float
    high: float
    n: int
    setting: str
    answers: Mapping[str, float] | None = field(default=None, hash=False)

    @property
    def keeps_answers(self) -> bool | None:
        """Return whether an approximate verifier retains at least the fraction `MIN_RETAINED` of correct answers.

        The result is None if the confidence interval contains `MIN_RETAINED`, or if no answers were checked.
        """
        if self.answers is None or self.answers["low"] < MIN_RETAINED <= self.answers["high"]:
            return None
        return self.answers["low"] >= MIN_RETAINED

    @classmethod
    def of(cls, found: Mapping[str, Any] | None, setting: str) -> Measurement:
        """Convert a measured value from `workbench.bench.statistics` to a `Measurement`.

        Args:
            found: dict with "value", "low", "high" and "n". If "low" or "high" is None, as for a single observation, it
                is set to the value. None: nothing was measured.
            setting: conditions of the measurement (`Measurement.setting`).

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
    """Claim of a paper about its method, such as a speed-up.

    Attributes:
        quantity: definition of the claimed quantity, with its denominator: "speed-up over plain decoding".
        setting: the paper's models, data and sampling.
        low: the paper's value, or the lower end of its range. None: the paper only states a direction.
        high: upper end of the paper's range; equal to `low` for a single value.
        source: paper, section or table, URL; "from memory" if the value was not checked in the paper.
        measure: function that measures the quantity with the functions of `workbench.bench.text_lab.TextLab`, or of
            `vision_lab.VisionLab` if `home` reads images; None if it cannot be measured here, and `lacks` says why.
        key: distinguishes the claims of one method; "main": the paper's main claim.
        neutral: value of the quantity if the method had no effect. The claim's direction is from this value to the
            paper's value; if the paper gives no value, the claim is that the quantity is larger.
        timed: whether nothing else may run on the machine during the measurement.
        lacks: capabilities that the workbench lacks for a full test of this claim; a value may be measured
            nevertheless.
        tolerance: relative distance from the paper's value within which a measured value counts as equal; claims that
            follow from a formula use a smaller one.
        home: bundled target for the measurement if no other is named. Claims about images are measured only on this
            target.
        matched: whether the claim is about an approximate verifier, so that its value counts only if correct answers
            are retained (`Measurement.answers`).
        by_construction: why the value follows from a definition or from the structure of the measurement, so that no
            measurement could support the claim; such a claim is not counted. Empty: a measurement can support the
            claim.
        explanation: date of a contradicted or inconclusive measurement on the bundled models, and its reason, written
            by a person. The reason has at most `MAX_REASON_CHARS` characters and begins with an entry of `KINDS`. It
            does not apply to measurements after this date.
        explanation_by_column: date and reason, as in `explanation`, for measurements in other columns of the claims
            board, by column.
        method: registry name of the method that declares the claim, filled in by the method. In the claim of a single
            drafter, tree builder, verifier or policy (`Part.claims`): the method with which the claim is measured.
        needs: requirements of the measurement besides the target. The method adds its requirements; a claim declares
            those of a method with which it is compared.
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
        """Return the key of the claim's measured value in one column of the claims board (table of paper claims)."""
        return self.name if column == BUNDLED else f"{self.name}@{column}"

    def reason(self, column: str = BUNDLED) -> tuple[str, str]:
        """Return the date and the reason of a contradicted or inconclusive measurement in a column of the claims board.

        Both are "" if no reason was written.
        """
        return self.explanation if column == BUNDLED else self.explanation_by_column.get(column, ("", ""))

    def command(self, column: str = BUNDLED) -> str:
        """Return the shell command that measures this claim again."""
        key = "" if self.key == "main" else f" --key {self.key}"
        return f"workbench claims --method {self.method}{key}{'' if column == BUNDLED else f' --target {column}'}"

    def target(self, column: str = BUNDLED) -> str:
        """Return the target on which a column of the claims board (table of paper claims) is measured."""
        return self.home if column == BUNDLED else column

    def missing_requirement(self, column: str = BUNDLED) -> str:
        """Return the requirement of the claim that the target of a board's column lacks, as text; "" if none.

        Only files are checked.
        """
        target = self.target(column)
        if self.home == VISION_TARGET and target != self.home:
            return "a method for images"
        if DRAFTERS & set(self.needs) and bundled_drafter(target) is None:
            return f"there is no draft model for {target} yet"
        missing = [kind for kind in heads_in(self.needs) if not heads_of(target, (kind,))]
        return f"there are no {missing[0]} heads for {target} yet" if missing else ""

    def to_wire(self) -> dict[str, Any]:
        """Return the claim as JSON data, without the function that measures it."""
        return {
            k: v
            for k, v in asdict(self).items()
            if k not in ("measure", "needs", "explanation", "explanation_by_column")
        } | {"name": self.name}


@dataclass(frozen=True, slots=True)
class Setting:
    """Row in the results of a benchmark suite: a method with some of its parameters set.

    Attributes:
        name: name of the row in the results.
        params: values of parameters that differ from the method's defaults.
        drafter: draft model to use, if the method needs one.
        line: name of the curve of τ against vision tokens, if the row is a point of such a curve (one compression
            ratio).
        main: whether the row represents the method in comparisons, in addition to its curve.
        method: registry name of the method that declares the row, filled in by the method.
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
"""Descriptions of the groups of methods (`Method.group`), by group. Lists show the groups in this order."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Demo of a method in the gallery: a suitable prompt, and the settings.

    Attributes:
        presets: names of prompts in `workbench.service.presets`. If a recording lacks something that the guided tour
            asks the reader to find, the next prompt is used.
        params: values of parameters of the method and of sampling; missing parameters have their defaults.
        scene: name of a bundled image that is described instead of a preset, or None.
        drafter: name of the draft model; None: the default one of the target.
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
        real: parameters for tests on a published model (SmolLM2).
        perfect: parameters for the test in which every draft must be accepted, because the draft model is a copy of the
            target, or because the head outputs the text that the target generates. None: there is no such test.
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
        idea: text for the head's model card about the head's inputs and source; may contain sizes of the net as fields
            in braces.
        recipe: training recipe, run by `workbench train RECIPE --set method=KIND`.
        folder_suffix: suffix of the name of the head's folder, after the target's name; empty: the kind of the head.
        agreement: text for the head's model card: definition of agreement between head and target at a position of
            held-out text. The learning curve shows the fraction of positions with agreement.
        train: for heads without a bundled recipe: function (options, report) that trains the head; `report` prints
            lines of text. It writes the head to `options.out` (`save_net`) and returns a `RunResult`. Its first
            parameter is annotated with the dataclass of its options; `recipe` is then a new name. `workbench train
            RECIPE` runs the function, and writes results and model card next to the weights.
    """

    net: type[Any]
    idea: str
    recipe: str = FOR_ANY_TARGET
    folder_suffix: str = ""
    agreement: str = DEFAULT_AGREEMENT
    train: Callable[..., Any] | None = None

    @property
    def is_for_any_target(self) -> bool:
        """Return whether `workbench train KIND --target MODEL` can train this kind of head for any target."""
        return self.recipe == FOR_ANY_TARGET

    @property
    def kind(self) -> str:
        """Return the kind of the head: its name in `config.json`, in `needs` of methods, and in training options."""
        return self.net.kind

    def folder(self, target: str) -> str:
        """Return the name of the head's folder, such as "vision-msd" for the target "vision-target"."""
        return f"{target.removesuffix('-target')}-{self.folder_suffix or self.kind}"

    def build(self, width: int, options: Mapping[str, Any]) -> Any:
        """Create an untrained net of the head.

        Args:
            width: hidden size of the target.
            options: options by name; those that the net's constructor does not accept are ignored.
        """
        accepted = inspect.signature(self.net).parameters
        return self.net(width, **{name: value for name, value in options.items() if name in accepted})
