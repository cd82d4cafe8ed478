"""Options of server APIs besides sampling: stop conditions, logit bias, penalties, log-probabilities."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import ParameterError
from workbench.core.logits_processors import LogitBias, MinNewTokens, Penalties
from workbench.core.sampling import SamplingParams
from workbench.core.transfer import to_device, to_host
from workbench.engine.detokenise import TokenText
from workbench.kernels.segment import Segment, Slot
from workbench.models.runner import Runner

CHUNK = 128
"""Number of prompt tokens whose logits are in memory at once while log-probabilities of a prompt are computed."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of a request besides its sampling parameters. With the defaults they have no effect.

    Attributes:
        min_tokens: minimum number of new tokens; before, EOS, stop tokens and stop strings are ignored.
        stop_tokens: ids of tokens that end the text; the text is cut before them.
        ignore_eos: whether to continue after the model's end-of-text token.
        logit_bias: pairs of a token id and a value added to its logit.
        presence_penalty: value subtracted from the logits of tokens that were already generated.
        frequency_penalty: value subtracted from the logits of generated tokens, once per occurrence of the token.
        logprobs: number of most likely tokens to return with the log-probability of each emitted token; None: return no
            log-probabilities.
        prompt_logprobs: number of most likely tokens to return with the log-probability of each prompt token; None:
            return no log-probabilities.
        truncate_prompt: use only this number of tokens at the end of the prompt; None: use all.
    """

    min_tokens: int = 0
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt: int | None = None

    def check(self, vocab_size: int) -> None:
        """Refuse options with token ids that the target does not have.

        Raises:
            ParameterError: an id is out of range; the message names the field.
        """
        bias_tokens = [token for token, _ in self.logit_bias]
        for name, ids in (("stop_token_ids", self.stop_tokens), ("logit_bias", bias_tokens)):
            if any(not 0 <= token < vocab_size for token in ids):
                raise ParameterError(
                    f"{name} contains token ids outside 0…{vocab_size - 1}.", "Use token ids of the target."
                )

    def check_length(self, max_new_tokens: int) -> None:
        """Refuse options whose minimum length exceeds `max_new_tokens`.

        Raises:
            ParameterError: `min_tokens` is too large; the message names the field.
        """
        if self.min_tokens > max_new_tokens:
            error = ParameterError(
                f"min_tokens={self.min_tokens} exceeds the maximum of {max_new_tokens} new tokens in the request.",
                "Lower min_tokens, or raise max_tokens.",
            )
            error.option = "min_tokens"
            raise error

    def truncate(self, prompt: Sequence[int]) -> list[int]:
        """Return the last `truncate_prompt` tokens of a prompt, or all tokens if that is None."""
        return list(prompt if self.truncate_prompt is None else prompt[-self.truncate_prompt :])

    def add_processors(self, sampling: SamplingParams, prompt_length: int, eos: Collection[int]) -> SamplingParams:
        """Return the sampling parameters with these options appended to their logits processors."""
        processors = []
        if self.logit_bias:
            tokens, values = zip(*self.logit_bias, strict=True)
            processors.append(LogitBias(tokens, values))
        if self.presence_penalty or self.frequency_penalty:
            processors.append(Penalties(prompt_length, self.presence_penalty, self.frequency_penalty))
        end_tokens = tuple(sorted({*self.stop_tokens, *eos}))
        if self.min_tokens and end_tokens:
            processors.append(MinNewTokens(prompt_length, self.min_tokens, end_tokens))
        return dataclasses.replace(sampling, processors=(*sampling.processors, *processors)) if processors else sampling


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Token with its log-probability under the target.

    Attributes:
        token: token id.
        data: text of the token as bytes, because it may be a part of a character.
        rank: rank of the token by probability at its position; 1: the most probable token.
        logprob: log-probability under the target's distribution before penalties, bias, temperature and filters, in
            nats.
        top: most probable tokens at this position, in descending order, each with an empty `top`.
        is_special: whether this is a special token, which adds nothing to the generated text.
    """

    token: int
    data: bytes
    rank: int
    logprob: float
    top: tuple[TokenLogprob, ...] = ()
    is_special: bool = False


def token_logprobs(
    logits: Float[Tensor, "n V"], tokens: Sequence[int], n_top: int, token_text: TokenText
) -> list[TokenLogprob]:
    """Return the log-probability of each token, and the `n_top` most probable tokens, from the logits."""
    log_probs = logits.double().log_softmax(1)
    token_ids = to_device(list(tokens), log_probs.device, torch.long)
    best = log_probs.topk(min(n_top, log_probs.shape[1]), dim=1)
    own_log_probs = log_probs.gather(1, token_ids.unsqueeze(1))
    logprobs, n_above, ids, values = to_host(
        [own_log_probs.squeeze(1), (log_probs > own_log_probs).sum(1), best.indices, best.values]
    )
    results = []
    for i, token in enumerate(tokens):
        pairs = enumerate(zip(ids[i], values[i], strict=True), 1)
        top = tuple(
            TokenLogprob(candidate, token_text.data(candidate), rank, value) for rank, (candidate, value) in pairs
        )
        is_special = token in token_text.pieces.special
        results.append(TokenLogprob(token, token_text.data(token), n_above[i] + 1, logprobs[i], top, is_special))
    return results


def prefill_with_logprobs(
    target: Runner, slot: Slot, tokens: Sequence[int], n_top: int, token_text: TokenText
) -> list[TokenLogprob]:
    """Prefill a prompt without its last token, and return the log-probabilities of all its tokens but the first.

    Each comes with the `n_top` most likely tokens at its position.
    """
    results = []
    for start in range(0, len(tokens) - 1, CHUNK):
        chunk, following = (
            tokens[start : start + CHUNK][: len(tokens) - 1 - start],
            tokens[start + 1 : start + CHUNK + 1],
        )
        out = target.forward([Segment(slot, to_device(chunk, target.device))])
        slot.last_hidden = out.hidden[0, -1]
        target.commit(slot, range(len(chunk)))
        results += token_logprobs(out.logits[0, : len(chunk)], following, n_top, token_text)
    return results
