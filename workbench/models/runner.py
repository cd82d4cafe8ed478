"""Run a Hugging Face model with a KV cache for draft trees: prefill, batched forward passes over trees, commits.

The model itself is not changed: it is called with an explicit mask, explicit positions and a `TreeCache`. `Runner` is
used for targets and draft models alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from workbench.core.errors import CapacityError, ContextError, ModelError
from workbench.core.transfer import to_device
from workbench.kernels.attention_span import attention_spans
from workbench.kernels.attention_temperature import scale_by_position
from workbench.kernels.cuda_graphs import CudaGraphRecorder
from workbench.kernels.device_clock import Clock, Meter
from workbench.kernels.forward_replay import MOST_TOKENS, ReplayCache, model_fingerprint
from workbench.kernels.kv_cache import TreeCache
from workbench.kernels.layers import (
    LayerSubsets,
    decoder_layers,
    has_rotary_positions,
    longest_context,
    override_input,
    refuse_unverifiable,
    text_config,
)
from workbench.kernels.lean import LeanDecoder
from workbench.kernels.masks import MaskMaker
from workbench.kernels.model_forward import Mask, ModelForward
from workbench.kernels.positions import ForwardInputBuilder
from workbench.kernels.quantised import refuse_int8, weight_dtype
from workbench.kernels.segment import Output, Segment, Slot, states_of
from workbench.kernels.self_test import ROUNDING, logits_error, make_gpu_decoder, make_lean_decoder
from workbench.kernels.weight_sharing import WeightSharingCopy

SCRATCH = 192
"""Number of KV-cache positions reserved after the context for drafted nodes: the size of the largest draft tree of a
round, root included. A decoder that keeps scratch nodes from round to round may use more positions while the text is
shorter than the context."""


class Runner:
    """A model with its KV cache for any number of sequences.

    Args:
        model: unmodified causal language model or image–text-to-text model, in eval mode.
        context: maximum length of a sequence in tokens; by default the model's own, at most 4,096.
        rows: initial number of cache rows (more are added when needed).
        past_trained: whether `context` may exceed the length that the model was trained on, if its positions are
            rotary.

    Raises:
        ModelError: the model has a state that cannot be rolled back, or its usable context is empty.
    """

    def __init__(
        self, model: PreTrainedModel, context: int | None = None, rows: int = 1, past_trained: bool = False
    ) -> None:
        refuse_unverifiable(model)
        self.model = model
        self.config = text_config(model.config)
        self.device, self.dtype = model.device, model.dtype
        _, layers = decoder_layers(model)
        self.n_layers = len(layers)
        longest, why_end = longest_context(self.config, SCRATCH)
        if longest < 1:
            raise ModelError(f"{type(model).__name__} is not supported: {why_end}.", "Use another model.")
        if context is not None and past_trained and not why_end and has_rotary_positions(model):
            longest = max(longest, context)
        self.context = min(context or 4096, longest)
        self.why_context = why_end if self.context == longest else ""
        self.why_no_trees = ""  # set by `admission.admit`
        self.cache = TreeCache(self.n_layers, rows, self.context + SCRATCH)
        spans = attention_spans(model, self.context)
        masks = MaskMaker(spans, self.dtype, self.device, self.cache.capacity)
        multi_rope = hasattr(getattr(model, "model", None), "rope_deltas")
        self.geometry = ForwardInputBuilder(masks, self.cache.capacity, multi_rope)
        self.clock, self.meter = Clock(self.device), Meter()
        self.slots: list[Slot] = []
        self._views = LayerSubsets(model)
        self._lean = make_lean_decoder(model, self.context + SCRATCH)
        self._gpu = make_gpu_decoder(model, self.context + SCRATCH)
        self.weight_dtype = weight_dtype(model)
        if self.weight_dtype != self.dtype and (self._lean is None or self._lean.fused is None):
            refuse_int8(model)
        self.layers = layers
        self.unknown_token: int | None = None  # set by `set_unknown_token` if some ids have no embedding
        self.is_image_decoding_tested = False  # whether decoding after images was tested: set by `prefill_images`
        self._enters: dict[int, bool] = {}
        self._own = ModelForward(self.lm_head, layers)
        scale_by_position(model)
        self.replays = (
            ReplayCache(CudaGraphRecorder(self.device)) if self.device.type == "cuda" and not multi_rope else None
        )

    # -- modules of the model that heads share ---------------------------------------------------------------------

    @property
    def lm_head(self) -> nn.Module:
        """Return the module of the LM head, which maps hidden states [.., D] to logits [.., V]."""
        head = self.model.get_output_embeddings()
        if head is None:
            raise ModelError(
                f"The model {type(self.model).__name__} has no language-model head.", "Use a causal language model."
            )
        return head

    @property
    def embed(self) -> nn.Module:
        """Return the module of the input embedding, which maps token ids [..] to vectors [.., D]."""
        return self.model.get_input_embeddings()

    @property
    def lean(self) -> LeanDecoder | None:
        """Return the faster decoder that replaces the model's own forward pass; None if the model is run itself."""
        return self._lean

    @property
    def runs_kernels(self) -> bool:
        """Return whether the model's forward passes over few tokens run on Triton kernels."""
        return self._gpu is not None

    @property
    def vocab_size(self) -> int:
        """Return the vocabulary size of the model: the number of logits per position."""
        return self.lm_head.get_parameter("weight").shape[0]

    @property
    def hidden_size(self) -> int:
        """Return the hidden size of the model: the width of the residual stream."""
        return self.config.hidden_size

    # -- ids of another model's padded vocabulary --------------------------------------------------------------------

    def set_unknown_token(self, n_ids: int, token: int) -> None:
        """Choose the substitute for token ids for which the model has no embedding.

        Models of one tokenizer pad their embeddings to different numbers of rows (Qwen2.5: 151,936 and 152,064).

        Args:
            n_ids: number of different token ids that texts may contain.
            token: id of the substitute, such as the tokenizer's `<unk>`.
        """
        rows = self.embed.get_parameter("weight").shape[0]
        self.unknown_token = None if n_ids <= rows else min(token, rows - 1)

    def replace_unknown(self, ids: Int[Tensor, "*b"]) -> Int[Tensor, "*b"]:
        """Return token ids; those for which the model has no embedding are replaced (see `set_unknown_token`)."""
        if self.unknown_token is None:
            return ids
        return ids.masked_fill(ids >= self.embed.get_parameter("weight").shape[0], self.unknown_token)

    # -- slots ---------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def open(self, owner: int | None = None) -> Slot:
        """Open an empty slot (row) of the KV cache; `owner` is the `id` of its sequence, None if unknown.

        Used rows stay contiguous: a slot's `index` may change when another slot closes.
        """
        if len(self.slots) == self.cache.n_rows:
            try:
                self.cache.grow(max(2 * self.cache.n_rows, 1))
            except (RuntimeError, MemoryError) as error:
                raise CapacityError(
                    f"There is no memory left for the KV cache of another sequence of {self.context} tokens.",
                    "Stop a run, or load the model with a shorter context.",
                ) from error
        if self._lean is not None:
            self._lean = self._lean.fresh()
        if self._gpu is not None:
            self._gpu = self._gpu.fresh()
        if self.replays is not None:
            self.replays.check((self.model.training, id(self.cache), self.cache.n_rows, model_fingerprint(self.model)))
        slot = Slot(len(self.slots), sequence_id=owner)
        self.cache.clear_row(slot.index)
        self.slots.append(slot)
        return slot

    @torch.inference_mode()
    def close(self, slot: Slot) -> None:
        """Release a sequence's slot of the KV cache. The last row of the cache moves into the row of this slot."""
        if slot not in self.slots:
            return
        last = self.slots.pop()
        if last is not slot:
            length = last.length if last.on_device is None else last.on_device.bound
            entries = length + max(last.scratch, SCRATCH)
            self.cache.move_row(last.index, slot.index, min(entries, self.cache.capacity))
            self.slots[slot.index], last.index = last, slot.index

    def rewind(self, slot: Slot, length: int) -> None:
        """Drop all tokens of a sequence after its first `length` positions from the KV cache."""
        slot.length, slot.scratch = min(slot.length, length), 0

    def commit(self, slot: Slot, path: Sequence[int], kept: Sequence[int] = ()) -> None:
        """Commit the accepted nodes of a sequence's draft in the KV cache, and drop all other drafted nodes.

        The nodes `path` are committed in order; the nodes `kept` remain as uncommitted scratch nodes.

        If only the device knows the slot's length, `path` must contain all scratch nodes; see also `DeviceLength`.

        Args:
            slot: slot of the sequence.
            path: nodes to commit, strictly increasing.
            kept: nodes that remain scratch nodes, strictly increasing and after `path`; they are renumbered from 0.
        """
        if slot.on_device is not None:
            assert list(path) == list(range(slot.scratch))  # the host can commit only what is in place
            slot.on_device, slot.scratch = slot.on_device.longer(slot.scratch), 0
            return
        nodes = [*path, *kept]
        self.cache.commit(slot.index, slot.length, nodes)
        if kept and slot.positions is not None:
            slot.positions = slot.positions[nodes[len(path) :]]
        slot.length += len(path)
        slot.scratch = len(kept)
        if slot.retention is not None:
            slot.retention.after_commit(self.cache, slot)

    # -- forwards ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def prefill(self, slot: Slot, tokens: Sequence[int], chunk: int = 512) -> None:
        """Prefill: run the next tokens of a sequence, `chunk` tokens per forward pass, and commit them.

        Hidden states that the sequence's slot selects are captured.

        Raises:
            ContextError: the tokens do not fit the context.
        """
        self.refuse_beyond(slot.length + len(tokens))
        ids = to_device(list(tokens), self.device, torch.long)
        for piece in ids.split(chunk):
            selection = slot.prefill_states.selection
            out = self.forward(
                [Segment(slot, piece)], last_only=True, everywhere=selection.features, capture_layers=selection.layers
            )
            slot.last_hidden = out.hidden[0, -1]
            self.commit(slot, range(len(piece)))
            slot.prefill_states.take(out, len(piece))

    def refuse_beyond(self, n: int) -> None:
        """Raise ContextError if a text of n tokens does not fit the model's context."""
        if n > self.context:
            raise ContextError(
                f"The text has {n} tokens, including those of images, but the context holds only {self.context}."
            )

    def exit_states(self, batch: Sequence[Segment], exit_layer: int) -> Float[Tensor, "B n D"]:
        """Run new tokens through the first layers only, and return their residual stream after these layers.

        Args:
            batch: one segment of new tokens per sequence, as for `forward`.
            exit_layer: number of layers to run.
        """
        last = exit_layer - 1
        return self.forward(batch, layers=range(exit_layer), head=False, capture_layers={last}).layer_states[last]

    def may_begin_at(self, layer: int) -> bool:
        """Return whether a forward pass may start from the hidden states after `layer` layers.

        With compiled layers it may not: they keep their residual stream in float32, but states that are passed in are
        rounded to the model's dtype, so the results would differ. It may not either if an earlier comparison of the
        results for this layer failed (`forward_from`).
        """
        is_compiled = self._lean is not None and self._lean.fused is not None
        return 0 < layer < self.n_layers and not is_compiled and self._enters.get(layer, True)

    def forward_from(self, batch: Sequence[Segment], layer: int, capture_layers: Collection[int] = ()) -> Output:
        """Run uncommitted tokens, which the first layers have already processed, through the remaining layers.

        The keys and values of these tokens in the first layers are scratch entries of the KV cache.

        At the first use of a starting layer, the tokens are also run through the whole model, and the result of the
        whole model is returned. If the logits differ by more than rounding, as for models with more than one residual
        stream, the whole model is used from then on.

        Args:
            batch: segments, each with the `states` after the first layers.
            layer: number of first layers that have processed the tokens.
            capture_layers: indices of layers to capture, `layer` or higher.
        """
        if self.may_begin_at(layer):
            out = self.forward(batch, layers=range(layer, self.n_layers), capture_layers=capture_layers)
            if layer in self._enters:
                return out
        for segment in batch:
            segment.slot.scratch = 0
        full_output = self.forward(
            [dataclasses.replace(segment, states=None) for segment in batch], capture_layers=capture_layers
        )
        if self.may_begin_at(layer):
            error = max(
                logits_error(out.logits[b, : len(s.tokens)], full_output.logits[b, : len(s.tokens)])
                for b, s in enumerate(sorted(batch, key=lambda s: s.slot.index))
            )
            self._enters[layer] = error <= ROUNDING[self.dtype]
        return full_output

    def forward(
        self,
        batch: Sequence[Segment],
        last_only: bool = False,
        layers: Sequence[int] | None = None,
        head: bool = True,
        capture_layers: Collection[int] = (),
        skipped_halves: Collection[int] = (),
        shared_copy: WeightSharingCopy | None = None,
        everywhere: bool = False,
    ) -> Output:
        """Run new tokens of several sequences in one forward pass; the tokens become uncommitted scratch nodes.

        Args:
            batch: one segment of new tokens per sequence; outputs are in the order of the cache rows. Cache rows
                between those of the batch are padding.
            last_only: whether to compute logits for the last position only; all segments must then have the same
                length.
            layers: indices of the layers to run; all by default. The first of these layers reads the segments'
                `states`, if any.
            head: whether to compute logits; if not, only the captured hidden states are meaningful.
            capture_layers: indices of the layers after which hidden states are captured.
            skipped_halves: attention or MLP halves of layers that are left out (see `workbench.kernels.layers`).
                Without its attention a layer writes no cache entries.
            shared_copy: weight-sharing copy that runs instead of the model, over its KV cache.
            everywhere: whether to return the LM head's input at every position even with `last_only`.

        Raises:
            ModelError: a segment is a tree, and the model supports only chains (see `admission.admit`).
        """
        if not torch.is_inference_mode_enabled():  # entering it takes 10 µs, and the decoding loop is always in it
            with torch.inference_mode():
                return self.forward(
                    batch, last_only, layers, head, capture_layers, skipped_halves, shared_copy, everywhere
                )
        if self.why_no_trees and any(segment.attention_mask is not None for segment in batch):
            raise ModelError(
                self.why_no_trees, "Use a method that drafts a chain, such as draft-model or prompt-lookup."
            )
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
        if self.unknown_token is not None:
            ids = self.replace_unknown(ids)
        states = states_of(rows, n, self.embed)
        mask, positions = self.geometry.build(rows, self.slots, lo, self.cache, n)
        start = self.clock.mark()
        lean = self._lean if shared_copy is None else shared_copy.lean
        if lean is not None and isinstance(mask, Tensor):
            out = Output(
                *lean(
                    ids,
                    mask,
                    positions,
                    self.cache,
                    layers,
                    last_only,
                    capture_layers,
                    head,
                    states,
                    skipped_halves,
                    everywhere,
                )
            )
        else:
            runs_kernels = (
                self._gpu is not None
                and shared_copy is None
                and isinstance(mask, Tensor)
                and self._gpu.supports((hi - lo, n))
            )
            model = self._views(layers, skipped_halves) if shared_copy is None else shared_copy.model

            def read(ids: Tensor, mask: Mask, positions: Tensor, states: Tensor | None) -> Output:
                if runs_kernels:
                    assert self._gpu is not None
                    assert isinstance(mask, Tensor)
                    options = layers, last_only, capture_layers, head, states, skipped_halves, everywhere
                    return Output(*self._gpu(ids, mask, positions, self.cache, *options))
                with override_input(self.embed, self.layers, (layers or [0])[0], states):
                    last = (last_only and not everywhere) or not head
                    return self._own(model, self.cache, ids, mask, positions, frozenset(capture_layers), last)

            if self.replays is None or shared_copy is not None or n * (hi - lo) > MOST_TOKENS:
                out = read(ids, mask, positions, states)
            else:
                kind = (
                    layers and tuple(layers),
                    frozenset(skipped_halves),
                    frozenset(capture_layers),
                    (last_only, head, everywhere),
                    states is None,
                )
                out = self.replays(kind, read, self.cache, ids, mask, positions, states)
        self.meter.add(start, self.clock.mark(), [segment.slot.sequence_id for segment in batch])
        for segment in batch:
            segment.slot.scratch += segment.tokens.shape[0]  # (len() of a tensor takes 3 µs)
        if len(batch) == hi - lo:
            return out
        batch_rows = [s.slot.index - lo for s in batch]
        return Output(
            out.logits[batch_rows], out.hidden[batch_rows], {k: v[batch_rows] for k, v in out.layer_states.items()}
        )
