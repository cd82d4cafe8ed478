"""A Hugging Face model with a tree cache: prefill, forwards of trees for many rows at once, commits.

The model itself is not touched: it is called with an explicit mask, explicit positions and our cache. `Runner` serves
targets and draft models alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from workbench.core.errors import CapacityError, ContextError, ModelError
from workbench.core.transfer import to_device
from workbench.engine.cache import TreeCache, Window
from workbench.engine.clock import Clock, Meter
from workbench.engine.layers import (
    decoder_layers,
    entered,
    longest_context,
    refuse_unverifiable,
    subset,
    text_config,
)
from workbench.engine.leancheck import lean_of
from workbench.engine.masks import MaskKinds, MaskMaker
from workbench.engine.quantised import refuse_int8, stored
from workbench.engine.vision.layout import Pictured, layout, watched, why_no_pictures

SCRATCH = 192
"""Positions kept behind the context for drafted nodes: the largest tree a round can hold, root included."""
GOES_ON = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 2e-2}
"""Largest difference, as a share of the largest logit, between reading a token with a prompt and behind it."""


@dataclass(slots=True, eq=False)
class Slot:
    """A row of a runner's cache. `length` positions are committed, `scratch` nodes are written behind them.

    `positions` holds the scratch nodes' places in the sequence, for models whose attention looks at them. `pictured`
    says what the pictures of the prompt became. `shift` is by how much the target's sequence is longer than this
    model's, which was given the same prompt with fewer tokens for its pictures. `owner` is the `id` of the row of the
    engine that it serves, so that a forward is counted for those who asked for it.
    """

    index: int
    length: int = 0
    scratch: int = 0
    rope_delta: int = 0
    last_hidden: Tensor | None = None
    positions: Tensor | None = None
    pictured: Pictured | None = None
    shift: int = 0
    owner: int | None = None


@dataclass(slots=True)
class Segment:
    """New tokens of one row.

    Attributes:
        slot: the row.
        tokens: int64 [n].
        sees: bool [n, scratch + n] over the nodes behind the committed part; None for a chain that goes on from the
            last of them and sees them all.
        depth: int64 [n], distance behind the committed part, 0 for its first successor; None for a chain.
        states: [n, D], residual stream of the tokens before the first layer that is run; None: their embeddings.
            Either all segments of a forward have them, or none.
    """

    slot: Slot
    tokens: Int[Tensor, " n"]
    sees: Bool[Tensor, "n s_plus_n"] | None = None
    depth: Int[Tensor, " n"] | None = None
    states: Float[Tensor, "n D"] | None = None


@dataclass(slots=True)
class Output:
    """What a forward gives, in the order of the rows in the cache.

    Attributes:
        logits: [B, n, V], padded to the longest segment; float.
        hidden: [B, n, D], what the LM head reads.
        taps: layer index → [B, n, D], residual stream after that layer.
    """

    logits: Float[Tensor, "B n V"]
    hidden: Float[Tensor, "B n D"]
    taps: dict[int, Tensor] = field(default_factory=dict)


class Runner:
    """One model, one cache, any number of rows.

    Args:
        model: unmodified causal language model or image–text-to-text model, in eval mode.
        context: longest sequence in tokens; by default the model's own, at most 4,096.
        rows: rows allocated at first (more are added when needed).

    Raises:
        ModelError: the model keeps a state that cannot be rolled back.
    """

    def __init__(self, model: PreTrainedModel, context: int | None = None, rows: int = 1) -> None:
        refuse_unverifiable(model)
        self.model = model
        self.config = text_config(model.config)
        self.device, self.dtype = model.device, model.dtype
        _, layers = decoder_layers(model)
        self.n_layers = len(layers)
        own, why_end = longest_context(self.config)
        self.context = min(context or 4096, own)
        self.why_context = why_end if self.context == own else ""
        self.why_no_trees = ""  # until `probe.admit` finds a reason
        self.cache = TreeCache(self.n_layers, rows, self.context + SCRATCH)
        self._numbers = torch.arange(2 * (self.context + SCRATCH), device=self.device)
        self.masks = MaskMaker(MaskKinds.of(self.config), self.dtype, self.device, self.cache.capacity)
        self.clock, self.meter = Clock(self.device), Meter()
        self.slots: list[Slot] = []
        self._asked: Collection[int] = ()
        self._views: dict[tuple[int, ...], PreTrainedModel] = {}
        self._hidden: Tensor | None = None
        self._taps: dict[int, Tensor] = {}
        self._lean = lean_of(model, self.context + SCRATCH)
        self.stored = stored(model)
        if self.stored != self.dtype and (self._lean is None or self._lean.fused is None):
            refuse_int8(model)
        self._multi_rope = hasattr(getattr(model, "model", None), "rope_deltas")
        self._layers, self._goes_on = layers, False
        self._enters: dict[int, bool] = {}
        self.lm_head.register_forward_pre_hook(self._keep_hidden)
        for i, layer in enumerate(layers):
            layer.register_forward_hook(self._tap(i))

    # -- parts of the model that heads share ---------------------------------------------------------------------

    @property
    def lm_head(self) -> nn.Module:
        """The output projection, hidden [.., D] → logits [.., V]."""
        head = self.model.get_output_embeddings()
        if head is None:
            raise ModelError(f"{type(self.model).__name__} has no language-model head.", "Use a causal language model.")
        return head

    @property
    def embed(self) -> nn.Module:
        """The input embedding, ids [..] → [.., D]."""
        return self.model.get_input_embeddings()

    @property
    def vocab_size(self) -> int:
        """Number of logits."""
        return self.lm_head.get_parameter("weight").shape[0]

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.config.hidden_size

    def _keep_hidden(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._hidden = args[0]

    def _tap(self, index: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if index in self._asked:
                self._taps[index] = output[0] if isinstance(output, tuple) else output

        return hook

    # -- rows ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def open(self, owner: int | None = None) -> Slot:
        """A new, empty row. Rows are kept dense: an open row's `index` may change when another closes."""
        if len(self.slots) == self.cache.n_rows:
            try:
                self.cache.grow(max(2 * self.cache.n_rows, 1))
            except (RuntimeError, MemoryError) as error:
                raise CapacityError(
                    f"No memory for another row of {self.context} tokens.",
                    "Stop a run, or load the model with a shorter context.",
                ) from error
        if self._lean is not None:
            self._lean = self._lean.fresh()
        slot = Slot(len(self.slots), owner=owner)
        self.cache.clear_row(slot.index)
        self.slots.append(slot)
        return slot

    @torch.inference_mode()
    def close(self, slot: Slot) -> None:
        """Give a row back. The last row takes its place in the buffer."""
        if slot not in self.slots:
            return
        last = self.slots.pop()
        if last is not slot:
            self.cache.move_row(last.index, slot.index, min(last.length + SCRATCH, self.cache.capacity))
            self.slots[slot.index], last.index = last, slot.index

    def rewind(self, slot: Slot, length: int) -> None:
        """Forget everything behind the first `length` positions."""
        slot.length, slot.scratch = min(slot.length, length), 0

    def commit(self, slot: Slot, path: Sequence[int]) -> None:
        """Keep the scratch nodes `path` (strictly increasing), in order, and forget the others."""
        self.cache.commit(slot.index, slot.length, path)
        slot.length += len(path)
        slot.scratch = 0

    # -- forwards ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def prefill(self, slot: Slot, tokens: Sequence[int], chunk: int = 512) -> None:
        """Run `tokens` behind the committed part and commit them, `chunk` at a time.

        Raises:
            ContextError: the model has no positions for them.
        """
        self._refuse_beyond(slot.length + len(tokens))
        ids = to_device(list(tokens), self.device, torch.long)
        for piece in ids.split(chunk):
            out = self.forward([Segment(slot, piece)], last_only=True)
            slot.last_hidden = out.hidden[0, -1]
            self.commit(slot, range(len(piece)))

    @torch.inference_mode()
    def prefill_multimodal(self, slot: Slot, inputs: dict[str, Tensor], counts: Sequence[int] | None = None) -> None:
        """Prefill of an empty row through the model's own forward, pixels and all; its last token is left to verify.

        Afterwards `slot.pictured` holds what the pictures became.

        Args:
            slot: an empty row.
            inputs: what the model's processor returns for one prompt, `input_ids` [1, n] among it.
            counts: vision tokens of each picture, where the tensors do not say it; see `vision.layout`.

        Raises:
            ContextError: it does not fit the context.
            ModelError: the model cannot go on from pictures token by token.
        """
        n = inputs["input_ids"].shape[1]
        self._refuse_beyond(n)
        reason = why_no_pictures(self.model.config, type(self.model).__name__)
        if reason:
            raise ModelError(reason, "Leave the pictures out, or choose a target that reads them.")
        inputs = {k: v.to(self.device, self.dtype if v.is_floating_point() else None) for k, v in inputs.items()}
        self.cache.window = Window(slice(slot.index, slot.index + 1), 0, None, n)
        begun, start = time.perf_counter(), self.clock.mark()
        with watched(self.model, self._layers[0]) as seen:
            logits = self.model(**inputs, past_key_values=self.cache, use_cache=True, logits_to_keep=2).logits
        self.meter.add(start, self.clock.mark(), [slot.owner])
        if self._multi_rope and self.model.model.rope_deltas is not None:
            slot.rope_delta = int(self.model.model.rope_deltas[0])
        elif "places" in seen:  # PaliGemma counts from 1
            slot.rope_delta = int(seen["places"][0, -1]) + 1 - n
        slot.length, slot.scratch = n - 1, 0
        features = seen["features"][0]
        slot.last_hidden = features[-2] if n > 1 else None
        slot.pictured = Pictured(
            seen["embeds"][0], features, *layout(self.model.config, inputs, counts), time.perf_counter() - begun
        )
        if not self._goes_on:
            self._try_to_go_on(slot, int(inputs["input_ids"][0, -1]), logits[0, -1])

    def _refuse_beyond(self, n: int) -> None:
        if n > self.context:
            raise ContextError(f"The text has {n} tokens, pictures included; the context holds {self.context}.")

    def _try_to_go_on(self, slot: Slot, last: int, wanted: Float[Tensor, " V"]) -> None:
        """Once a model: the prompt's last token, verified as all others will be, must give the model's own logits."""
        out = self.forward([Segment(slot, torch.tensor([last], device=self.device))])
        slot.scratch = 0
        error = _error(out.logits[0, -1], wanted)
        if not error <= GOES_ON[self.dtype]:
            slot.length = 0
            raise ModelError(
                f"{type(self.model).__name__} cannot be verified behind pictures: the token after them gets other "
                f"logits when it is read on its own (by {error:.1e} of the largest).",
                "Leave the pictures out, or choose a target of another family (LLaVA, Qwen-VL, SmolVLM, Gemma 3, …).",
            )
        self._goes_on = True

    def exit_states(self, batch: Sequence[Segment], exit_layer: int) -> Float[Tensor, "B n D"]:
        """The residual stream of new tokens behind the first layers, which are run; no logits are computed.

        Args:
            batch: as for `forward`.
            exit_layer: how many layers.
        """
        last = exit_layer - 1
        return self.forward(batch, layers=range(exit_layer), head=False, taps={last}).taps[last]

    def may_begin_at(self, layer: int) -> bool:
        """Whether a forward may go on from the states behind so many layers.

        Compiled passes give a token the same bits whatever is beside it, because their stream is never rounded to the
        model's type: one that was handed on is.
        """
        is_compiled = self._lean is not None and self._lean.fused is not None
        return 0 < layer < self.n_layers and not is_compiled and self._enters.get(layer, True)

    def forward_behind(self, batch: Sequence[Segment], layer: int, taps: Collection[int] = ()) -> Output:
        """As `forward`, of tokens that the first layers have read: their entries stand behind the committed part.

        The first time that a model begins at a layer it reads the tokens whole as well, and gives that. If the logits
        differ by more than rounding, as in a model that hands on more than one residual stream, it always will.

        Args:
            batch: each with the `states` behind the first layers.
            layer: how many layers those are.
            taps: of layers from there on.
        """
        if self.may_begin_at(layer):
            out = self.forward(batch, layers=range(layer, self.n_layers), taps=taps)
            if layer in self._enters:
                return out
        for segment in batch:
            segment.slot.scratch = 0
        whole = self.forward([dataclasses.replace(segment, states=None) for segment in batch], taps=taps)
        if self.may_begin_at(layer):
            error = max(
                _error(out.logits[b, : len(s.tokens)], whole.logits[b, : len(s.tokens)])
                for b, s in enumerate(sorted(batch, key=lambda s: s.slot.index))
            )
            self._enters[layer] = error <= GOES_ON[self.dtype]
        return whole

    def forward(
        self,
        batch: Sequence[Segment],
        last_only: bool = False,
        layers: Sequence[int] | None = None,
        head: bool = True,
        taps: Collection[int] = (),
    ) -> Output:
        """Run new tokens of several rows at once; each row's tokens are added to its scratch.

        Args:
            batch: one segment a row; the output has them in the order of their rows in the cache. Rows in between that
                are not asked for run along as padding.
            last_only: compute logits for the last position only (all segments must then have one length).
            layers: indices of the layers to run; all by default. They begin from the segments' `states`, if any.
            head: compute logits; without them only taps are worth reading.
            taps: indices of the layers whose residual stream is wanted.

        Raises:
            ModelError: a segment is a tree, and the model verifies chains only (see `probe.admit`).
        """
        if not torch.is_inference_mode_enabled():  # entering it takes 10 µs, and the loop is always in it
            with torch.inference_mode():
                return self.forward(batch, last_only, layers, head, taps)
        if self.why_no_trees and any(segment.sees is not None for segment in batch):
            raise ModelError(self.why_no_trees, "Take a method that drafts a chain: draft-model, prompt-lookup.")
        if len(batch) == 1:
            lo, hi, n = batch[0].slot.index, batch[0].slot.index + 1, batch[0].tokens.shape[0]
            ids = batch[0].tokens.unsqueeze(0)
            rows: list[Segment | None] = list(batch)
        else:
            batch = sorted(batch, key=lambda s: s.slot.index)
            lo, hi = batch[0].slot.index, batch[-1].slot.index + 1
            n = max(len(s.tokens) for s in batch)
            rows = [None] * (hi - lo)
            ids = torch.zeros(hi - lo, n, dtype=torch.long, device=self.device)
            for segment in batch:
                rows[segment.slot.index - lo] = segment
                ids[segment.slot.index - lo, : len(segment.tokens)] = segment.tokens
        states = _states(rows, n)
        mask, positions = self._geometry(rows, lo, n)
        self._taps, self._asked = {}, taps
        start = self.clock.mark()
        if self._lean is not None and isinstance(mask, Tensor):
            logits, self._hidden, self._taps = self._lean(
                ids, mask, positions, self.cache, layers, last_only, taps, head, states
            )
        else:
            model = self.model if layers is None else self._view(tuple(layers))
            with contextlib.nullcontext() if states is None else entered(self._layers[(layers or [0])[0]], states):
                logits = model(
                    input_ids=ids,
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=self.cache,
                    use_cache=True,
                    logits_to_keep=1 if last_only or not head else 0,
                ).logits
        self._asked = ()  # whoever calls the model itself taps nothing
        self.meter.add(start, self.clock.mark(), [segment.slot.owner for segment in batch])
        for segment in batch:
            segment.slot.scratch += segment.tokens.shape[0]  # (len() of a tensor takes 3 µs)
        assert self._hidden is not None
        if len(batch) == hi - lo:
            return Output(logits, self._hidden, self._taps)
        asked = [s.slot.index - lo for s in batch]
        return Output(logits[asked], self._hidden[asked], {k: v[asked] for k, v in self._taps.items()})

    def _view(self, layers: tuple[int, ...]) -> PreTrainedModel:
        if layers not in self._views:
            self._views[layers] = subset(self.model, layers)
        return self._views[layers]

    def _geometry(self, rows: list[Segment | None], lo: int, n: int) -> tuple[Tensor | dict[str, Tensor], Tensor]:
        """Mask and positions of a batch; sets the cache's window."""
        alone = rows[0] if len(rows) == 1 else None
        if alone is not None and not self.masks.positional and not self._multi_rope:  # the usual case, kept short
            slot = alone.slot
            begin = slot.length + slot.scratch
            used = self._used(begin + n)
            self.cache.window = Window(slice(lo, lo + 1), begin, None, used)
            place = begin + slot.rope_delta
            if alone.sees is None:
                return self.masks.chain(begin, n, used), self._numbers[place : place + n].unsqueeze(0)
            assert alone.depth is not None
            mask = self.masks.tree([slot.length], [alone.sees], n, used)
            return mask, (alone.depth + slot.length + slot.rope_delta).unsqueeze(0)
        slots = self.slots[lo : lo + len(rows)]
        begins = [slot.length + slot.scratch for slot in slots]
        used = self._used(max(begins) + n)
        if len(set(begins)) == 1:
            self.cache.window = Window(slice(lo, lo + len(rows)), begins[0], None, used)
        else:
            index = to_device(begins, self.device).unsqueeze(1) + self._numbers[:n]
            self.cache.window = Window(slice(lo, lo + len(rows)), None, index, used)
        if len(rows) == 1 and rows[0] is not None and rows[0].sees is None:
            base = begins[0] + slots[0].rope_delta
            positions = self._numbers[base : base + n].unsqueeze(0)
            full = self.masks.chain(begins[0], n, used)
        else:
            positions = to_device([[s.length + s.rope_delta] for s in slots], self.device).repeat(1, n)
            starts, sees = list(begins), [None if segment is None else segment.sees for segment in rows]
            for b, (slot, segment) in enumerate(zip(slots, rows, strict=True)):
                if segment is None:
                    continue
                n_i = len(segment.tokens)
                if segment.sees is None:
                    positions[b, :n_i] += self._numbers[slot.scratch : slot.scratch + n_i]
                else:
                    assert segment.depth is not None
                    starts[b] = slot.length
                    positions[b, :n_i] += segment.depth
            full = self.masks.tree(starts, sees, n, used)
        mask = full
        if self.masks.positional:
            places = positions - to_device([[slot.rope_delta] for slot in slots], self.device)
            mask = self.masks.of_kinds(full, places, self._key_positions(slots, places, begins, n, used))
        if self._multi_rope:
            positions = positions.unsqueeze(0).expand(3, -1, -1)
        return mask, positions

    def _used(self, needed: int) -> int:
        """Positions to read back for `needed` ones."""
        if needed > self.cache.capacity:
            raise CapacityError(
                f"A forward needs {needed} positions; the cache holds {self.cache.capacity}.", "Draft a smaller tree."
            )
        if self.device.type == "cuda":  # few shapes, so that kernels and graphs are reused
            return min(-(-needed // 128) * 128, self.cache.capacity)
        return needed

    def _key_positions(self, slots: list[Slot], positions: Tensor, begins: list[int], n: int, used: int) -> Tensor:
        """Position in the sequence of every cache entry, remembered for scratch nodes of earlier forwards."""
        key = torch.arange(used, device=self.device).repeat(len(slots), 1)
        for b, slot in enumerate(slots):
            if slot.scratch and slot.positions is not None:
                key[b, slot.length : slot.length + slot.scratch] = slot.positions[: slot.scratch]
            key[b, begins[b] : begins[b] + n] = positions[b]
            slot.positions = key[b, slot.length : begins[b] + n].clone()
        return key


def _states(rows: Sequence[Segment | None], n: int) -> Float[Tensor, "B n D"] | None:
    """What a forward begins from, padded to its longest segment; None: from embeddings."""
    given = [None if segment is None else segment.states for segment in rows]
    like = next((states for states in given if states is not None), None)
    if like is None:
        return None
    if len(rows) == 1:
        return like.unsqueeze(0)
    made = like.new_zeros(len(rows), n, like.shape[1])
    for b, states in enumerate(given):
        if states is not None:
            made[b, : states.shape[0]] = states
    return made


def _error(mine: Float[Tensor, "*b V"], own: Float[Tensor, "*b V"]) -> float:
    """Largest difference, as a share of the largest magnitude; tokens that neither knows (−∞) are left out."""
    known = (mine > -torch.inf) | (own > -torch.inf) | mine.isnan() | own.isnan()
    return float((mine[known] - own[known]).abs().max() / own[known].abs().max())
