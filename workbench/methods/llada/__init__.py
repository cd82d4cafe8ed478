"""LLaDA: decoding of a masked-diffusion language model, block by block."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Recording
from workbench.decoders.masked_diffusion.decoder import MaskedDiffusion
from workbench.decoders.method import Source
from workbench.methods.undrafted import undrafted
from workbench.models.bundle import DIFFUSION_TARGET

METHOD = undrafted(
    "llada",
    title="LLaDA",
    promise=Promise.APPROXIMATE,
    source=Source(
        "Large language diffusion models", "Nie et al.", 2025, "https://arxiv.org/abs/2502.09992", "§2.4, appendix B.4"
    ),
    summary="A masked-diffusion model fills the positions of the answer in any order, the most probable tokens first.",
    idea=(
        "The answer starts as a canvas of masked positions. In every round the model reads prompt and canvas in both "
        "directions and predicts all masked positions. The predictions of highest probability are filled in, and the "
        "other positions stay masked for the next round. With several positions per round there are fewer forward "
        "passes than tokens, but the tokens of one round are predicted independently."
    ),
    formula="fill the n masked positions i with the largest max p(x(i) | prompt, canvas)",
    differences=(
        "The canvas has one position for each new token that the request allows; blocks are counted from the "
        "canvas's start.",
        "The model starts from the first layers of the bundled target, is trained on its tasks, and has 5M parameters "
        "instead of 8B. Like Dream 7B, it predicts a token from the hidden state at the position before.",
    ),
    order=7,
    recording=Recording(("JSON",), target=DIFFUSION_TARGET),
    claims=(
        Claim(
            "accuracy relative to an autoregressive model of the same size",
            "LLaDA 8B and LLaMA3 8B, 15 benchmarks",
            None,
            None,
            "Nie et al. 2025, arXiv:2502.09992, table 1 (from memory)",
            None,
            lacks="two models of the same size trained on the same data",
            matched=True,
        ),
    ),
    decoder_params=MaskedDiffusion(),
)
