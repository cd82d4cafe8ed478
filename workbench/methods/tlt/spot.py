"""Spot training: train EAGLE's layer while it drafts, on features that decoding has computed anyway.

    texts that the target generates ─► tokens and features, with the version of the target's weights ─► pool
    pool, only the last two versions ─► random windows ─► training step ─► the net that drafts from now on

Of the target, a training step uses only embedding and LM head, which are not trained, because the features were
computed when the text was verified. The feature at position s and the embedding of the token at s + 1 together predict
the feature at s + 1, as in the training of the initial head.
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
from workbench.methods.common.compiled_feature_net import CompiledFeatureNet, compile_net
from workbench.methods.common.feature_net import FeatureNet
from workbench.models.loading import HeadInfo
from workbench.models.runner import SCRATCH, Runner

CLIP = 0.5
"""Maximum norm of the gradients of an online training step; larger gradients are scaled down."""
FEATURE_LOSS_WEIGHT, DISTRIBUTION_LOSS_WEIGHT = 1.0, 0.1
"""Weights of EAGLE's two losses: Huber distance of features, and cross-entropy with the target's distribution."""
MAX_POSITIONS = 16_384
"""Maximum number of text positions whose features a pool of training texts stores."""
MAX_DISTRIBUTIONS = 512
"""Maximum number of positions per training step with a loss on distributions. The product with the LM head is the
most expensive operation of the step."""
STEPS = 2
"""Number of newest versions of the target's weights from whose texts a training step samples."""


@dataclass(slots=True, eq=False)
class Text:
    """Text of a sequence, with the target's LM head inputs (features) at all of its positions but the last.

    Attributes:
        step: version number of the target's weights when the text began.
        n_prompt: number of prompt tokens, which are not trained on.
        tokens: token ids of prompt and answer.
        features: features of the text, in chunks of m positions.
    """

    step: int
    n_prompt: int
    tokens: list[int]
    features: list[Float[Tensor, "m D"]]

    def __len__(self) -> int:
        """Return the number of text positions that have a target feature."""
        return len(self.tokens) - 1

    def whole(self) -> Float[Tensor, "n D"]:
        """Return the target's features of the whole text, and store them as one chunk."""
        self.features = [torch.cat(self.features)]
        return self.features[0]


@dataclass(frozen=True, slots=True)
class Window:
    """Window of a training text: n tokens and their features.

    Attributes:
        tokens: token ids.
        features: features of these tokens.
        first: index of the first feature that is a training target.
    """

    tokens: list[int]
    features: Float[Tensor, "n D"]
    first: int


