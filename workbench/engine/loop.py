"""The round: plan, draft, verify, judge, commit. For many rows at once, each with its own method and parameters.

prompt ─► prefill ─► ┌ plan ─► propose ─► verify ─► judge ─► commit ┐ ─► tokens
                     └───────────────── observe ◄──────────────────┘
"""

from __future__ import annotations

import itertools
import logging
import platform
import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

import workbench
from workbench.core.errors import (
    CapacityError,
    MethodUnavailableError,
    NumericalError,
    PromptError,
    WorkbenchError,
    as_said,
)
from workbench.core.panics import no_panic
from workbench.core.transfer import to_device, to_host
from workbench.core.tree import DraftTree, ancestors
from workbench.engine.changing import let_go, levels_left, prime, put_in_force
from workbench.engine.clock import Clock, Span
from workbench.engine.detokenise import TokenText, detokeniser
from workbench.engine.extras import prefill_scored, scored
from workbench.engine.judging import N_FIGURES, figures
from workbench.engine.models import Models, encode
from workbench.engine.parts import Outcome, Plan
from workbench.engine.pictures import check_end, check_text, shown, tokens_of
from workbench.engine.recording import Judged, record_round
from workbench.engine.request import (
    CANCELLED,
    ENDED,
    ERROR,
    FINISHED,
    PREFILL,
    SAMPLING_NAMES,
    Request,
    Row,
)
from workbench.engine.runner import SCRATCH, Segment
from workbench.engine.selfcheck import warnings_for
from workbench.engine.timing import Drafting, Timing, share
from workbench.trace.events import Change, Footer, Header, Trace

log = logging.getLogger(__name__)

PREFILL_CHUNK = 512


