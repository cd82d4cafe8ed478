"""Events of a generation as plain data, convertible to and from JSON.

A trace starts with one `Header`, has one `Round` per verification and ends with one `Footer`. All views, statistics and
exports are computed from these events alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from workbench.core.rules import Rule
from workbench.trace.images import PromptImage
from workbench.trace.nodes import Nodes, Probe, TopTokens, TreeExplanationRecord
from workbench.trace.tokens import BONUS, PLAIN, EmittedToken, TentativeTokenRecord

SCHEMA_VERSION = 6
"""Version of the trace format. Fields of later versions are empty in older traces.

1: text. 2: images (`Header.pictures`, `Round.vision`, `Trace.attribution`). 3: acceptance rule of each node
(`Header.rules`, `Nodes.rule`, `Nodes.inputs`); before, typical acceptance wrote its score into `Nodes.accept`.
4: tentative tokens (`Round.placed`, `Round.revoked`). 5: probe positions (`Round.probes`). 6: the tree builder's rules
(`Round.grown`)."""

ABORT_REASONS = ("cancelled", "lease", "limit", "memory")
"""Reasons why a run was stopped: the user stopped it; its page was closed or stopped polling; a server limit was
reached; its trace filled the memory reserved for traces."""


def _fields(item: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance as a dict, without converting or copying their values.

    `dataclasses.asdict` would copy nested values, which takes milliseconds.
    """
    return {name: getattr(item, name) for name in item.__dataclass_fields__}


@dataclass(slots=True)
class Phase:
    """Interval of wall-clock time that a round spent on one activity, shown in a lane of the timeline ("verify").

    Times are in seconds since the start of the generation, without pauses.
    """

    name: str
    start_s: float
    end_s: float
    lane: str = "device"


@dataclass(slots=True)
class Change:
    """Change of a setting by the user between two rounds. It applies from the round on that lists it in `changes`."""

    name: str
    before: Any
    after: Any


