"""Hydra's heads: Medusa's without token inputs, separate weights per head, correct labels. EAGLE's fixed tree."""

from __future__ import annotations

from pathlib import Path

import model_helpers
import torch

from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.methods.hydra.drafter import HydraHeads
from workbench.methods.hydra.train import guesses
from workbench.methods.medusa.drafter import MedusaHeads

D, BLOCKS = 12, 3


def test_without_token_inputs_it_equals_medusa() -> None:
    medusa, hydra = MedusaHeads(D, BLOCKS), HydraHeads(D, BLOCKS, cond=4)
    read = torch.randn(5, D)
    embeds = hydra.project(torch.randn(5, BLOCKS, D)).flatten(1)
    with torch.no_grad():
        for k, (mine, theirs) in enumerate(zip(hydra.read, medusa.heads, strict=True)):
            torch.testing.assert_close(
                hydra(read, embeds[:, : (k + 1) * 4], k), read, msg="each begins as the identity"
            )
            for parameter in (*mine.parameters(), *theirs.parameters()):
                torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.dim() + k))
        for k, theirs in enumerate(medusa(read)):
            torch.testing.assert_close(hydra(read, embeds[:, : (k + 1) * 4], k), theirs)
        hydra.beside[1].get_parameter("weight").fill_(0.3)
        assert not torch.allclose(hydra(read, embeds[:, :8], 1), medusa(read)[1]), "token inputs have an effect"


def test_blocks_have_separate_weights() -> None:
    """In the released code, further layers are one repeated block and share their weights."""
    hydra = HydraHeads(D, BLOCKS, cond=4)
    for layers in (hydra.read, hydra.beside, hydra.direct):
        assert len({layer.get_parameter("weight").data_ptr() for layer in layers}) == BLOCKS


def test_each_block_reads_the_tokens_before_its_label() -> None:
    """Of tokens 0 … 9, the answer is 4 … 8; a feature at s decides the token at s + 1. No label wraps around."""
    net, n = HydraHeads(D, BLOCKS, cond=D), 10
    ids, features = torch.arange(n)[None], torch.arange(float(n))[None, :, None].expand(1, n, D)
    answer = torch.zeros(1, n, dtype=torch.bool)
    answer[0, 3:8] = True
    asked: list[tuple[int, list[float], list[list[float]]]] = []

    def seen(features: torch.Tensor, embeddings: torch.Tensor, block: int) -> torch.Tensor:
        asked.append((block, features[:, 0].tolist(), embeddings.view(len(embeddings), block + 1, D)[:, :, 0].tolist()))
        return features

    net.project = lambda embeds: embeds  # type: ignore[method-assign]
    net.forward = seen  # type: ignore[method-assign]
    embedding = torch.arange(float(n))[:, None].expand(n, D)
    found = [
        (guess[:, 0].tolist(), truth[:, 0].tolist()) for guess, truth in guesses(net, embedding, ids, features, answer)
    ]
    for block, (read, truth) in enumerate(found):
        assert read == [3, 4, 5, 6][: 4 - block], "positions with an answer token that far ahead"
        assert truth == [place + block + 1 for place in read], "the feature that decides it"
    for block, places, embeddings in asked:
        assert embeddings[: 4 - block] == [[place + 1 + j for j in range(block + 1)] for place in places[: 4 - block]]


def test_eagle_tree_is_the_same_in_every_round(tmp_path: Path) -> None:
    models = model_helpers.make_small_models(6, heads=tmp_path / "heads")
    shapes = {}
    for name in ("eagle", "eagle-2"):
        trace = Engine(models).generate(
            Request([3, 1, 4, 1, 5], registry.get(name), max_new_tokens=40, stop_at_eos=False)
        )
        shapes[name] = {
            tuple(r.nodes.parents) for r in trace.rounds[:5]
        }  # the end of the text is near after these rounds
    assert len(shapes["eagle"]) == 1 < len(shapes["eagle-2"])
    assert len(next(iter(shapes["eagle"]))) == 12
