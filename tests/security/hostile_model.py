"""A tiny model that writes hostile text: its tokens are attacks on terminals, pages and file formats, one by one."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders
from tokenizers import models as tokenizer_models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PIECES = (
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=2>",
    '"><svg onload=window.pwned=3>',
    "javascript:window.pwned=4",
    "</textarea></script><iframe srcdoc='<script>parent.pwned=5</script>'></iframe>",
    "${window.pwned=6}",
    "{{constructor.constructor('window.pwned=7')()}}",
    "`+(window.pwned=8)+`",
    "' autofocus onfocus='window.pwned=9",
    "<a href='javascript:window.pwned=10'>click</a>",
    "<!--",
    "]]>",
    "&lt;script&gt;window.pwned=11&lt;/script&gt;",
    "<style>*{display:none}</style>",
    "\u202etxt.exe",
    "\x00",
    "\u2028",
    "\u2029",
    "\x1b[31mred",
    "\x1b]0;owned\x07",
    "\x1b[2J",
    "\x9b2J",
    "\x08\x08\x08\x7f",
    "\r",
    "\ufeff",
    '{"rounds": null}\n',
    "\\u003cscript\\u003e",
    "=HYPERLINK(1)",
    "%(STYLE|SOURCES|RECORDING)%",
    "%RECORDING%",
    "a plain word",
    " ",
)


def make(folder: Path) -> Path:
    """Write the model: greedy decoding goes through the pieces in order, again and again."""
    n = len(PIECES)
    config = LlamaConfig(
        vocab_size=n, hidden_size=n, intermediate_size=n, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=256, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)  # the layers change nothing
        model.model.embed_tokens.weight.copy_(torch.eye(n))
        model.lm_head.weight.copy_(4 * torch.eye(n).roll(1, 0))  # token t is followed by t + 1
    model.save_pretrained(folder)
    tokenizer = Tokenizer(
        tokenizer_models.WordLevel({piece: i for i, piece in enumerate(PIECES)}, unk_token=PIECES[-2])
    )
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder
