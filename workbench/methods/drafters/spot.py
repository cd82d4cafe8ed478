"""Spot training: train EAGLE's layer on features that decoding itself has computed.

    texts that the target writes ─► tokens and features, tagged with the step of its weights ─► pool
    pool, the last two steps alone ─► random windows ─► training step ─► the net that drafts from now on

A training step uses only the target's embedding and LM head, which stay as they are: features were computed when their
text was verified. A pair at s predicts the feature at s + 1, as in the training of the initial head.

"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.transfer import on_host, to_device
from workbench.decoders.draft_verify.online_weights import OnlineTrainer
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.methods.drafters.compiled_feature_net import CompiledFeatureNet, compile_net
from workbench.methods.drafters.feature_net import FeatureNet
from workbench.models.loading import HeadInfo
from workbench.models.runner import SCRATCH, Runner

CLIP = 0.5
"""Largest norm of the gradient of a training step."""
OF_FEATURES, OF_LAWS = 1.0, 0.1
"""Weights of EAGLE's two losses: Huber distance of features, cross-entropy with the target's distribution."""
MOST_PLACES = 16_384
"""Largest number of positions of text whose features a pool keeps."""
MOST_LAWS = 512
"""Positions per training step at which distributions are compared; the LM head is most of its cost."""
STEPS = 2
"""Steps of the target's weights that a training step samples from, including the newest."""


