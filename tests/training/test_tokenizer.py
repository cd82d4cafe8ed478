"""The tokenizer is lossless; the bundled files equal the recipes' output."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from workbench.training.generators import mixture
from workbench.training.models import save_tokenizer
from workbench.training.tokenizer import SPECIAL, load_tokenizer, train_tokenizer

BUNDLED = Path(__file__).parents[2] / "assets" / "models" / "text-target"
TEXTS = [
    "Hello, world 12345!",
    "naïve café — “quotes” … £€",
    "日本語のテキスト 한국어 русский العربية",
    "🙂👩‍👩‍👧 \u0000\u007f\t tabs\n\n  spaces   ",
    "def f(x):\n\treturn x ** 2  # ümlaut",
    "",
]


@pytest.fixture(scope="module")
def small() -> PreTrainedTokenizerFast:
    return train_tokenizer([document for _, document in islice(mixture(0), 300)], vocab_size=400)


def _check(tokenizer: PreTrainedTokenizerFast) -> None:
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    digits = tokenizer.tokenize("90210")
    assert [piece for piece in digits if piece.isdigit()] == list("90210")
    for token in SPECIAL:
        assert len(tokenizer(token, add_special_tokens=False)["input_ids"]) == 1
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|endoftext|>", "<|pad|>")
    messages = [{"role": "user", "content": "Hi."}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|user|>Hi.<|assistant|>"
    messages.append({"role": "assistant", "content": "Hello."})
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|user|>Hi.<|assistant|>Hello.<|endoftext|>"


def test_new_tokenizer_is_lossless(small: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    _check(small)
    small.save_pretrained(tmp_path)
    _check(load_tokenizer(tmp_path))


@pytest.mark.skipif(not BUNDLED.exists(), reason="the bundled models are not there yet")
def test_bundled_tokenizer_is_lossless() -> None:
    tokenizer = load_tokenizer(BUNDLED)
    assert len(tokenizer) == 4096
    _check(tokenizer)


@pytest.mark.skipif(not BUNDLED.exists(), reason="the bundled models are not there yet")
def test_bundled_models_are_small_enough_and_share_the_tokenizer() -> None:
    root = BUNDLED.parent
    weights = [
        path
        for name in ("text-target", "text-drafter", "text-target-medusa")
        for path in (root / name).glob("*.safetensors")
    ]
    assert len(weights) == 5
    assert sum(path.stat().st_size for path in weights) < 44 * 2**20
    assert max(path.stat().st_size for path in weights) <= 9.1e6
    first, second = ((root / f"text-{name}" / "tokenizer.json").read_bytes() for name in ("target", "drafter"))
    assert first == second


def test_a_tokenizer_is_written_without_indentation_and_reads_as_before(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(BUNDLED)
    save_tokenizer(tokenizer, tmp_path)
    file = tmp_path / "tokenizer.json"
    assert b"\n" not in file.read_bytes()
    again, text = load_tokenizer(tmp_path), "Zoë said: “€5?”\n\tdef f(x):\n"
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert again.get_vocab() == tokenizer.get_vocab()
    for bundled in BUNDLED.parent.glob("*/tokenizer.json"):
        assert b"\n" not in bundled.read_bytes(), bundled
