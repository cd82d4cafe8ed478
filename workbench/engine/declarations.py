"""What a method declares besides its parts, as plain data: its paper's claims, suites, a recording, a trained head."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.models.bundle import DEFAULT_TARGET, VISION_TARGET
from workbench.models.names import ANY_DRAFTER as ANY_DRAFTER
from workbench.models.names import heads_of, own_drafter

DRAFTERS = frozenset({"drafter", ANY_DRAFTER})
"""Needs that a draft model serves."""
NEEDS = {
    "drafter": "a draft model with the target's vocabulary",
    ANY_DRAFTER: "a draft model of any vocabulary",
    "sight": "a draft model that reads images",
    "pictures": "a target that reads images",
    "trees": "a target that verifies trees",
}
"""Needs of a drafter besides the target, in words; any other need is the kind of a trained head."""

BUNDLED = "bundled"
"""The column of the claims board for the bundled models that a claim is made for."""
WRONG_SCALE, WRONG_SETTING, OUR_FAULT = "wrong scale", "wrong setting", "a fault of ours"
KINDS = (WRONG_SCALE, WRONG_SETTING, OUR_FAULT)
"""Why a claim is contradicted or undecided: models or samples are too small; something is set otherwise than in the
paper; a fault."""
KEPT = 0.95
"""Share of the exact rule's right answers that an approximate rule has to keep before its gain is judged."""
LONGEST_WHY = 160
"""Characters of a reason at most: it stands in a cell of a table."""
TOLERANCE = 0.25
"""Relative distance from the paper's figure within which a measured one counts as the same size."""
AGREES = "its likeliest token is the target's, of all tokens"
"""What counts at a place of held-out text where a drafter that is trained says nothing else: see `Head.agrees`."""


