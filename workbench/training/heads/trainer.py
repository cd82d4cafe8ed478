"""Training of all feature drafters: they predict a frozen target's next features from its previous ones.

The drafter's input pair s consists of the feature f(s) and the token embedding e(s + 1). The drafter's state at pair s
predicts the feature f(s + 1), or several features f(s + 1 + i), i = 0, 1, … (`FeatureNet.futures`). Only this module
assigns features as labels to these predictions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbench.methods import registry
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.common.trained_net import TrainedNet
from workbench.training.heads.features import Batch, Dialogue, batch_of
from workbench.training.heads.losses import LossInputs, WeightedLoss
from workbench.training.loop import Report, RunOptions, RunResult
from workbench.training.models import half_precision
from workbench.training.trainer import Curve, Step, StepLoss, Trainer

IsTargetToken = Callable[[Tensor, Tensor], Tensor]
"""Type of a function (token indices in a reduced vocabulary [N], features [N, D]) that returns for each token whether
it is the target's most probable token."""


EARLIER_DEFAULTS = {
    "loss": "", "blocks": "4", "cond": "64", "block": "8", "ahead": "4", "exit_layer": "8", "rank": "16",
    "matrix_rate": "0.02", "other_rate": "0.004", "places": "1024", "curriculum": "False",
}  # fmt: skip
"""Default values of training options in earlier versions, which had the same defaults for all kinds of heads. They are
in the settings saved beside old checkpoints, and count as unchanged when such a checkpoint is resumed."""


@dataclass
class CommonHeadOptions(RunOptions):
    """Options for training a head of any kind, besides those of `RunOptions`.

    Attributes:
        method: Kind of head to train.
        loss: Losses with their weights, for example "smooth_l1:1+ce_soft:0.1".
        rows: Batch size: dialogues per step.
        places: Positions per step at which draft and target distributions are compared; the LM head takes most of the
            time.
        half: Compute in bfloat16.
    """

    method: str = ""
    loss: str = ""
    minutes: float | None = 5.0
    checkpoint_seconds: float = 60.0
    rows: int = 16
    places: int = 1024
    half: bool = True

    def earlier_defaults(self) -> dict[str, str]:
        """Return the earlier defaults of options whose default has changed, so that old checkpoints can be resumed."""
        return {field.name: EARLIER_DEFAULTS[field.name] for field in dataclasses.fields(self)
                if EARLIER_DEFAULTS.get(field.name, str(field.default)) != str(field.default)}  # fmt: skip


@dataclass
class HeadOptions(CommonHeadOptions):
    """Options for training a feature drafter.

    Attributes:
        ffn: Width of the gated MLP.
        heads: Number of attention heads.
        loss: Losses with their weights. The drafters' papers weight smooth_l1 with 1 and ce_soft with 0.1. With equal
            weights, the bundled drafters agree with the target more often (at 86.0 % of positions instead of 85.1 %,
            after 100 steps of EagleVLM).
        noise: Uniform noise on the input features, as a share of their standard deviation.
    """

    method: str = "eagle-vlm"
    ffn: int = 512
    heads: int = 4
    loss: str = "smooth_l1:1+ce_soft:1"
    noise: float = 0.1


@dataclass(slots=True)
class Predictions:
    """A drafter's N predictions of features, and the true features.

    Attributes:
        guess: predicted features, float [N, D].
        truth: the target's features, float [N, D].
        ahead: index of each prediction among those made from the same state (0 is the nearest position), int64 [N].
        cost: expected share of vision tokens that a drafter's gate keeps, averaged over images; 0 without a gate.
    """

    guess: Float[Tensor, "N D"]
    truth: Float[Tensor, "N D"]
    ahead: Tensor
    cost: Tensor


def build_net(options: HeadOptions, target: Any) -> FeatureNet:
    """Return an untrained feature drafter for a target; its final norm gets the weights of the target's final norm.

    Raises:
        ValueError: `options.method` names no feature drafter.
    """
    nets = {kind: head for kind, head in registry.heads().items() if issubclass(head.net, FeatureNet)}
    if options.method not in nets:
        raise ValueError(f"there is no feature drafter {options.method!r}; use one of: {', '.join(nets)}")
    width = target.get_input_embeddings().weight.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        net = nets[options.method].build(width, vars(options))
        init_weights(net, getattr(target.get_decoder(), "norm", None))
    return net


