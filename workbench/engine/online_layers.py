"""A draft model's layers that go on learning, apart from those that others draft with.

A pupil is a twin of a loaded model: it has layers of its own and shares all else, the embedding, the LM head and the
cache in which its rows lie. So it costs what its layers weigh, and nothing that it learns reaches another run unless
that run drafts with the same pupil.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.transfer import to_device
from workbench.engine.online_weights import Learner
from workbench.kernels.layers import decoder_layers, with_layers
from workbench.kernels.lean import LeanDecoder, LeanLayer
from workbench.kernels.packed import PackedLinear, unpacked
from workbench.kernels.reduced_vocabulary import TrimmedLinear
from workbench.kernels.weight_sharing import Twin
from workbench.models.fingerprint import differ, fingerprint
from workbench.models.runner import Runner

CLIP = 1.0
"""Largest norm of a step's gradient: the first lesson of a new kind of text would throw it off otherwise."""


class Pupil(Learner):
    """Own layers for a model, an optimiser, and what they came from.

    Args:
        runner: the model, which is not changed.

    Attributes:
        twin: what runs in the model's place; another one after each lesson.
        loss: of the last lesson, in nats a place.
    """

    called = "draft model"

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        with torch.inference_mode(False), torch.no_grad():
            layers = [_plain(copy.deepcopy(layer)) for layer in runner.layers]
            for layer in layers:
                layer.requires_grad_(True)
            self._layers = nn.ModuleList(layers)
            self._model = with_layers(runner.model, layers)
        self._steps = self._beginning()
        self.twin = self._as_it_is()

    def learn(
        self,
        tokens: Sequence[int],
        start: int,
        at: Sequence[int],
        laws: Float[Tensor, "n V"],
        rate: float,
    ) -> float:
        """One step towards the target's laws at some places of a text: D(p ‖ q), the mean of the places, in nats.

        Args:
            tokens: of the text, read as it stands.
            start: position of the first of them.
            at: places in `tokens` behind which a law is known.
            laws: the target's there, plain. Of what the model cannot say nothing is asked.
            rate: AdamW's learning rate.
        """

        def divergence(said: Float[Tensor, "m V"]) -> Tensor:
            q = said.index_select(0, to_device(list(at), self.runner.device, torch.long))
            if q.shape[1] > laws.shape[1]:  # rows that only pad the model's vocabulary are never drafted
                q = q[:, : laws.shape[1]]
                q = q - q.logsumexp(1, keepdim=True)
            p = laws.clone().to(q.dtype)[:, : q.shape[1]]
            p = p.masked_fill(q == -torch.inf, 0.0)
            p = p / p.sum(1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
            return (torch.special.xlogy(p, p) - p * q.masked_fill(q == -torch.inf, 0.0)).sum(1).mean()

        return self.step(tokens, start, divergence, rate)

    def step(
        self, tokens: Sequence[int], start: int, loss_of: Callable[[Float[Tensor, "m V"]], Tensor], rate: float
    ) -> float:
        """One step down any loss of the log laws behind each token of a text; gives the loss.

        Args:
            tokens: of the text, read as it stands.
            start: position of the first of them.
            loss_of: what is to fall. It is called where gradients are recorded, and clones what it reads beside.
            rate: AdamW's learning rate.
        """
        with torch.inference_mode(False), torch.enable_grad():
            loss = loss_of(self.log_laws(tokens, start))
            self._steps.param_groups[0]["lr"] = rate
            loss.backward()
            nn.utils.clip_grad_norm_(self._layers.parameters(), CLIP)
            self._steps.step()
            self._steps.zero_grad()
        self.lessons += 1
        self.loss = float(loss.item())
        self.settle()
        return self.loss

    def log_laws(self, tokens: Sequence[int], start: int = 0) -> Float[Tensor, "n V"]:
        """The log of q behind each token of a text, read without a cache; −∞ for tokens that the model cannot say."""
        ids = self.runner.known(to_device(list(tokens), self.runner.device, torch.long)).unsqueeze(0)
        places = torch.arange(start, start + len(tokens), device=ids.device).unsqueeze(0)
        head = self.runner.lm_head
        if not isinstance(head, TrimmedLinear):
            with unpacked(self._model):
                out = self._model(input_ids=ids, position_ids=places, use_cache=False)
            return out.logits[0].float().log_softmax(1)
        trunk = self._model.get_decoder()
        assert isinstance(trunk, nn.Module)
        hidden = trunk(input_ids=ids, position_ids=places, use_cache=False).last_hidden_state[0]
        said = F.linear(hidden, head.weight[head.kept]).float().log_softmax(1)
        return said.new_full((len(said), head.out_features), -torch.inf).index_copy(1, head.kept, said)

    def forget(self) -> None:
        """Be again what the model was trained to be."""
        self.begin_again()
        self._steps = self._beginning()
        self.settle()

    @property
    def n_bytes(self) -> int:
        """Of the own layers, their gradients' two moments, and the copies that a lean decoder keeps."""
        own = sum(p.numel() * p.element_size() for p in self._layers.parameters())
        return own * (3 if self.twin.lean is None else 4)

    @property
    def whose(self) -> str:
        """The model's fingerprint."""
        return fingerprint(self.runner.model)

    def began_as(self, whose: str) -> bool:
        """Whether it is that of these weights, rounded or not."""
        return not differ(whose, self.whose)

    def pairs(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The layers' weights, and the model's own."""
        origins = (p for layer in self.runner.layers for p in layer.parameters())
        for (name, mine), origin in zip(self._layers.named_parameters(), origins, strict=True):
            yield name, mine.detach(), origin.detach()

    def settle(self) -> None:
        """Another twin, of the layers as they are."""
        self.twin = self._as_it_is()

    def _beginning(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(self._layers.parameters(), weight_decay=0.0, betas=(0.9, 0.99), fused=True)

    def _as_it_is(self) -> Twin:
        """What drafts from now on: a lean decoder of the layers as they are, where the model has one."""
        whole = self.runner.lean
        if whole is None:
            return Twin(self._model)
        lean: LeanDecoder = copy.copy(whole)
        lean.layers, lean.fused = [LeanLayer(layer) for layer in decoder_layers(self._model)[1]], None
        return Twin(self._model, lean)


def _plain(layer: nn.Module) -> nn.Module:
    """The layer with ordinary products: gradients do not pass through packed ones."""
    for module in layer.modules():
        if type(module) is PackedLinear:
            module.__class__ = nn.Linear  # pyright: ignore[reportAttributeAccessIssue]
    return layer