@dataclass(slots=True)
class Round:
    """One draft–verify round, or one round of another decoding scheme (with an empty draft tree).

    Other decoding schemes may commit tentative tokens at any positions after the final text and revoke earlier
    tentative tokens; `list_tentative_tokens` returns the tentative tokens after a round. A verifier that decides on
    whole reasoning steps does the same: accepted tokens are `placed` until the step is decided. Only the final tokens
    in `emitted` form the text.

    Attributes:
        index: number of the round, from 0.
        method: registry name of the method.
        params: all method parameters and sampling parameters of the round.
        nodes: draft tree with the result of its verification.
        path: accepted nodes, from the root down.
        bonus: id of the token that the target added; None if the text ended inside the accepted path, or if the token
            is tentative.
        bonus_kind: "corrected", "bonus", "plain" or None.
        emitted: tokens that became final in this round, in order (cut at the end of the text). Tentative tokens of
            earlier rounds that became final are included, without their `node`.
        top_p: the target's most likely next tokens after the root (entry 0) and each node (entry i+1); [] if not
            recorded.
        top_q: the drafter's most likely next tokens at the same positions; None where the drafter has no distribution.
        ranking: the drafter's most likely next tokens at the same positions, for a tree whose drafts were not sampled,
            such as a greedy tree; None at positions where they are not known, [] if no position has any or `top_q` has
            them.
        entropy: the target's entropy in nats after the root and after each node [N+1]; [] if not recorded.
        phases: start and end of the phases draft, verify, judge and commit.
        started_s: start of the round in seconds since the start of the generation, without pauses.
        seconds: wall time of the round.
        draft_s: time in forward passes of the drafter; passes shared by a batch count in full.
        verify_s: time in the target's verification pass; a pass shared by a batch counts in full.
        overhead_s: wall time of the round outside all model forward passes of the batch (host overhead).
        waited_s: time in forward passes that did not include this sequence.
        shared: this sequence's share of shared forward passes, so that sums over the batch give the elapsed time:
            `rows` (sequences verified together), `draft_s`, `verify_s`, `overhead_s`; {} for a single sequence.
        draft_forwards: number of forward passes of draft models for this sequence; most drafters need d passes for a
            chain of d levels. A pass includes the LM head. It also includes layers that run once per round, such as a
            layer that reads the accepted tokens or an adapter after a target's first layers.
        target_forwards: number of forward passes of the target (1, unless a simulation or a self-drafter used more).
        changes: settings that changed before this round.
        signals: named values that the drafter, the policy or the verifier reports for display.
        notes: warnings about this round, e.g. that the drafter proposed nothing.
        vision: image inputs of target and drafter if they changed since the previous round; {} if they did not change
            or there are none. Keys: `drafter` (its name), `compressor` (its name or None), `n_target`, `n_drafter`
            (numbers of vision tokens), `target_bytes`, `drafter_bytes` (size of these tokens' KV cache),
            `target_prefill_s`, `drafter_prefill_s`, `kept` (indices of the kept patches, or None), `blocks` (lists of
            patches merged into one token, or None), `weights` (per vision token of the drafter, one weight per patch,
            or None), `gate` (name → weight, or None). If images changed during the run: `pictures` (each a
            `PromptImage` as JSON) and `sees` ("both" or "drafter", the models whose images changed). If images changed
            for both models and then again for the drafter, `target_pictures` are the target's images.
        revoked: positions whose tentative tokens of earlier rounds are revoked, before new ones are set.
        placed: tentative tokens set after the final text, in any order; valid until revoked or emitted.
        probes: probe positions computed in the target's pass; never tested and not counted as drafted.
        grown: explanation of the tree's shape; None if the drafter gives none.
    """

    index: int
    method: str
    params: dict[str, Any]
    nodes: Nodes
    path: list[int]
    bonus: int | None
    bonus_kind: str | None
    emitted: list[EmittedToken]
    top_p: list[TopTokens] = field(default_factory=list[TopTokens])
    top_q: list[TopTokens | None] = field(default_factory=list[TopTokens | None])
    entropy: list[float] = field(default_factory=list[float])
    phases: list[Phase] = field(default_factory=list[Phase])
    started_s: float = 0.0
    seconds: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    overhead_s: float = 0.0
    draft_forwards: int = 0
    target_forwards: int = 1
    changes: list[Change] = field(default_factory=list[Change])
    signals: dict[str, float] = field(default_factory=dict[str, float])
    notes: list[str] = field(default_factory=list[str])
    vision: dict[str, Any] = field(default_factory=dict[str, Any])
    waited_s: float = 0.0
    shared: dict[str, float] = field(default_factory=dict[str, float])
    revoked: list[int] = field(default_factory=list[int])
    placed: list[TentativeTokenRecord] = field(default_factory=list[TentativeTokenRecord])
    probes: list[Probe] = field(default_factory=list[Probe])
    grown: TreeExplanationRecord | None = None
    ranking: list[TopTokens | None] = field(default_factory=list[TopTokens | None])

    def __post_init__(self) -> None:
        """Set a token's kind to "plain" if its round drafted nothing; older traces recorded this kind as "bonus"."""
        if self.nodes.tokens or self.bonus_kind != BONUS:
            return
        self.bonus_kind = PLAIN
        for emitted in self.emitted:
            emitted.kind = PLAIN if emitted.kind == BONUS else emitted.kind

    def to_wire(self) -> dict[str, Any]:
        """Return the recorded round as JSON data. Its lists are not copied, because recorded rounds do not change."""
        wire = _fields(self)
        wire["nodes"] = _fields(self.nodes)
        for name in ("emitted", "top_p", "phases", "changes", "placed", "probes"):
            wire[name] = [_fields(item) for item in wire[name]]
        wire["grown"] = None if self.grown is None else _fields(self.grown)
        for name in ("top_q", "ranking"):
            wire[name] = [None if top is None else _fields(top) for top in wire[name]]
        return wire

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Round:
        """Create a recorded round from the JSON data that `to_wire` returns."""
        data = dict(data)
        data["nodes"] = Nodes(**data["nodes"])
        data["emitted"] = [EmittedToken(**e) for e in data["emitted"]]
        data["top_p"] = [TopTokens(**t) for t in data.get("top_p", [])]
        for name in ("top_q", "ranking"):
            data[name] = [TopTokens(**t) if t else None for t in data.get(name, [])]
        data["phases"] = [Phase(**p) for p in data.get("phases", [])]
        data["changes"] = [Change(**c) for c in data.get("changes", [])]
        data["placed"] = [TentativeTokenRecord(**p) for p in data.get("placed", [])]
        data["probes"] = [Probe(**p) for p in data.get("probes", [])]
        data["grown"] = TreeExplanationRecord(**data["grown"]) if data.get("grown") else None
        return cls(**data)


def list_tentative_tokens(rounds: Iterable[Round]) -> list[TentativeTokenRecord]:
    """Return the tokens that are tentative after the given rounds: placed, but neither revoked nor emitted.

    Args:
        rounds: rounds of a trace, from the first on.

    Example:
        >>> list_tentative_tokens([])
        []
    """
    tentative: dict[int, TentativeTokenRecord] = {}
    for r in rounds:
        for position in r.revoked:
            tentative.pop(position, None)
        for placed in r.placed:
            tentative[placed.position] = placed
        for emitted in r.emitted if tentative else ():
            tentative.pop(emitted.position, None)
    return [tentative[position] for position in sorted(tentative)]


