"""Build the pre-tokeniser that llama.cpp applies before byte-pair encoding, from its name in `tokenizer.ggml.pre`.

A name stands for a list of regular expressions. llama.cpp applies them in order, each to the pieces of text from the
previous one; text that no expression matches stays one piece. llama.cpp rewrote some expressions because its regex
engine lacks a feature; this module has the originals. Source: `llama_vocab::impl::load` and `llm_tokenizer_bpe` in
llama.cpp's `src/llama-vocab.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _expression(
    numbers: str, word: str = _WORD, signs: str = _SIGNS, first: str = _CONTRACTION, spaces: str = _SPACES
) -> str:
    return "|".join(part for part in (first, word, numbers, signs, spaces) if part)


def _cased(suffix: str = "") -> str:
    """Return GPT-4o's regular expression for upper-case letters followed by lower-case letters, then by `suffix`."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    prefix = r"[^\r\n\p{L}\p{N}]?"
    return f"{prefix}{upper}*{lower}+{suffix}|{prefix}{upper}+{lower}*{suffix}"


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Regular expression of GPT-2's pre-tokenisation, which is built into `ByteLevel(use_regex=True)`."""
_LLAMA3 = _expression(r"\p{N}{1,3}")
_QWEN2 = _expression(r"\p{N}")
_SIGNS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_GPT4O = _expression(r"\p{N}{1,3}", _cased(f"{_CONTRACTION}?"), _SIGNS_AND_SLASHES, first="")
_PORO = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+"
_CHINESE_AND_KANA = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_CHINESE_AND_KOREAN = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_SIGN_AND_LETTERS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
_DEEPSEEK3 = rf"{_SIGN_AND_LETTERS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_LINES = r"[^\n]+|[\n]+"
_HAN = r"\p{Han}"
_KIMI_UPPER = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^{_HAN}]]"
_KIMI_LOWER = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^{_HAN}]]"
_KIMI_WORD = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{_CONTRACTION}?"
)
_CASED_LETTERS = (
    r"A-Za-z"
    r"\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}"
    r"\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}"
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}"
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}"
    r"\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}"
    r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}"
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}"
    r"\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}"
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}"
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}"
    r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}"
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
"""Upper-case and lower-case letters in the regular expression of DeepSeek LLM's pre-tokeniser."""


@dataclass(frozen=True)
class Splitting:
    """Pre-tokenisation for one value of `tokenizer.ggml.pre`, llama.cpp's name of a pre-tokenizer.

    Attributes:
        expressions: regular expressions in Oniguruma's syntax, applied in order.
        ignores_merges: whether a piece that is a token of the vocabulary becomes that token without any merges.
        adds_bos: whether texts begin with BOS if the file does not specify it (`tokenizer.ggml.add_bos_token`).
        has_bytes: whether pieces use GPT-2's byte alphabet; else UTF-8, with "▁" for a space.
    """

    expressions: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False
    has_bytes: bool = True

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Build the pre-tokenizer object of the `tokenizers` library for this pre-tokenisation."""
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(expression), behavior="isolated") for expression in self.expressions
        ]
        if self.has_bytes:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


def name_of(expressions: Iterable[str], ignores_merges: bool) -> str | None:
    """Return llama.cpp's name for a byte-level pre-tokenisation with given regular expressions; None if unknown."""
    key = (tuple(expressions), ignores_merges, True)
    return next(
        (
            name
            for name, splitting in SPLITTINGS.items()
            if (splitting.expressions, splitting.ignores_merges, splitting.has_bytes) == key
        ),
        None,
    )


def _named(splitting: Splitting, names: str) -> dict[str, Splitting]:
    return dict.fromkeys(names.split(), splitting)