class Pool:
    """Pool of training texts from the last two versions of the target's weights, the oldest text first.

    The number of stored positions is bounded.

    Attributes:
        texts: stored texts. The text of a running sequence still grows.
        step: number of changes of the target's weights so far.
        most: maximum number of positions. The newest text is never dropped, whatever its length.
    """

    def __init__(self, most: int = MAX_POSITIONS) -> None:
        self.texts: list[Text] = []
        self.step, self.most = 0, most

    def __len__(self) -> int:
        """Return the number of text positions with a target feature, over all stored texts."""
        return sum(map(len, self.texts))

    def add(self, text: Text) -> None:
        """Add a training text to the pool, and drop old texts as in `trim`."""
        self.texts.append(text)
        self.trim()

    def next_step(self) -> None:
        """Count a change of the target's weights, and drop training texts of old versions."""
        self.step += 1
        self.trim()

    def trim(self) -> None:
        """Drop training texts of old weight versions, then the oldest texts until at most `most` positions remain."""
        self.texts = [text for text in self.texts if text.step > self.step - STEPS]
        n_positions = len(self)
        while n_positions > self.most and len(self.texts) > 1:
            n_positions -= len(self.texts.pop(0))

    def sample_windows(self, random: Random, n: int, longest: int) -> list[Window]:
        """Return random windows of up to n training texts. Each window contains a part of the answer.

        Args:
            random: random generator.
            n: maximum number of texts.
            longest: maximum number of positions per window.

        Source: Hu et al. 2025, TLT, arXiv:2511.16665 (texts of the last two steps: the long answers of the current
        step, which matter most, are not finished yet when there is time to train).
        """
        self.trim()
        candidates = [text for text in self.texts if len(text) >= max(2, text.n_prompt)]
        return [self._of(text, random, longest) for text in random.sample(candidates, min(n, len(candidates)))]

    def _of(self, text: Text, random: Random, longest: int) -> Window:
        size = min(longest, len(text))
        last = len(text) - size
        begin = random.randint(min(last, max(0, text.n_prompt - 1 - longest // 2)), last)
        features = text.whole()[begin : begin + size]
        return Window(text.tokens[begin : begin + size], features, max(1, text.n_prompt - 1 - begin))


class OnlineHead(OnlineTrainer):
    """Trainable copy of a drafter's net, with its optimiser and its training data.

    Args:
        net: trained net, which is not changed.
        target: target whose embedding and LM head the net shares.
        info: description of the net's origin.

    Attributes:
        net: net that drafts, in the target's dtype. It is updated after each training step.
        head: the target's LM head with its current weights.
        compiled_net: compiled version of net and head, if available.
        pool: pool of training texts.
        seconds: CPU time that this process spent on training.
        version: number of changes of the net or the head.
        rounds: number of rounds since the last training step, over all sequences.
    """

    label = "head"

    def __init__(self, net: FeatureNet, target: Runner, info: HeadInfo) -> None:
        self.origin, self.target, self.info, self.pool = net, target, info, Pool()
        self.version, self.rounds, self.seconds = 0, 0, 0.0
        wide = torch.float64 if target.dtype == torch.float64 else torch.float32  # bfloat16 would lose small steps
        with torch.inference_mode(False), torch.no_grad():
            self._student, self.net = (_copy_net(net, kind, target.context + SCRATCH) for kind in (wide, target.dtype))
            self._student.requires_grad_(True)
        self._optimizer: Any = self._new_optimizer()
        self._target_versions = self._weight_versions()
        self.head = SharedHead(target.lm_head, info.config)
        self.compiled_net: CompiledFeatureNet | None = None
        self.use_weights()

    # -- the target --------------------------------------------------------------------------------------------------

    def detect_target_changes(self) -> None:
        """Detect changes of the target's weights since the last call.

        After a change, later training texts count as texts of a new version, and the net drafts with the new LM head.

        Changes that PyTorch does not track (through `.data`) are not detected, as in the target's compiled layers.
        """
        if (versions := self._weight_versions()) == self._target_versions:
            return
        self._target_versions = versions
        self.pool.next_step()
        self.head = SharedHead(self.target.lm_head, self.info.config)
        self.use_weights()

    def _weight_versions(self) -> list[tuple[int, int]]:
        weights = self.target.model.parameters()
        return [(0 if w.is_inference() else w._version, w.data_ptr()) for w in weights]

    # -- training ----------------------------------------------------------------------------------------------------

    def train_step(self, texts: int, longest: int, rate: float) -> bool:
        """Run one AdamW step on the drafting net's trainable copy. Return False if there is no training data.

        Args:
            texts: maximum number of windows of training texts.
            longest: maximum number of positions per window.
            rate: learning rate.
        """
        self.detect_target_changes()
        self.rounds, start = 0, time.process_time()
        random = Random(self.n_steps)
        windows = self.pool.sample_windows(random, texts, longest)
        if not windows:
            return False
        with torch.inference_mode(False), torch.enable_grad():
            loss: Any = self._loss(windows, random)
            self.loss = float(loss.item())
            if math.isfinite(self.loss):  # skip the step if the target's outputs contain NaN
                self._optimizer.param_groups[0]["lr"] = rate
                loss.backward()
                nn.utils.clip_grad_norm_(self._student.parameters(), CLIP)
                self._optimizer.step()
            self._optimizer.zero_grad()
        self.n_steps += 1
        self.use_weights()
        self.seconds += time.process_time() - start
        return True

    def _loss(self, windows: list[Window], random: Random) -> Float[Tensor, ""]:
        """Return the weighted sum of EAGLE's losses on features and on distributions, each averaged over positions.

        Source: Li et al. 2024, EAGLE, arXiv:2401.15077, §4.2.
        """
        net, device, n = self._student, self.target.device, max(len(w.tokens) for w in windows)
        like = next(net.parameters())
        with torch.no_grad():
            ids = to_device([[*w.tokens, *[0] * (n - len(w.tokens))] for w in windows], device, torch.long)
            features = like.new_zeros(len(windows), n, net.width)
            for row, window in zip(features, windows, strict=True):
                row[: len(window.tokens)] = window.features
            following = self.target.embed(ids[:, 1:]).to(like)
        states = net(
            net.make_pairs(following, net.combine_hidden_states(features[:, :-1])), torch.arange(n - 1, device=device)
        )
        indices = [b * (n - 1) + s for b, w in enumerate(windows) for s in range(w.first - 1, len(w.tokens) - 1)]
        places = to_device(indices, device, torch.long)
        guess, targets = states.flatten(0, 1)[places], features[:, 1:].flatten(0, 1)[places]
        subset = to_device(
            sorted(random.sample(range(len(indices)), min(MAX_DISTRIBUTIONS, len(indices)))), device, torch.long
        )
        with torch.no_grad():
            target_probs = self._logits(targets[subset]).softmax(-1)
        log_probs = self._logits(net.lm_head_input(guess[subset])).log_softmax(-1)
        return (
            FEATURE_LOSS_WEIGHT * F.smooth_l1_loss(guess, targets)
            - DISTRIBUTION_LOSS_WEIGHT * (target_probs * log_probs).sum(-1).mean()
        )

    def _logits(self, features: Float[Tensor, "m D"]) -> Float[Tensor, "m K"]:
        """Return logits over the K tokens of the draft vocabulary from the target's current LM head, with gradients."""
        head, token_ids = self.target.lm_head, self.head.token_ids
        weight, bias = head.get_parameter("weight").detach(), getattr(head, "bias", None)
        if token_ids is not None:
            weight, bias = weight[token_ids], None if bias is None else bias[token_ids]
        if on_host(weight.device):  # on a CPU, bfloat16 may be emulated and models are small
            weight = weight.to(features.dtype)
        bias = None if bias is None else bias.detach().to(weight.dtype)
        return F.linear(features.to(weight.dtype), weight, bias).to(features.dtype)

    def _new_optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(self._student.parameters(), weight_decay=0.0, betas=(0.9, 0.95), fused=True)

    # -- trained state -----------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 hash of the initial net's weights, 64 hexadecimal digits."""
        digest = hashlib.sha256()
        for weight in self.origin.parameters():
            digest.update(weight.detach().float().cpu().numpy().tobytes())
        return digest.hexdigest()

    def pairs(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield (name, trained weight, initial weight) of each parameter tensor of the net."""
        weights = zip(self._student.named_parameters(), self.origin.parameters(), strict=True)
        return ((name, weight.detach(), origin) for (name, weight), origin in weights)

    def use_weights(self) -> None:
        """Copy the trained weights to the net that drafts, and compile this net again."""
        self.version += 1
        with torch.inference_mode(False), torch.no_grad():
            for weight, trained in zip(self.net.parameters(), self._student.parameters(), strict=True):
                weight.copy_(trained)
            self.net.prepare_for_drafting()
            self.compiled_net = compile_net(self.net, self.head, self.target)

    def reset(self) -> None:
        """Reset the net to its initial weights, and drop all training texts."""
        self.reset_weights()
        self._optimizer, self.pool.texts, self.rounds = self._new_optimizer(), [], 0
        self.use_weights()

    @property
    def n_bytes(self) -> int:
        """Return the memory of trained net, AdamW's moments, drafting net (two layouts) and texts, in bytes."""
        trained_bytes, draft_bytes = (
            sum(p.numel() * p.element_size() for p in net.parameters()) for net in (self._student, self.net)
        )
        return 3 * trained_bytes + 2 * draft_bytes + self._bytes_of(len(self.pool))

    @property
    def most_bytes(self) -> int:
        """Return the memory of the online-trained head in bytes when its pool of training texts is full."""
        return self.n_bytes + self._bytes_of(max(0, self.pool.most - len(self.pool)))

    def _bytes_of(self, places: int) -> int:
        return places * self.target.hidden_size * self.target.dtype.itemsize


def _copy_net(net: FeatureNet, dtype: torch.dtype, context: int) -> FeatureNet:
    """Return a copy of a drafter's net with the same weights in another dtype, not yet in the layout for drafting.

    Args:
        net: net to copy.
        dtype: dtype of the copy.
        context: maximum sequence length of the copy, in positions.
    """
    net_class: Any = type(net)
    shared_copy: FeatureNet = net_class(**net.sizes, context=context)
    shared_copy.load_state_dict(net.state_dict())
    weight = next(net.parameters())
    return shared_copy.to(weight.device, dtype).eval()