def heads_in(needs: Sequence[str]) -> list[str]:
    """The kinds of trained heads among what a method needs."""
    return [need for need in needs if need not in NEEDS]


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure that was measured here.

    Attributes:
        value: the figure.
        low: lower end of its 95 % interval, or of what was seen; equal to the value where it is exact.
        high: upper end.
        n: observations it rests on (prompts, rounds: `setting` says which).
        setting: models, prompts, sampling, and what else one must know to read the figure.
        answers: of an approximate rule, answers that are right in the same runs / those of the exact rule: "value", and
            the ends "low" and "high" of its 95 % interval. None: no answers were checked.
    """

    value: float
    low: float
    high: float
    n: int
    setting: str
    answers: Mapping[str, float] | None = field(default=None, hash=False)

    @property
    def keeps_answers(self) -> bool | None:
        """Whether at least `KEPT` of the right answers are kept; None: the interval contains that share."""
        if self.answers is None or self.answers["low"] < KEPT <= self.answers["high"]:
            return None
        return self.answers["low"] >= KEPT

    @classmethod
    def of(cls, found: Mapping[str, Any] | None, setting: str) -> Measured:
        """A figure of `workbench.bench.statistics`; one observation is its own interval.

        Raises:
            WorkbenchError: nothing was measured; or too little for an interval, as where a bootstrap's sample
                divides by zero.
        """
        if found is None:
            raise WorkbenchError("There was nothing to measure.", "Measure more prompts.")
        low, high = (found["value"] if found[end] is None else found[end] for end in ("low", "high"))
        if not all(map(math.isfinite, (found["value"], low, high))):
            raise WorkbenchError(f"There was too little data to compare ({setting}).", "Measure more prompts.")
        return cls(found["value"], low, high, found["n"], setting)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a paper about its method.

    Attributes:
        quantity: what the figure is, with its denominator: "speed-up over plain decoding".
        setting: the paper's models, data and sampling.
        low: the paper's figure; with `high` a range. None: the paper only says which way it goes.
        high: upper end of the paper's range; equal to `low` for one figure.
        source: paper, section or table, address; "recalled" where the figure was not read again.
        measure: measures the quantity in a laboratory of this method: `workbench.bench.text_lab.TextLab`, or
            `vision_lab.VisionLab` where `home` reads pictures; None where that cannot be done here, and `lacks` says
            why.
        key: tells the claims of one method apart; "main" is the paper's own headline.
        neutral: value of the quantity if the method did nothing. A claim points from here to its figure; without a
            figure it points upward.
        timed: whether the measurement needs the machine to itself.
        lacks: what the workbench lacks to test this claim as it is meant; a figure may be measured nevertheless.
        tolerance: relative distance from the figure that counts as the same size; closed forms are held to less.
        home: the bundled target that it is measured on unless another is named. Claims about pictures are measured
            there alone, at a scale of their own.
        matched: whether it is about an approximate rule, so that its figure is judged only where answers are kept
            (`Measured.answers`).
        by_construction: why its figure follows from a definition or from the structure of what is measured, so that no
            measurement could speak for the paper; such a row is not counted. Empty: it can fail.
        why: where its figure on the bundled models is contradicted or inconclusive and that was looked into, by
            people: the date of that figure, and the reason, at most `LONGEST_WHY` characters, which begins with one of
            `KINDS`. A figure that was measured since has no reason yet.
        why_on: the same of its figures in other columns, by the column's name.
        method: registry name of the method that declares it, which fills it in; in a part (`Part.claims`) the method
            that it is measured with.
        needs: what is taken besides the target, the method's own needs filled in: those of another method beside it.
    """

    quantity: str
    setting: str
    low: float | None
    high: float | None
    source: str
    measure: Callable[[Any], Measured] | None
    key: str = "main"
    neutral: float = 1.0
    timed: bool = False
    lacks: str = ""
    tolerance: float = TOLERANCE
    home: str = DEFAULT_TARGET
    matched: bool = False
    by_construction: str = ""
    why: tuple[str, str] = ("", "")
    why_on: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)
    method: str = ""
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Method and key."""
        return f"{self.method}/{self.key}"

    def row(self, column: str = BUNDLED) -> str:
        """The key of its figure on the board: every column has its own, so that none overwrites another's."""
        return self.name if column == BUNDLED else f"{self.name}@{column}"

    def reason(self, column: str = BUNDLED) -> tuple[str, str]:
        """`why` of a column's figure."""
        return self.why if column == BUNDLED else self.why_on.get(column, ("", ""))

    def command(self, column: str = BUNDLED) -> str:
        """What measures this claim again."""
        key = "" if self.key == "main" else f" --key {self.key}"
        return f"workbench claims --method {self.method}{key}{'' if column == BUNDLED else f' --target {column}'}"

    def target(self, column: str = BUNDLED) -> str:
        """The target that a column's figure is measured on."""
        return self.home if column == BUNDLED else column

    def lacking(self, column: str = BUNDLED) -> str:
        """What there is not yet to measure it there, in a word and from files alone; empty where nothing is missing."""
        target = self.target(column)
        if self.home == VISION_TARGET and target != self.home:
            return "a method for images"
        if DRAFTERS & set(self.needs) and own_drafter(target) is None:
            return f"no draft model for {target} yet"
        missing = [kind for kind in heads_in(self.needs) if not heads_of(target, (kind,))]
        return f"no {missing[0]} heads for {target} yet" if missing else ""

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON, without the function."""
        return {k: v for k, v in asdict(self).items() if k not in ("measure", "needs", "why", "why_on")} | {
            "name": self.name
        }


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of a suite: the method with some parameters.

    Attributes:
        name: of the row.
        params: beyond the method's defaults.
        drafter: the draft model it runs with, where it takes one.
        line: of the curve τ against vision tokens, where several strengths of one compressor make one.
        main: whether it stands for the method beside other methods, and not only on its curve.
        method: registry name of the method that declares it, which fills it in.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    drafter: str | None = None
    line: str | None = None
    main: bool = True
    method: str = ""


@dataclass(frozen=True, slots=True)
class Recording:
    """What the gallery's recording of a method shows: a prompt that suits its idea, and the settings.

    Attributes:
        presets: names of prompts in `workbench.service.presets`; the next one is taken where a recording does not
            hold what the guided tour asks its learner to find.
        params: of the method and of sampling; what is missing has its default.
        scene: name of a bundled picture that is described instead of a preset, or None.
        drafter: draft model in place of the target's own, or None.
    """

    presets: tuple[str, ...] = ("story", "chat", "code")
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    scene: str | None = None
    drafter: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The trained net that a method drafts with: what it is, how it is trained, and what its card says of it.

    Attributes:
        net: its class (`workbench.methods.drafters.trained.TrainedNet`).
        idea: for its model card: what it reads, and whose it is; may name the net's sizes in braces.
        recipe: what trains it, by `workbench train RECIPE --set method=KIND`.
        settings: options of that recipe that it takes otherwise, where nobody asks for more.
        options: options of that recipe which are this kind's and few others': the one command that makes such heads
            for any target takes them, too.
        called: the last part of its folder's name, behind that of its target; empty: its kind.
        agrees: for its model card: what counts at a place of held-out text, for the share that its learning curve
            shows.
        train: where no recipe of the bundled models trains it: a function of options and a `report` of lines that
            writes it to `options.out` (`save_net`) and returns a `RunResult`. Its first parameter is annotated with the
            dataclass of its options; `recipe` is then a name of its own, by which `workbench train` runs it, and writes
            figures and card beside the weights.
    """

    net: type[Any]
    idea: str
    recipe: str = "chat-heads"
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    options: tuple[str, ...] = ()
    called: str = ""
    agrees: str = AGREES
    train: Callable[..., Any] | None = None

    @property
    def kind(self) -> str:
        """What names it in `config.json`, among what a part needs, and as `method` of its recipe."""
        return self.net.kind

    def folder(self, target: str) -> str:
        """The name of its folder: "vision-msd" for the target "vision-target"."""
        return f"{target.removesuffix('-target')}-{self.called or self.kind}"

    def settle(self, options: Any) -> Any:
        """Options of its recipe with its own `settings`, where nobody chose otherwise."""
        free = {name for name in self.settings if getattr(options, name) == getattr(type(options), name)}
        return replace(options, **{name: self.settings[name] for name in free})

    def build(self, width: int, options: Mapping[str, Any]) -> Any:
        """A fresh net for a target's hidden size, with those of these options that its constructor takes."""
        taken = inspect.signature(self.net).parameters
        return self.net(width, **{name: value for name, value in options.items() if name in taken})