def init_weights(net: TrainedNet, norm: nn.Module | None) -> None:
    """Initialise a drafter's matrices with torch's random numbers, and its final norm with the weights of `norm`."""
    for name, weight in net.named_parameters():
        if weight.dim() == 2 and not any(part in name for part in net.no_random_init):
            nn.init.normal_(weight, std=0.02)
    if norm is not None:
        net.get_submodule("after").load_state_dict({"weight": norm.get_parameter("weight").detach().float()})


def predict_answers(
    net: FeatureNet, batch: Batch, image_mode: Any = None, features: Tensor | None = None
) -> Predictions:
    """Return the drafter's predictions at the positions that predict an answer's tokens, and the true features.

    Args:
        net: drafter that predicts.
        batch: batch of dialogues.
        image_mode: mode of processing images that `FeatureNet.build_inputs` accepts.
        features: input features that replace the true features, for example features with noise.
    """
    net_input = batch.inputs if features is None else dataclasses.replace(batch.inputs, features=features)
    inputs = net.build_inputs(net_input, image_mode)
    mask, device = None, inputs.inputs.device
    if inputs.visible is not None:
        n = inputs.inputs.shape[1]
        diagonal = torch.eye(n, dtype=torch.bool, device=device)  # a query without any key would give NaN
        mask = (diagonal.new_ones(n, n).tril() & inputs.visible.unsqueeze(1) | diagonal).unsqueeze(1)
    states = net(inputs.inputs, inputs.positions, mask)
    begin = net_input.spans[-1][1] if net_input.spans else 0  # pairs from here on are text, at the end
    n_pairs = net_input.features.shape[1] - begin
    futures = net.futures(states[:, -n_pairs:])  # [B, pairs, k, D]
    guess, truth, ahead = [], [], []
    for i in range(min(futures.shape[2], n_pairs)):
        first, shifted = begin + 1, begin + 1 + i  # pair s predicts the feature at s + 1 + i; s + 1 is in the answer
        count = n_pairs - i
        is_answer = batch.answers[:, first : first + count] & batch.answers[:, shifted : shifted + count]
        guess.append(futures[:, :count, i][is_answer])
        truth.append(batch.features[:, shifted : shifted + count][is_answer])
        ahead.append(torch.full((len(guess[-1]),), i, device=device))
    costs = [view.cost for view in inputs.images if view.cost is not None]
    cost = torch.stack(costs).mean() if costs else torch.zeros((), device=device)
    return Predictions(torch.cat(guess), torch.cat(truth), torch.cat(ahead), cost)


@torch.no_grad()
def replace_with_predictions(
    net: FeatureNet, batch: Batch, features: Float[Tensor, "B n D"], mask: Bool[Tensor, "B n"]
) -> Float[Tensor, "B n D"]:
    """Replace some features of texts, never the first, by the drafter's predictions from all earlier features.

    Args:
        net: drafter that predicts.
        batch: batch of dialogues without images.
        features: the target's features, possibly with noise.
        mask: positions to replace, bool [B, n].
    """
    inputs = net.build_inputs(dataclasses.replace(batch.inputs, features=features), None)
    guesses = net.futures(net(inputs.inputs, inputs.positions, None))[:, :-1, 0]  # state s predicts f(s + 1)
    return torch.cat([features[:, :1], torch.where(mask[:, 1:, None], guesses.to(features), features[:, 1:])], 1)


