"""The bundled tokenizer: byte-level BPE of 4,096 entries, with one token per digit and with chat markers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from workbench.models.chat_markers import ASSISTANT, END, IMAGE, USER

VOCAB_SIZE = 4096
CONTEXT = 1024
PAD = "<|pad|>"
RESERVED = tuple(f"<|reserved_{i}|>" for i in range(11))
SPECIAL = (END, PAD, USER, ASSISTANT, IMAGE, *RESERVED)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|endoftext|>"
    "{% elif message['role'] == 'system' %}{{ message['content'] }}\n"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """Train the bundled tokenizer on texts and return it.

    The vocabulary includes all bytes, so that encoding and decoding preserve any UTF-8 text.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT, IMAGE, *RESERVED],
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """Load a tokenizer saved by the `tokenizer` recipe."""
    return PreTrainedTokenizerFast.from_pretrained(str(folder))


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """Return the id of the token with the given text, such as a chat marker."""
    return tokenizer.get_vocab()[token]