SPLITTINGS: dict[str, Splitting] = {
    **_named(
        Splitting((_LLAMA3,), ignores_merges=True, adds_bos=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    **_named(Splitting((_LLAMA3,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    **_named(
        Splitting((_expression(r"\p{N}", _cased(), _SIGNS_AND_SLASHES, first=""),), ignores_merges=True, adds_bos=True),
        "tekken",
    ),
    **_named(Splitting((_QWEN2,)), "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"),
    **_named(
        Splitting((_expression(r"\p{N}", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),)),
        "qwen35",
    ),
    **_named(Splitting((_expression(r"\p{N}", first=""),)), "ufakzeka"),
    **_named(Splitting((_LINES, _QWEN2)), "laguna"),
    **_named(Splitting((_expression(r"\p{N}", signs=r" ?[^\s\p{L}\p{N}\r\n]+"),)), "seed-coder"),
    **_named(
        Splitting(
            (
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
                r"|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
        "bailingmoe bailingmoe2 llada-moe",
    ),
    **_named(
        Splitting(
            (
                _expression(
                    r"\p{N}",
                    r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                    r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                    spaces=r"\s*[\r\n]|\s+(?!\S)|\s+",
                ),
            )
        ),
        "exaone-moe",
    ),
    **_named(
        Splitting(
            (
                _expression(
                    r"\p{N}{1,3}",
                    spaces=r"\s*[\r\n]+|"
                    + "|".join(rf"\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
                    + r"|\s",
                ),
            )
        ),
        "jais-2",
    ),
    **_named(Splitting((r"\p{N}{1,3}", _expression(r"\p{N}+")), ignores_merges=True), "minicpm5"),
    **_named(Splitting((_GPT4O,)), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    **_named(Splitting((_GPT4O,), ignores_merges=True), "granite-embed-multi-97m"),
    **_named(Splitting((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)), "tiny_aya cohere2moe"),
    **_named(
        Splitting(
            (
                r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}"
                r"\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+"
                rf"|{_CHINESE_AND_KANA}",
                _expression(r"\p{N}", _cased(f"{_CONTRACTION}?"), _SIGNS_AND_SLASHES, first=""),
            ),
            ignores_merges=True,
        ),
        "youtu",
    ),
    **_named(
        Splitting((rf"{_HAN}+|" + _expression(r"\p{N}{1,3}", _KIMI_WORD, first=""),)),
        "kimi-k2",
    ),
    **_named(Splitting((r"\p{N}{1,3}", _CHINESE_AND_KANA, _DEEPSEEK3)), "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    **_named(
        Splitting(
            (
                r"\p{N}{1,3}",
                _CHINESE_AND_KANA,
                rf"{_SIGN_AND_LETTERS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
                r"\p{N}",
            )
        ),
        "spark2_5",
    ),
    **_named(
        Splitting(
            (
                r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
                r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}"
                r"\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}"
                r"\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+",
                _DEEPSEEK3,
            )
        ),
        "afmoe",
    ),
    **_named(
        Splitting(
            (
                r"[\r\n]",
                rf"\s?[{_CASED_LETTERS}]+",
                r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
                r"\s+$",
                _CHINESE_AND_KOREAN,
                r"\p{N}+",
            )
        ),
        "deepseek-llm",
    ),
    **_named(Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE_AND_KOREAN, r"\p{N}")), "deepseek-coder"),
    **_named(Splitting((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")), "falcon"),
    **_named(Splitting((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")), "default"),
    **_named(Splitting((r"\p{N}", GPT2)), "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    **_named(
        Splitting((GPT2,)),
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en jina-v2-code"
        " roberta-bpe mpt olmo jais trillion granite-docling exaone4",
    ),
    **_named(Splitting((r"\p{N}+", r"(?=(\d{3})+(?!\d))")), "superbpe"),
    **_named(Splitting((_PORO,)), "poro-chat bloom gpt3-finnish"),
    **_named(Splitting((_PORO, r"\p{N}")), "viking"),
    **_named(
        Splitting(
            (
                r"<sentinel:[0-9]+>",
                r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ),
            adds_bos=True,
        ),
        "chameleon",
    ),
    **_named(Splitting((_LINES,), has_bytes=False), "gemma4 granite-embed-multi-311m sarvam-moe"),
}
"""Pre-tokenisation by the name in `tokenizer.ggml.pre`, for all names that llama.cpp supports for decoders."""