@dataclass(slots=True)
class Header:
    """First event of a trace: the request and the settings of the generation, recorded before the first round.

    `prompt_text` holds the text of each of the `prompt_tokens`, for display. `prefill_s` is set when prefill ends.
    `simulation` marks methods that work only in simulation, such as the oracle. `pictures` are in the order of the
    prompt. `rules` describes the names in `Nodes.rule`; a rule is added when a round first uses it.
    """

    target: str
    method: str
    params: dict[str, Any]
    promise: str
    seed: int
    prompt: str
    prompt_tokens: list[int]
    prompt_text: list[str]
    max_new_tokens: int
    dtype: str
    device: str
    drafter: str | None = None
    created: str = ""
    hardware: str = ""
    prefill_s: float = 0.0
    schema: int = SCHEMA_VERSION
    workbench: str = ""
    simulation: bool = False
    pictures: list[PromptImage] = field(default_factory=list[PromptImage])
    rules: dict[str, Rule] = field(default_factory=dict[str, Rule])

    def to_wire(self) -> dict[str, Any]:
        """Return the trace's header as JSON data. Lists of prompt tokens are not copied, so that polling is fast."""
        pictures, rules = [_fields(p) for p in self.pictures], {n: _fields(r) for n, r in [*self.rules.items()]}
        return _fields(self) | {"params": {**self.params}, "pictures": pictures, "rules": rules}

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Header:
        """Create a trace's header from the JSON data that `to_wire` returns."""
        read: dict[str, Any] = {"pictures": [PromptImage(**p) for p in data.get("pictures", ())]}
        read["rules"] = {name: Rule(**rule) for name, rule in data.get("rules", {}).items()}
        return cls(**(data | read))


@dataclass(slots=True)
class Footer:
    """Last event of a trace: how the generation ended, its text and its warnings.

    `seconds`: wall time from the end of prefill, without paused time and delays for display. `reason`: "eos", "length",
    "stop-string", "stop-token", "criterion", one of `ABORT_REASONS`, "error", or "" before the end. `error`: message
    and remedy. `warnings`: messages of self-checks, e.g. speculation inactive or fallback to plain decoding.
    """

    reason: str = ""
    text: str = ""
    seconds: float = 0.0
    error: str = ""
    warnings: list[str] = field(default_factory=list[str])

    def to_wire(self) -> dict[str, Any]:
        """Return the trace's footer as JSON data."""
        return dataclasses.asdict(self)


class NewerTraceError(ValueError):
    """Raised for a trace whose schema is newer than this version of the workbench supports."""


@dataclass(slots=True)
class Trace:
    """Record of a generation: header, rounds and footer.

    `attribution` is None until it is requested. It holds each emitted token's weights on the vision tokens:
    `{"target": {"attention": maps, "gradient": maps}, "drafter": the same or None, "p_blind": [float]}`. Maps are
    `[[0–255 for each vision token] for each emitted token]`, scaled so that a token's largest weight is 255. `p_blind`
    is the target's probability of each emitted token with all images blanked. `header.pictures` holds the first
    vision token of each image.
    """

    header: Header
    rounds: list[Round] = field(default_factory=list[Round])
    footer: Footer = field(default_factory=Footer)
    attribution: dict[str, Any] | None = None

    @property
    def token_ids(self) -> list[int]:
        """Return the ids of all tokens that the trace's rounds generated, in order."""
        return [e.token for r in self.rounds for e in r.emitted]

    @property
    def text(self) -> str:
        """Return the text that the trace's rounds generated."""
        return self.footer.text if self.footer.reason else "".join(e.text for r in self.rounds for e in r.emitted)

    def to_wire(self) -> dict[str, Any]:
        """Return the trace as JSON data."""
        return {
            "header": self.header.to_wire(),
            "rounds": [r.to_wire() for r in self.rounds],
            "footer": self.footer.to_wire(),
            "attribution": self.attribution,
        }

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Trace:
        """Create a trace from the JSON data that `to_wire` returns.

        Raises:
            NewerTraceError: the trace's schema is newer than this version supports.
        """
        if data["header"].get("schema", 0) > SCHEMA_VERSION:
            raise NewerTraceError(
                f"This trace has schema version {data['header']['schema']}; this version of the workbench reads "
                f"schemas up to {SCHEMA_VERSION}. Update the workbench to open the trace."
            )
        rounds = [Round.from_wire(r) for r in data["rounds"]]
        return cls(Header.from_wire(data["header"]), rounds, Footer(**data["footer"]), data.get("attribution"))