@torch.inference_mode()
def agreement(
    net: FeatureNet,
    batches: Sequence[Batch],
    head: nn.Module,
    image_mode: Any = None,
    is_target_token: IsTargetToken | None = None,
) -> list[float]:
    """Return the share of positions at which drafter and target have the same most probable token, by draft position.

    Args:
        net: drafter to evaluate.
        batches: batches of held-out dialogues.
        head: LM head of drafter and target.
        image_mode: mode of processing images that `FeatureNet.build_inputs` accepts.
        is_target_token: for a `head` with a reduced vocabulary: function (indices of tokens in `head` [N], features
            [N, D]) → whether each token is the most probable token of the target's full vocabulary.
    """
    matches, count = torch.zeros(2, net.ahead, device=next(net.parameters()).device)
    for batch in batches:
        predictions = predict_answers(net, batch, image_mode)
        tokens = head(net.lm_head_input(predictions.guess)).argmax(-1)
        is_match = (
            tokens == head(predictions.truth).argmax(-1)
            if is_target_token is None
            else is_target_token(tokens, predictions.truth)
        )
        matches.index_add_(0, predictions.ahead, is_match.float())
        count.index_add_(0, predictions.ahead, count.new_ones(len(is_match)))
    return (matches / count.clamp_min(1)).tolist()


def train_net(
    options: HeadOptions,
    target: Any,
    batches: Callable[[bool, int], list[Dialogue]],
    report: Report,
    held: Sequence[Sequence[Dialogue]] = (),
    start_net: FeatureNet | None = None,
    save: Callable[[FeatureNet], object] | None = None,
    is_target_token: IsTargetToken | None = None,
    curve: Curve | None = None,
    predicted_share: float = 0.0,
    image_share: Callable[[float], float] = lambda progress: 0.0,
    price: float = 0.0,
) -> tuple[FeatureNet, RunResult]:
    """Train one feature drafter; return the drafter and the metrics of the run.

    Args:
        options: options of the training run.
        target: the frozen model, for its embedding, LM head and final norm.
        batches: function that returns the batch of a step, with images (True) or without.
        report: function that receives progress lines.
        held: held-out batches on which the reported agreement is measured.
        start_net: a drafter to continue from, instead of an untrained one.
        save: function that writes the drafter; it is called at each checkpoint, and at the end.
        is_target_token: function as in `agreement`.
        curve: learning curve to which the agreement at each checkpoint is added; None: no curve.
        predicted_share: share of the input features of texts that are replaced by the drafter's own predictions.
        image_share: function that returns the probability that a batch has images, given the finished share of the run.
        price: weight of `Predictions.cost` in the loss.
    """
    embed, head = target.get_input_embeddings(), target.get_output_embeddings()
    device = embed.weight.device
    net = (start_net or build_net(options, target)).to(device)
    loss = WeightedLoss.parse(options.loss)
    rng = torch.Generator().manual_seed(options.seed)
    held_out = [batch_of(part, embed) for part in held]

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=rng).to(device)

    def step_loss(step: Step) -> StepLoss:
        has_images = bool(uniform(1) < image_share(step.progress))
        batch = batch_of(batches(has_images, step.number), embed)
        features = batch.inputs.features
        features = features + (2 * uniform(*features.shape) - 1) * options.noise * features.std()
        with half_precision(options.half):
            if predicted_share and not batch.inputs.spans:
                mask = uniform(*features.shape[:2]) < predicted_share
                features = replace_with_predictions(net, batch, features, mask)
            image_mode = net.sample_options(len(batch.ids), uniform, step.number) if batch.inputs.spans else None
            predictions = predict_answers(net, batch, image_mode, features)
            sample = uniform(len(predictions.guess)).topk(min(options.places, len(predictions.guess))).indices
            guess, truth = predictions.guess[sample], predictions.truth[sample]
            with torch.no_grad():
                target_logits = head(truth)
            logits = head(net.lm_head_input(guess))
        total, figures = loss(LossInputs(guess.float(), truth, logits.float(), target_logits.float()))
        return StepLoss(total + price * predictions.cost, batch.ids.numel(), figures)

    def evaluate() -> dict[str, float]:
        shares = agreement(net, held_out, head, is_target_token=is_target_token)
        return {f"agreement {i + 1}": share for i, share in enumerate(shares)}

    trainer = Trainer(
        options.method,
        options,
        net,
        step_loss,
        report,
        evaluate=evaluate,
        save=None if save is None else lambda: save(net),
        weight_decay=0.0,
        curve=curve,
    )
    return net, trainer.run()