class Engine:
    """Runs requests on one set of models, in rounds. Not thread-safe: one thread calls `step`.

    Requests join (`submit`) and leave between rounds. What a row generates does not depend on its batch mates, up to
    floating-point rounding of batched matrix products.

    Args:
        models: target, tokenizer, draft model, heads.
        max_rows: requests that run at once; more wait in the order they came.
        record: keep the likeliest tokens and the entropy at every node in the trace.
    """

    def __init__(self, models: Models, max_rows: int = 16, record: bool = True) -> None:
        self.models = models
        self.max_rows = max_rows
        self.record = record
        self.clock = Clock(models.target.device)
        models.target.clock = self.clock
        self.token_text = TokenText(models.tokenizer)
        self.waiting: deque[Row] = deque()
        self.rows: list[Row] = []

    # -- requests ------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Row:
        """Check a request and queue it.

        Raises:
            PromptError: empty, or no room for a single new token.
            MethodUnavailableError: the models lack what the method needs.
            WorkbenchError: a parameter is wrong.
        """
        prompt = self._prompt_ids(request)
        configured = request.configured()
        request.extras.check(self.models.target.vocab_size)
        models = request.models or self.models
        if models.drafter is not None:
            models.drafter.clock = self.clock
        reason = models.why_not(configured.method.needs)
        if reason:
            raise MethodUnavailableError(f"{configured.method.title} cannot run: {reason}", "See `workbench methods`.")
        if request.max_new_tokens < 1:
            raise PromptError(f"max_new_tokens={request.max_new_tokens} asks for nothing.", "Use 1 or more.")
        request.swaps, request.scores, request.prompt_scores = [], [], []  # of a run of it before this one
        row = Row(request, prompt, models)
        room = self.models.target.context - len(prompt)
        notes = []
        if row.max_new_tokens > room:
            why = self.models.target.why_context or "the context ends there"
            notes.append(f"max_new_tokens was cut from {row.max_new_tokens} to {room}: {why}.")
            row.max_new_tokens = room
        notes += [notice] if (notice := row.drafter.notice()) else []
        notes += [note for picture in request.pictures if (note := picture.info.get("note"))]
        row.trace = Trace(self._header(row), footer=Footer(warnings=notes))
        self.waiting.append(row)
        return row

    def generate(self, request: Request) -> Trace:
        """Run one request to its end.

        Raises:
            WorkbenchError: the request is wrong, or the run failed.
        """
        row = self.submit(request)
        while row.status not in ENDED:
            self.step()
        assert row.trace is not None
        if row.status == ERROR:
            raise WorkbenchError(row.trace.footer.error)
        return row.trace

    def _prompt_ids(self, request: Request) -> list[int]:
        if request.images is not None:
            prompt = request.images["input_ids"][0].tolist()
        elif isinstance(request.prompt, str):
            prompt = encode(self.models.tokenizer, request.prompt)
        else:
            prompt = [int(t) for t in request.prompt]
        if request.images is None:
            prompt = request.extras.kept(prompt)
        context, vocabulary = self.models.target.context, self.models.target.vocab_size
        if not prompt:
            raise PromptError("The prompt is empty.", "Write at least one token for the model to continue.")
        if len(prompt) >= context:
            raise PromptError(
                f"The prompt has {len(prompt)} tokens; the context holds {context}, one of which must stay free.",
                f"Shorten it by {len(prompt) - context + 1} tokens or more"
                + (f": {why}." if (why := self.models.target.why_context) else "."),
            )
        if request.images is not None:
            check_end(self.models, prompt)
            return prompt
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            raise PromptError(f"The prompt holds token ids outside 0…{vocabulary - 1}.", "Use the target's tokenizer.")
        check_text(self.models, prompt)
        return prompt

    def _header(self, row: Row) -> Header:
        request, models = row.request, row.models
        is_cut = request.images is None and request.extras.truncate_prompt == len(row.committed)
        asked = request.prompt if len(request.prompt) and not is_cut else row.committed
        return Header(
            target=models.target_name,
            drafter=models.drafter_name,
            method=row.configured.name,
            params=self._params_of(row),
            promise=row.configured.promise.value,
            simulation=row.configured.promise.value == "simulation",
            seed=request.seed,
            prompt=asked if isinstance(asked, str) else models.tokenizer.decode(asked),
            prompt_tokens=list(row.committed),
            prompt_text=[self.token_text(t) for t in row.committed],
            max_new_tokens=row.max_new_tokens,
            dtype=str(models.target.dtype).removeprefix("torch."),
            device=str(models.target.device),
            created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            hardware=platform.processor() or platform.machine(),
            workbench=workbench.__version__,
            pictures=[] if request.images is None else shown(self.models, request.images, request.pictures),
        )

    @staticmethod
    def _params_of(row: Row) -> dict[str, object]:
        sampling = {name: getattr(row.sampling, name) for name in SAMPLING_NAMES}
        return {**row.configured.values, **sampling}

    # -- one step ------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no request is waiting or running."""
        return not self.waiting and not self.rows

    @torch.inference_mode()
    def step(self) -> bool:
        """Admit, prefill a piece, run one round. Returns whether anything was done (paused rows do nothing)."""
        for row in [r for r in itertools.chain(self.waiting, self.rows) if r.is_cancelled]:
            self._end(row, CANCELLED, "cancelled")
        worked = self._admit()
        rows = [row for row in self.rows if row.primed and row.may_run()]
        rows = [row for row in rows if self._guard(row, self._prepare, row)]
        if rows:
            self._round(rows)
        return worked or bool(rows)

    def _guard(self, row: Row, act: object, *args: object) -> bool:
        """Run something for one row; an error ends that row and no other."""
        try:
            with no_panic():
                act(*args)  # type: ignore[operator]
        except Exception as error:  # a bug in one method must not stop the others
            self._fail(row, as_said(error), error)
        return row.status not in ENDED

    def _fail(self, row: Row, error: WorkbenchError, cause: BaseException) -> None:
        assert row.trace is not None
        row.trace.footer.error = str(error)
        row.error = cause
        self._end(row, ERROR, "error")

    def _admit(self) -> bool:
        """Open one waiting row, and prefill one piece of one row that is not ready."""
        if self.waiting and len(self.rows) < self.max_rows:
            row = self.waiting.popleft()
            self.rows.append(row)
            row.status = PREFILL
            self._guard(row, self._open, row)
        for row in self.rows:
            if not row.primed and not row.held:
                self._guard(row, self._prefill, row)
                return True
        return False

    def _open(self, row: Row) -> None:
        row.slot = self.models.target.open(id(row))
        row.detokeniser = detokeniser(self.models.tokenizer, row.committed, self.token_text.pieces)
        row.prefill_start = time.perf_counter()

    def _prefill(self, row: Row) -> None:
        """Run the next piece of the prompt; after the last one, prime the drafter."""
        assert row.slot is not None
        assert row.trace is not None
        if row.images is not None:
            counts = tokens_of(self.models, row.images, row.pictures)
            self.models.target.prefill_multimodal(row.slot, row.images, counts)
        else:
            piece = row.committed[: row.prompt_length - 1][row.slot.length : row.slot.length + PREFILL_CHUNK]
            n_top = row.request.extras.prompt_logprobs
            if piece and n_top is not None:
                piece = row.committed[row.slot.length :][: len(piece) + 1]
                found = prefill_scored(self.models.target, row.slot, piece, n_top, self.token_text)
                row.request.prompt_scores.extend(found)
            elif piece:
                self.models.target.prefill(row.slot, piece)
            if row.slot.length < row.prompt_length - 1:
                return
        row.state = prime(row, row.drafter, row.models)
        row.primed = True  # from here on the drafter holds something, which the row's end gives back
        row.policy_state = row.policy.start()
        row.trace.header.prefill_s = time.perf_counter() - row.prefill_start
        row.origin = self.clock.mark()
        row.origin_s = time.perf_counter()

    def _prepare(self, row: Row) -> None:
        """Put changes into force and plan the round: no deeper than the text and the drafter's positions go on."""
        row.signals, row.notes = {}, []
        put_in_force(row, self.models.target)
        plan = row.policy.plan(row, row.policy_state)
        row.plan = Plan(max(0, min(plan.depth, row.remaining - 1, levels_left(row))), plan.stop_below)

    def _take_spans(self, rows: list[Row]) -> list[Span]:
        """Forwards since the last call, of whichever models the rows use."""
        meters = {id(m): m for row in rows for m in row.models.meters}
        return [span for meter in meters.values() for span in meter.take()]

    def _round(self, rows: list[Row]) -> None:
        t_round = time.perf_counter()
        self._take_spans(rows)
        start = self.clock.mark()
        trees, drafting = self._draft(rows)
        rows = [row for row in rows if id(row) in trees]
        if not rows:
            return
        verify = self.clock.mark()
        logits, hidden = self._verify(rows, [trees[id(row)] for row in rows])
        rows = [row for row in rows if id(row) in logits]
        judge = self.clock.mark()
        judged = self._judge(rows, [trees[id(row)] for row in rows], [logits[id(row)] for row in rows])
        commit = self.clock.mark()
        spans = self._take_spans(rows)
        drafted = {row: work for group in drafting for row, work in share(group.spans, group.rows).items()}
        verified = share(spans, [id(row) for row in rows])
        when = {row: group for group in drafting for row in group.rows}
        forwards_s = sum(work.part_s for work in drafted.values()) + sum(span.seconds for span in spans)
        for row, verdict in judged:
            key = id(row)
            timing = Timing(
                start, verify, judge, commit, when[key], drafted[key], verified[key], forwards_s, len(judged)
            )  # fmt: skip
            self._guard(row, self._commit, row, verdict, hidden[key], timing, t_round)

    def _draft(self, rows: list[Row]) -> tuple[dict[int, DraftTree], list[Drafting]]:
        """One tree a row, and what they took; rows of one drafter class are drafted together where it can."""
        trees: dict[int, DraftTree] = {}
        drafting: list[Drafting] = []
        groups: dict[tuple[type, int, int], list[Row]] = {}
        now = self.clock.mark()
        for row in rows:
            if row.plan.depth > 0:
                alone = 0 if row.drafter.batches() else id(row)
                groups.setdefault((type(row.drafter), id(row.models.drafter), alone), []).append(row)
            else:
                trees[id(row)] = DraftTree.empty(device=self.models.target.device)
                drafting.append(Drafting(now, now, (id(row),)))
        for group in groups.values():
            start = self.clock.mark()
            trees.update(self._propose(group))
            drafting.append(Drafting(start, self.clock.mark(), tuple(map(id, group)), self._take_spans(group)))
        return trees, drafting

    def _propose(self, group: list[Row]) -> dict[int, DraftTree]:
        """Trees by row. A row whose drafter fails ends, and has none."""
        trees: dict[int, DraftTree] = {}
        if len(group) == 1:
            self._guard(group[0], lambda: trees.__setitem__(id(group[0]), group[0].drafter.propose(group)[0]))
            return trees
        try:
            with no_panic():
                return dict(zip(map(id, group), group[0].drafter.propose(group), strict=True))
        except Exception:  # find the row that fails; keep the others
            for row in group:
                self._guard(row, lambda r=row: trees.__setitem__(id(r), self._propose_again(r)))
        return trees

    @staticmethod
    def _propose_again(row: Row) -> DraftTree:
        """Propose from a new state: a batch that failed may have left the old one half done."""
        if row.slot is not None:
            row.slot.scratch = 0
        let_go(row)
        row.state = prime(row, row.drafter, row.models)
        return row.drafter.propose([row])[0]

    def _segment(self, row: Row, tree: DraftTree) -> Segment:
        """The last committed token and the draft behind it."""
        assert row.slot is not None
        row.slot.scratch = 0
        root = to_device(row.committed[-1:], self.models.target.device)
        if len(tree) == 0:
            return Segment(row.slot, root)
        tokens = torch.cat([root, tree.tokens])
        if tokens.shape[0] > SCRATCH:
            raise CapacityError(f"A draft of {len(tree)} nodes is too large.", f"Draft at most {SCRATCH - 1}.")
        if tree.fanout <= 1:
            return Segment(row.slot, tokens)
        parents = torch.cat([tree.parents.new_full((1,), -1), tree.parents + 1])
        sees = ancestors(parents, tree.depth + 1)
        return Segment(row.slot, tokens, sees, sees.sum(1) - 1)

    def _verify(self, rows: list[Row], trees: list[DraftTree]) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Target logits [N+1, V] and hidden states [N+1, D] for each row, from one forward."""
        segments: list[tuple[Row, Segment]] = []
        for row, tree in zip(rows, trees, strict=True):
            self._guard(row, lambda r=row, t=tree: segments.append((r, self._segment(r, t))))
        if not segments:
            return {}, {}
        segments.sort(key=lambda pair: pair[1].slot.index)
        try:
            out = self.models.target.forward([segment for _, segment in segments])
            found = [(row, out.logits[b], out.hidden[b], segment) for b, (row, segment) in enumerate(segments)]
        except Exception as error:
            if len(rows) == 1:
                raised = error

                def fail() -> None:
                    raise raised

                self._guard(rows[0], fail)
                return {}, {}
            merged: tuple[dict[int, Tensor], dict[int, Tensor]] = ({}, {})
            fitting = {id(row) for row, _ in segments}
            for row, tree in zip(rows, trees, strict=True):
                if id(row) not in fitting:
                    continue
                for into, part in zip(merged, self._verify([row], [tree]), strict=True):
                    into.update(part)
            return merged
        return (
            {id(row): logits[: segment.tokens.shape[0]] for row, logits, _, segment in found},
            {id(row): hidden[: segment.tokens.shape[0]] for row, _, hidden, segment in found},
        )

    def _judge(self, rows: list[Row], trees: list[DraftTree], logits: list[Tensor]) -> list[tuple[Row, Judged]]:
        """Apply each row's rule on the device, then bring everything over in one synchronisation."""
        carried: list[Tensor] = []
        ruled: list[tuple[Row, DraftTree]] = []
        for row, tree, raw in zip(rows, trees, logits, strict=True):
            if self._guard(row, lambda r=row, t=tree, x=raw: carried.extend(figures(r, t, x, self.record))):
                ruled.append((row, tree))
        lists = to_host(carried)
        judged: list[tuple[Row, Judged]] = []
        for i, (row, tree) in enumerate(ruled):
            mine = lists[N_FIGURES * i : N_FIGURES * (i + 1)]
            self._guard(row, lambda r=row, t=tree, f=mine: judged.append((r, Judged.of(t, f, r.verifier, r.uniform))))
        return judged

    def _commit(self, row: Row, judged: Judged, hidden: Tensor, timing: Timing, t_round: float) -> None:
        """Move the accepted path into the cache, emit its tokens, tell the drafter, record the round."""
        assert row.slot is not None
        assert row.trace is not None
        assert row.detokeniser is not None
        if judged.is_nan:
            raise NumericalError(
                "The target returned NaN instead of probabilities.",
                "Try another dtype; bfloat16 or float32 often helps.",
            )
        verdict = judged.verdict
        tokens = [*(judged.tokens[i] for i in verdict.path), verdict.bonus]
        kept, reason, spans_text = self._cut(row, tokens)
        root = row.committed[-1]
        path = verdict.path[:kept]
        self.models.target.commit(row.slot, [0, *(node + 1 for node in path)])
        row.slot.last_hidden = hidden[path[-1] + 1 if path else 0]
        row.committed.extend(tokens[:kept])
        if row.raw is not None:
            places = [0, *(node + 1 for node in verdict.path)][:kept]
            n_top = row.request.extras.logprobs or 0
            row.request.scores.extend(scored(row.raw[places], tokens[:kept], n_top, self.token_text))
        emitted, top = tokens[:kept], judged.top_tokens
        outcome = Outcome(judged.tokens, judged.parents, verdict, emitted, root, top, row.plan, hidden)
        if not reason:
            if not row.silenced:
                row.drafter.observe(row, outcome)
            row.policy.observe(row, row.policy_state, outcome)
        changes: list[Change] = row.changes
        record = record_round(
            row, judged, kept, spans_text, changes, timing, self._params_of(row), self.token_text, self.record, t_round
        )
        row.trace.rounds.append(record)
        row.pace.emitted(kept)
        for warning in warnings_for(row, row.models):
            if warning not in row.trace.footer.warnings:
                row.trace.footer.warnings.append(warning)
                record.notes.append(warning)
        if row.request.on_round is not None:
            row.request.on_round(record)
        if reason:
            self._end(row, FINISHED, reason)

    def _cut(self, row: Row, tokens: Sequence[int]) -> tuple[int, str, list[tuple[str, int, int]]]:
        """How many of the new tokens are emitted, why the text ends (or ""), and the span of each."""
        assert row.detokeniser is not None
        spans, extras = [], row.request.extras
        for i, token in enumerate(tokens):
            spans.append(row.detokeniser.add(token))
            if row.request.stop_at_eos and token in self.models.eos:
                return i + 1, "eos", spans
            if token in extras.stop_tokens:
                row.cut_text_at = spans[-1][1]
                return i + 1, "stop-token", spans
            if row.request.stop_when is not None and row.request.stop_when([*row.committed, *tokens[: i + 1]]):
                return i + 1, "criterion", spans
            if row.request.stop and spans[-1][0] and row.n_new + i >= extras.min_tokens:
                text, begin = row.detokeniser.text, spans[-1][1]
                found = [text.find(stop, max(0, begin - len(stop) + 1)) for stop in row.request.stop]
                # The earliest in the text, not the first of the list; of several that begin there, the cut is the same.
                row.cut_text_at = min((at for at in found if at >= 0), default=None)
                if row.cut_text_at is not None:
                    return i + 1, "stop-string", spans
            if row.n_new + i + 1 >= row.max_new_tokens:
                return i + 1, "length", spans
        return len(tokens), "", spans

    def _end(self, row: Row, status: str, reason: str) -> None:
        """Close a row, whatever ended it; its trace stays."""
        if row in self.rows:
            self.rows.remove(row)
        elif row in self.waiting:
            self.waiting.remove(row)
        if row.primed:
            let_go(row)
        if row.slot is not None:
            self.models.target.close(row.slot)
            row.slot = None
        footer = row.trace.footer if row.trace is not None else Footer()
        footer.reason = reason
        if row.detokeniser is not None:
            try:
                with no_panic():
                    row.detokeniser.flush()
            except Exception:  # what failed may be the tokenizer itself: the text so far stays
                log.exception("the end of a text could not be read")
            footer.text = row.detokeniser.text
            if row.cut_text_at is not None:
                footer.text = footer.text[: row.cut_text_at]
        if row.origin_s is not None:
            footer.seconds = time.perf_counter() - row.origin_s - row.pace.still_s
        row.status = status
        row.ended.set()
