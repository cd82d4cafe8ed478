"""Actions on a drafter's state: inspect, save, load, reset, between two rounds and in the engine's thread.

Other threads request them through `Row.errands`. If `Request.keeps` is set, the state is saved when the sequence ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.core.errors import MethodUnavailableError, WorkbenchError
from workbench.core.panics import no_panic
from workbench.decoders.draft_verify.drafter_setup import prime
from workbench.decoders.draft_verify.inactive_drafters import let_go
from workbench.decoders.draft_verify.inspectable_state import FinishedState, InspectableState, owned_of
from workbench.decoders.draft_verify.state import drafter_state
from workbench.decoders.draft_verify.state_file import from_bytes, kind_of, to_bytes

if TYPE_CHECKING:
    from workbench.engine.detokenise import TokenText
    from workbench.engine.request import Row
    from workbench.trace.events import Trace

log = logging.getLogger(__name__)

SHOWN = 12
"""Number of top entries shown."""
AFTER = "Choose a drafter with a table: prompt-lookup, suffix, token-recycling, lookahead-trie, …."
MATCHED = "matched tokens"
"""Name of a round's signal: number of last tokens that matched the entry used for the draft."""


def _state(row: Row) -> InspectableState:
    state = owned_of(drafter_state(row))
    if state is None:
        raise MethodUnavailableError(f"{row.configured.method.title} has no state of this kind.", AFTER)
    return state


def look(row: Row, token_text: TokenText) -> dict[str, Any]:
    """Return a summary of the state, as JSON values.

    Returns:
        kind ("" if the drafter has no state), title, unit, entries, bound, n_bytes, most_bytes, asked, hits, kept,
        shared, saves, counted, top [{"before", "after", "count"}], and made: the entry used for the latest draft
        {"round", "before", "after"}, or None.
    """
    state, trace = owned_of(drafter_state(row)), row.trace
    if state is None:
        return {"kind": "", "why": f"{row.configured.method.title} has no state to show."}
    summary, memory = state.look(SHOWN), row.drafter.memory()

    def text(tokens: Sequence[int]) -> str:
        return "".join(token_text(token) for token in tokens)

    return {
        "kind": row.configured.name if memory is None else kind_of(memory),
        "title": state.title,
        "unit": state.unit,
        "entries": summary.entries,
        "bound": summary.bound,
        "n_bytes": summary.n_bytes,
        "most_bytes": summary.most_bytes,
        "asked": state.asked,
        "hits": state.hits,
        "kept": state.kept,
        "shared": state.shared,
        "saves": memory is not None,
        "counted": summary.counted,
        "top": [
            {"before": top.words or text(top.before), "after": text(top.after), "count": round(float(top.count), 3)}
            for top in summary.top
        ],
        "made": None if trace is None else made(trace, text, state),
    }


def made(trace: Trace, text: Callable[[Sequence[int]], str], state: InspectableState) -> dict[str, Any] | None:
    """Return the matched tokens of the entry used for the latest draft, and its first path; None without an entry."""
    if not trace.rounds or not (n := int(trace.rounds[-1].signals.get(MATCHED, 0))):
        return None
    last = trace.rounds[-1]
    tokens = [*trace.header.prompt_tokens, *trace.token_ids]
    matched = tokens[: len(tokens) - len(last.emitted)][-n:]
    path, tip = list[int](), -1
    nodes = zip(last.nodes.tokens, last.nodes.parents, last.nodes.source, strict=True)
    for node, (token, parent, source) in enumerate(nodes):
        if parent == tip and state.made(source):
            path.append(token)
            tip = node
    if not path:
        return None
    return {"round": last.index, "before": text(matched), "after": text(path)}


def save(row: Row) -> bytes:
    """Return the state as the bytes of a file.

    Raises:
        MethodUnavailableError: there is no state, or it cannot be saved.
    """
    return to_bytes(kind_of(row.drafter.memory()), _state(row).pack(), row.models)


def load(row: Row, data: bytes) -> None:
    """Merge the state of a file into the drafter's state.

    Raises:
        TokenizerMismatchError, ModelError, CapacityError: it does not fit, is damaged, or too large. The drafter's
            state is unchanged.
        MethodUnavailableError: the drafter has no state.
    """
    state, file = _state(row), from_bytes(data)
    if (memory := row.drafter.memory()) is None:
        state.take({}, 0)
    file.check(kind_of(memory), row.models)
    state.take(file.arrays, row.models.target.vocab_size)


def reset(row: Row) -> None:
    """Reset the drafter's state to that of the committed text alone.

    Raises:
        MethodUnavailableError: the drafter has no state, or it is read-only.
    """
    state = _state(row)
    if row.drafter.memory() is None:
        raise MethodUnavailableError(f"The {state.title.lower()} is read-only.", AFTER)
    state.clear()
    let_go(row)
    state.clear()  # again: releasing may have returned the sequence's own entries to it
    row.state.drafter = prime(row, row.drafter, row.models)


def leave(row: Row, token_text: TokenText) -> None:
    """Save the drafter's state of an ending sequence if its request keeps it. Errors are only logged."""
    if not row.request.keeps:
        return
    try:
        with no_panic():
            summary = look(row, token_text)
            try:
                row.left = FinishedState(summary, save(row))
            except WorkbenchError as error:
                row.left = FinishedState(summary, None, str(error))
    except Exception:
        log.exception("a drafter's state could not be stored")
