"""Inspect, save, load or reset the state of a drafter, between two rounds and in the engine's thread.

Other threads request these actions through `Sequence.pending_actions`. If `Request.keep_drafter_state` is set, the
state is saved when the sequence ends.
"""

from __future__ import annotations

import logging
from collections import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workbench.core.errors import MethodUnavailableError, WorkbenchError
from workbench.core.panics import convert_panics
from workbench.decoders.draft_verify.drafter_lifetime import init_drafter_state, release_drafter
from workbench.decoders.draft_verify.inspectable_state import FinishedState, InspectableState, inspectable_state_of
from workbench.decoders.draft_verify.state import drafter_state
from workbench.decoders.draft_verify.state_file import from_bytes, kind_of, to_bytes

if TYPE_CHECKING:
    from workbench.engine.detokenise import TokenText
    from workbench.engine.request import Sequence
    from workbench.trace.events import Trace

log = logging.getLogger(__name__)

SHOWN = 12
"""Number of top entries of a drafter's state that are shown."""
AFTER = "Choose a method that drafts from a table, such as prompt-lookup, suffix, token-recycling or lookahead-trie."
MATCHED = "matched tokens"
"""Name of a signal in a round's trace: how many tokens at the text's end matched the entry used for the draft."""


def _state(sequence: Sequence) -> InspectableState:
    state = inspectable_state_of(drafter_state(sequence))
    if state is None:
        raise MethodUnavailableError(
            f"{sequence.configured_method.method.title} has no drafter state that can be inspected or saved.", AFTER
        )
    return state


def inspect_state(sequence: Sequence, token_text: TokenText) -> dict[str, Any]:
    """Return a summary of a drafter's state as JSON data.

    Returns:
        Dict with "kind" (`kind_of` the state, "" if the drafter has no state), "title", "unit", "hits" and "shared" as
        in `InspectableState`, "entries", "bound", "n_bytes" and "most_bytes" as in `StateSummary`, "asked" (number of
        rounds in which the drafter queried the state), "kept" (number of accepted tokens from the state's drafts),
        "saves" (whether the state can be saved), "counted" (meaning of the counts), "top" (list of {"before", "after",
        "count"}) and "made" (entry used for the latest draft, {"round", "before", "after"}, or None).
    """
    state = inspectable_state_of(drafter_state(sequence))
    if state is None:
        return {"kind": "", "why": f"{sequence.configured_method.method.title} has no drafter state to show."}
    summary, memory = state.summarise(SHOWN), sequence.drafter.state_key()

    def text(tokens: abc.Sequence[int]) -> str:
        return "".join(token_text(token) for token in tokens)

    return {
        "kind": sequence.configured_method.name if memory is None else kind_of(memory),
        "title": state.title,
        "unit": state.unit,
        "entries": summary.entries,
        "bound": summary.bound,
        "n_bytes": summary.n_bytes,
        "most_bytes": summary.most_bytes,
        "asked": state.n_queries,
        "hits": state.hits,
        "kept": state.n_accepted,
        "shared": state.shared,
        "saves": memory is not None,
        "counted": summary.count_meaning,
        "top": [
            {"before": top.words or text(top.before), "after": text(top.after), "count": round(float(top.count), 3)}
            for top in summary.top
        ],
        "made": latest_entry(sequence.trace, text, state),
    }


def latest_entry(
    trace: Trace, text: Callable[[abc.Sequence[int]], str], state: InspectableState
) -> dict[str, Any] | None:
    """Return round, matched text and drafted text of the state entry used for the latest draft.

    None if no entry was used.
    """
    if not trace.rounds or not (n := int(trace.rounds[-1].signals.get(MATCHED, 0))):
        return None
    last = trace.rounds[-1]
    tokens = [*trace.header.prompt_tokens, *trace.token_ids]
    matched = tokens[: len(tokens) - len(last.emitted)][-n:]
    path, tip = list[int](), -1
    nodes = zip(last.nodes.tokens, last.nodes.parents, last.nodes.source, strict=True)
    for node, (token, parent, source) in enumerate(nodes):
        if parent == tip and state.is_own_source(source):
            path.append(token)
            tip = node
    if not path:
        return None
    return {"round": last.index, "before": text(matched), "after": text(path)}


def save(sequence: Sequence) -> bytes:
    """Return the drafter's state as the bytes of a file.

    Raises:
        MethodUnavailableError: the drafter has no state, or its state cannot be saved.
    """
    return to_bytes(kind_of(sequence.drafter.state_key()), _state(sequence).pack(), sequence.models)


def load(sequence: Sequence, data: bytes) -> None:
    """Merge a saved state in a file into the drafter's state.

    Raises:
        TokenizerMismatchError, ModelError, CapacityError: the file does not fit the run, is damaged, or is too large.
            The drafter's state is unchanged.
        MethodUnavailableError: the drafter has no state.
    """
    state, file = _state(sequence), from_bytes(data)
    if (memory := sequence.drafter.state_key()) is None:
        state.merge({}, 0)
    file.check(kind_of(memory), sequence.models)
    state.merge(file.arrays, sequence.models.target.vocab_size)


def reset(sequence: Sequence) -> None:
    """Reset the drafter's state to the state that follows from the committed text alone.

    Raises:
        MethodUnavailableError: the drafter has no state, or it is read-only.
    """
    state = _state(sequence)
    if sequence.drafter.state_key() is None:
        raise MethodUnavailableError(
            f"The {state.title.lower()} of this drafter is read-only, so it cannot be changed.", AFTER
        )
    state.clear()
    release_drafter(sequence)
    state.clear()  # again, because `release` may have added the sequence's own entries to it
    sequence.state.drafter = init_drafter_state(sequence, sequence.drafter, sequence.models)


def save_final_state(sequence: Sequence, token_text: TokenText) -> None:
    """Save the drafter's state of an ending sequence if its request asks for that. Errors are only logged."""
    if not sequence.request.keep_drafter_state:
        return
    try:
        with convert_panics():
            summary = inspect_state(sequence, token_text)
            try:
                sequence.state.final = FinishedState(summary, save(sequence))
            except WorkbenchError as error:
                sequence.state.final = FinishedState(summary, None, str(error))
    except Exception:
        log.exception("a drafter's state could not be stored")
