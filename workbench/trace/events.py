"""The events of a generation. Plain data: no tensors, no handles, JSON in and JSON out.

One `Header` opens a trace, one `Round` is added per verification, one `Footer` closes it. Every view, statistic and
export is computed from these and from nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from workbench.core.rules import Rule
from workbench.trace.nodes import GrownNodes, Nodes, Probe, Top
from workbench.trace.pictures import Picture
from workbench.trace.tokens import BONUS, PLAIN, Emitted, Placed

SCHEMA_VERSION = 6
"""1: text. 2: pictures as well (`Header.pictures`, `Round.vision`, `Trace.attribution`), all empty for text. 3: why
each node was accepted or not (`Header.rules`, `Nodes.rule`, `Nodes.inputs`), unsaid in older traces; typical acceptance
wrote its score into `Nodes.accept` before. 4: tokens at explicit places, which may be taken back (`Round.placed`,
`Round.revoked`); none in older traces. 5: tokens that were computed beside a draft and could not be accepted
(`Round.probes`); none in older traces. 6: why each node of a draft is there (`Round.grown`), unsaid in older
traces."""

STOPPED = ("cancelled", "lease", "limit", "memory")
"""Reasons of a run that was stopped: its user asked for it; the page that followed it was closed, or nobody asked after
it; a limit of the server; its trace had filled the memory there is for traces."""


def _fields(item: Any) -> dict[str, Any]:
    """A dataclass as a dict, one level deep: `dataclasses.asdict` copies everything below, which takes milliseconds."""
    return {name: getattr(item, name) for name in item.__dataclass_fields__}


@dataclass(slots=True)
class Phase:
    """A stretch of wall-clock time on a named lane. Seconds since the start of the generation, pauses not counted."""

    name: str
    start_s: float
    end_s: float
    lane: str = "device"


@dataclass(slots=True)
class Change:
    """A setting changed between rounds by the user; in force from this round on."""

    name: str
    before: Any
    after: Any


@dataclass(slots=True)
class Round:
    """One draft–verify round; or one of a decoder that writes otherwise, with an empty tree.

    Such a decoder may set tokens at any places behind the final text, and take back those of earlier rounds: `standing`
    says what stands there after a round. A verifier that judges whole steps does so too: what it keeps is `placed`, at
    the next places, until the step is decided. What can change no more is `emitted`, as in every round; the text is
    made of that alone.

    Attributes:
        index: number of the round, from 0.
        method: registry name in force.
        params: all parameters in force, method and sampling.
        nodes: the draft tree with its verdict.
        path: accepted nodes, root first.
        bonus: token the target added (its id), or None when the end of the text was inside the accepted path, and
            where the token is not final.
        bonus_kind: "corrected", "bonus", "plain" or None.
        emitted: tokens that became final in this round, in order (cut at the end of the text): those committed in it
            and, where a verifier had held some, of rounds before, without their `node`.
        top_p: for the root (entry 0) and each node (entry i+1): the target's likeliest next tokens; [] if not recorded.
        top_q: the same for the drafter where it has a law; None entries where it has none.
        entropy: the target's entropy in nats after the root and after each node [N+1]; [] if not recorded.
        phases: draft, verify, judge, commit with start and end.
        started_s: start of the round, seconds since the start of the generation, pauses not counted.
        seconds: length of the round in wall time.
        draft_s: time in forwards of its drafter, shared ones in full.
        verify_s: time in the target's verification forward, in full where rows of a batch shared it.
        overhead_s: wall time of the round in no model's forward, be it for this row or for another of its batch.
        waited_s: time in forwards for other rows of its batch, which this row took no part in.
        shared: what this row's part is where rows of a batch shared forwards, so that sums over the batch give the time
            that passed: `rows` (verified together), `draft_s`, `verify_s`, `overhead_s`; {} for a row on its own.
        draft_forwards: forwards of drafter models that this row took part in: a chain of d levels takes d of most
            drafters. The product with the LM head is a part of its forward, and so is what stands before or behind
            the layers that repeat: a layer that reads what was accepted, an adapter behind a target's first layers.
        target_forwards: forwards of the target (1, unless a simulation or self-drafter used more).
        changes: settings that changed before this round.
        signals: named figures a drafter wants seen.
        notes: warnings that concern this round (a drafter that had nothing to propose, say).
        vision: what target and drafter see, where that changed since the round before; {} where it did not, and for
            text. Keys: `drafter` (its name), `compressor` (its name or None), `n_target`, `n_drafter` (vision tokens),
            `target_bytes`, `drafter_bytes` (key–value entries of those tokens), `target_prefill_s`,
            `drafter_prefill_s`, `kept` (indices of the patches kept, or None), `blocks` (lists of patches that became
            one token, or None), `weights` (for each of the drafter's vision tokens one weight a patch, or None),
            `gate` (name → weight, or None), and `pictures` (`Picture`s as plain JSON) when they were changed in
            mid-run, with `sees` ("both" or "drafter") for whom; where they were changed for both and then again for
            the drafter, `target_pictures` are those that the target sees.
        revoked: positions whose tokens of earlier rounds are taken back, before anything is set.
        placed: tokens set behind the final text, in any order; they stand until they are taken back or emitted.
        probes: what the target's pass computed beside the draft; never tested, and not counted as drafted.
        grown: why each node of the draft is there; None where its drafter does not say.
    """

    index: int
    method: str
    params: dict[str, Any]
    nodes: Nodes
    path: list[int]
    bonus: int | None
    bonus_kind: str | None
    emitted: list[Emitted]
    top_p: list[Top] = field(default_factory=list[Top])
    top_q: list[Top | None] = field(default_factory=list[Top | None])
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
    placed: list[Placed] = field(default_factory=list[Placed])
    probes: list[Probe] = field(default_factory=list[Probe])
    grown: GrownNodes | None = None

    def __post_init__(self) -> None:
        """Without a draft there is no bonus: traces of earlier versions called plain decoding that."""
        if self.nodes.tokens or self.bonus_kind != BONUS:
            return
        self.bonus_kind = PLAIN
        for emitted in self.emitted:
            emitted.kind = PLAIN if emitted.kind == BONUS else emitted.kind

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON. Lists are shared with this round, not copied: rounds do not change once they are recorded."""
        wire = _fields(self)
        wire["nodes"] = _fields(self.nodes)
        for name in ("emitted", "top_p", "phases", "changes", "placed", "probes"):
            wire[name] = [_fields(item) for item in wire[name]]
        wire["grown"] = None if self.grown is None else _fields(self.grown)
        wire["top_q"] = [None if top is None else _fields(top) for top in self.top_q]
        return wire

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Round:
        """The inverse of `to_wire`."""
        data = dict(data)
        data["nodes"] = Nodes(**data["nodes"])
        data["emitted"] = [Emitted(**e) for e in data["emitted"]]
        data["top_p"] = [Top(**t) for t in data.get("top_p", [])]
        data["top_q"] = [Top(**t) if t else None for t in data.get("top_q", [])]
        data["phases"] = [Phase(**p) for p in data.get("phases", [])]
        data["changes"] = [Change(**c) for c in data.get("changes", [])]
        data["placed"] = [Placed(**p) for p in data.get("placed", [])]
        data["probes"] = [Probe(**p) for p in data.get("probes", [])]
        data["grown"] = GrownNodes(**data["grown"]) if data.get("grown") else None
        return cls(**data)


def standing(rounds: Iterable[Round]) -> list[Placed]:
    """What stands behind the final text after `rounds`, the first of a trace: set, not taken back, not emitted.

    Example:
        >>> standing([])
        []
    """
    found: dict[int, Placed] = {}
    for r in rounds:
        for position in r.revoked:
            found.pop(position, None)
        for placed in r.placed:
            found[placed.position] = placed
        for emitted in r.emitted if found else ():
            found.pop(emitted.position, None)
    return [found[position] for position in sorted(found)]


@dataclass(slots=True)
class Header:
    """What was asked for, before the first round.

    `prompt_tokens` and `prompt_text` are aligned: the text of each prompt token for display. `prefill_s` is filled in
    when prefill ends. `simulation` marks methods that could not exist outside a laboratory (the oracle). `pictures`
    stand in the order of the prompt. `rules` explains the names in `Nodes.rule`; one joins when a round first uses it.
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
    pictures: list[Picture] = field(default_factory=list[Picture])
    rules: dict[str, Rule] = field(default_factory=dict[str, Rule])

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Header:
        """The inverse of `to_wire`."""
        read: dict[str, Any] = {"pictures": [Picture(**p) for p in data.get("pictures", ())]}
        read["rules"] = {name: Rule(**rule) for name, rule in data.get("rules", {}).items()}
        return cls(**(data | read))


@dataclass(slots=True)
class Footer:
    """How the generation ended.

    `seconds`: wall time from the end of the prefill, without that in which the run was paused or held back for people.
    `reason`: "eos", "length", "stop-string", "stop-token", "criterion", one of `STOPPED`, "error" or "" while it runs.
    `error` holds the message and what to do about it. `warnings` are the self-checks that spoke (speculation inactive,
    fallback to plain decoding).
    """

    reason: str = ""
    text: str = ""
    seconds: float = 0.0
    error: str = ""
    warnings: list[str] = field(default_factory=list[str])

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self)


class NewerTraceError(ValueError):
    """A trace was written by a newer schema than this version reads."""


@dataclass(slots=True)
class Trace:
    """A generation as it was recorded.

    `attribution` is None until somebody asks for it. It says on which vision tokens each emitted token leans:
    `{"target": {"attention": maps, "gradient": maps}, "drafter": the same or None, "p_blind": [float]}`, with maps
    `[[0–255 for each vision token] for each emitted token]`, scaled so that a token's largest weight is 255, and the
    target's probability of each emitted token with all pictures blanked. `header.pictures` says where the vision
    tokens of each picture begin.
    """

    header: Header
    rounds: list[Round] = field(default_factory=list[Round])
    footer: Footer = field(default_factory=Footer)
    attribution: dict[str, Any] | None = None

    @property
    def token_ids(self) -> list[int]:
        """Generated token ids, in order."""
        return [e.token for r in self.rounds for e in r.emitted]

    @property
    def text(self) -> str:
        """Generated text."""
        return self.footer.text if self.footer.reason else "".join(e.text for r in self.rounds for e in r.emitted)

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "header": self.header.to_wire(),
            "rounds": [r.to_wire() for r in self.rounds],
            "footer": self.footer.to_wire(),
            "attribution": self.attribution,
        }

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Trace:
        """The inverse of `to_wire`.

        Raises:
            NewerTraceError: the trace was written by a newer schema than this version reads.
        """
        if data["header"].get("schema", 0) > SCHEMA_VERSION:
            raise NewerTraceError(
                f"This trace has schema {data['header']['schema']}; this workbench reads up to {SCHEMA_VERSION}. "
                "Update the workbench to open it."
            )
        rounds = [Round.from_wire(r) for r in data["rounds"]]
        return cls(Header.from_wire(data["header"]), rounds, Footer(**data["footer"]), data.get("attribution"))