@dataclass(slots=True, eq=False)
class Text:
    """A text that is being generated, and the target's LM head inputs at all of its positions but the last.

    Attributes:
        step: step of the target's weights when the text began.
        n_prompt: tokens of the prompt, which are not trained on.
        tokens: prompt and answer.
        features: features of the text, in pieces.
    """

    step: int
    n_prompt: int
    tokens: list[int]
    features: list[Float[Tensor, "m D"]]

    def __len__(self) -> int:
        """Number of positions with a feature."""
        return len(self.tokens) - 1

    def whole(self) -> Float[Tensor, "n D"]:
        """Return the features of the whole text."""
        self.features = [torch.cat(self.features)]
        return self.features[0]


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a text: n tokens and their features; training uses the features from `first` on."""

    tokens: list[int]
    features: Float[Tensor, "n D"]
    first: int


class Pool:
    """Texts of the last two steps, the oldest first, with a bounded number of positions.

    Attributes:
        texts: stored texts; one that is being written still grows.
        step: number of changes of the target's weights.
        most: largest number of positions; the newest text stays, whatever its length.
    """

    def __init__(self, most: int = MOST_PLACES) -> None:
        self.texts: list[Text] = []
        self.step, self.most = 0, most

    def __len__(self) -> int:
        """Number of positions with a feature."""
        return sum(map(len, self.texts))

    def add(self, text: Text) -> None:
        """Add a text."""
        self.texts.append(text)
        self.trim()

    def next_step(self) -> None:
        """Start the next step, after a change of the target's weights."""
        self.step += 1
        self.trim()

    def trim(self) -> None:
        """Drop texts that training no longer samples, then the oldest texts beyond the bound."""
        self.texts = [text for text in self.texts if text.step > self.step - STEPS]
        left = len(self)
        while left > self.most and len(self.texts) > 1:
            left -= len(self.texts.pop(0))

    def drawn(self, random: Random, n: int, longest: int) -> list[Window]:
        """Return stretches of at most n texts, each of at most `longest` positions, including some of the answer.

        Source: Hu et al. 2025, TLT, arXiv:2511.16665 (the last two steps: the long answers of the present one, which
        matter most, are not finished yet when there is time to train).
        """
        self.trim()
        told = [text for text in self.texts if len(text) >= max(2, text.n_prompt)]
        return [self._of(text, random, longest) for text in random.sample(told, min(n, len(told)))]

    def _of(self, text: Text, random: Random, longest: int) -> Window:
        size = min(longest, len(text))
        last = len(text) - size
        begin = random.randint(min(last, max(0, text.n_prompt - 1 - longest // 2)), last)
        features = text.whole()[begin : begin + size]
        return Window(text.tokens[begin : begin + size], features, max(1, text.n_prompt - 1 - begin))


class OnlineHead(OnlineTrainer):
    """A copy of a trained net in training, its optimiser, and its training data.

    Args:
        net: the trained net, which is not changed.
        target: target whose embedding and LM head it shares.
        info: origin of the net.

    Attributes:
        net: the net that drafts, in the target's dtype; it changes with each training step.
        head: the target's LM head as it is now.
        shared_copy: compiled version of both, if available.
        pool: texts to train on.
        seconds: this process's CPU time spent on training.
        version: counts changes of the net or the head.
        rounds: number of rounds since the last training step, over all sequences.
    """

    called = "head"

    def __init__(self, net: FeatureNet, target: Runner, info: HeadInfo) -> None:
        self.origin, self.target, self.info, self.pool = net, target, info, Pool()
        self.version, self.rounds, self.seconds = 0, 0, 0.0
        wide = torch.float64 if target.dtype == torch.float64 else torch.float32  # bfloat16 would lose small steps
        with torch.inference_mode(False), torch.no_grad():
            self._student, self.net = (_copied(net, kind, target.context + SCRATCH) for kind in (wide, target.dtype))
            self._student.requires_grad_(True)
        self._steps: Any = self._beginning()
        self._seen = self._standing()
        self.head = SharedHead(target.lm_head, info.config)
        self.shared_copy: CompiledFeatureNet | None = None
        self.settle()

    # -- the target --------------------------------------------------------------------------------------------------

    def look_up(self) -> None:
        """Detect changes of the target's weights: start a new step, and draft with the new LM head.

        Changes that PyTorch does not track (through `.data`) are missed, as in the target's compiled layers.
        """
        if (standing := self._standing()) == self._seen:
            return
        self._seen = standing
        self.pool.next_step()
        self.head = SharedHead(self.target.lm_head, self.info.config)
        self.settle()

    def _standing(self) -> list[tuple[int, int]]:
        weights = self.target.model.parameters()
        return [(0 if w.is_inference() else w._version, w.data_ptr()) for w in weights]

    # -- training ----------------------------------------------------------------------------------------------------

    def train_step(self, texts: int, longest: int, rate: float) -> bool:
        """Run one step of AdamW, if there is training data.

        Args:
            texts: most stretches.
            longest: most positions of each.
            rate: learning rate.
        """
        self.look_up()
        self.rounds, begun = 0, time.process_time()
        random = Random(self.n_steps)
        windows = self.pool.drawn(random, texts, longest)
        if not windows:
            return False
        with torch.inference_mode(False), torch.enable_grad():
            loss: Any = self._loss(windows, random)
            self.loss = float(loss.item())
            if math.isfinite(self.loss):  # a target with NaN outputs cannot be trained on
                self._steps.param_groups[0]["lr"] = rate
                loss.backward()
                nn.utils.clip_grad_norm_(self._student.parameters(), CLIP)
                self._steps.step()
            self._steps.zero_grad()
        self.n_steps += 1
        self.settle()
        self.seconds += time.process_time() - begun
        return True

    def _loss(self, windows: list[Window], random: Random) -> Float[Tensor, ""]:
        """Return EAGLE's two losses, each the mean over positions. Source: Li et al. 2024, arXiv:2401.15077, §4.2."""
        net, device, n = self._student, self.target.device, max(len(w.tokens) for w in windows)
        like = next(net.parameters())
        with torch.no_grad():
            ids = to_device([[*w.tokens, *[0] * (n - len(w.tokens))] for w in windows], device, torch.long)
            features = like.new_zeros(len(windows), n, net.width)
            for row, window in zip(features, windows, strict=True):
                row[: len(window.tokens)] = window.features
            following = self.target.embed(ids[:, 1:]).to(like)
        states = net(net.pairs(following, net.taken(features[:, :-1])), torch.arange(n - 1, device=device))
        about = [b * (n - 1) + s for b, w in enumerate(windows) for s in range(w.first - 1, len(w.tokens) - 1)]
        places = to_device(about, device, torch.long)
        guess, truth = states.flatten(0, 1)[places], features[:, 1:].flatten(0, 1)[places]
        some = to_device(sorted(random.sample(range(len(about)), min(MOST_LAWS, len(about)))), device, torch.long)
        with torch.no_grad():
            wanted = self._logits(truth[some]).softmax(-1)
        said = self._logits(net.lm_head_input(guess[some])).log_softmax(-1)
        return OF_FEATURES * F.smooth_l1_loss(guess, truth) - OF_LAWS * (wanted * said).sum(-1).mean()

    def _logits(self, features: Float[Tensor, "m D"]) -> Float[Tensor, "m K"]:
        """Return logits over the draft vocabulary, by the target's current LM head, with gradients."""
        head, kept = self.target.lm_head, self.head.kept
        weight, bias = head.get_parameter("weight").detach(), getattr(head, "bias", None)
        if kept is not None:
            weight, bias = weight[kept], None if bias is None else bias[kept]
        if on_host(weight.device):  # on a CPU, bfloat16 may be emulated and models are small
            weight = weight.to(features.dtype)
        bias = None if bias is None else bias.detach().to(weight.dtype)
        return F.linear(features.to(weight.dtype), weight, bias).to(features.dtype)

    def _beginning(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(self._student.parameters(), weight_decay=0.0, betas=(0.9, 0.95), fused=True)

    # -- trained state -----------------------------------------------------------------------------------------------

    @property
    def whose(self) -> str:
        """Return 64 hexadecimal digits that identify the initial net."""
        found = hashlib.sha256()
        for weight in self.origin.parameters():
            found.update(weight.detach().float().cpu().numpy().tobytes())
        return found.hexdigest()

    def pairs(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield the weights of the net in training, and the initial ones."""
        both = zip(self._student.named_parameters(), self.origin.parameters(), strict=True)
        return ((name, mine.detach(), origin) for (name, mine), origin in both)

    def settle(self) -> None:
        """Draft with the weights trained so far from now on."""
        self.version += 1
        with torch.inference_mode(False), torch.no_grad():
            for mine, learnt in zip(self.net.parameters(), self._student.parameters(), strict=True):
                mine.copy_(learnt)
            self.net.settle()
            self.shared_copy = compile_net(self.net, self.head, self.target)

    def forget(self) -> None:
        """Reset to the initial net, with an empty pool."""
        self.begin_again()
        self._steps, self.pool.texts, self.rounds = self._beginning(), [], 0
        self.settle()

    @property
    def n_bytes(self) -> int:
        """Return the bytes of the net in training, its two moments, the drafting net in two layouts, and the texts."""
        own, drafts = (sum(p.numel() * p.element_size() for p in net.parameters()) for net in (self._student, self.net))
        return 3 * own + 2 * drafts + self._bytes_of(len(self.pool))

    @property
    def most_bytes(self) -> int:
        """Return the same with a full pool."""
        return self.n_bytes + self._bytes_of(max(0, self.pool.most - len(self.pool)))

    def _bytes_of(self, places: int) -> int:
        return places * self.target.hidden_size * self.target.dtype.itemsize


def _copied(net: FeatureNet, dtype: torch.dtype, context: int) -> FeatureNet:
    """Return a net with the same weights that is not packed yet."""
    make: Any = type(net)
    shared_copy: FeatureNet = make(**net.sizes, context=context)
    shared_copy.load_state_dict(net.state_dict())
    weight = next(net.parameters())
    return shared_copy.to(weight.device, dtype).eval()
