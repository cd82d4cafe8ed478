"""Cost of verification with a large vocabulary, counted in passes over whole distributions, so independent of load."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from model_helpers import make_sequence, make_small_models
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workbench.core.sampling import SamplingParams
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify import acceptance
from workbench.decoders.draft_verify.acceptance import accept
from workbench.engine import Engine
from workbench.engine.request import Request
from workbench.kernels import distributions
from workbench.methods import registry
from workbench.methods.verifiers import optimal_two

V = 16_384
FEW = ("view", "unsqueeze", "slice", "expand", "detach", "_unsafe_view", "alias", "select", "permute", "empty",
         "gather", "index", "scatter_", "unflatten", "resolve_conj", "resolve_neg")  # fmt: skip
SLOW = ("sort", "topk", "cumsum", "special_entr", "where")
"""Operations that take many times longer on a CPU than a pass of arithmetic; verification must not need them."""


class Passes(TorchDispatchMode):
    """Counts operations that read or write whole distributions, except those that touch few values."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.found: list[tuple[str, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        wide = [t for t in tensors if t.numel() >= self.size]
        name = str(func).removeprefix("aten.").partition(".")[0]
        if wide and name not in FEW and not name.startswith("new_"):
            self.found.append((name, any(t.dtype == torch.float64 for t in wide)))
        return out


def passes(tree: DraftTree, temperature: float) -> list[tuple[str, bool]]:
    """Return the operations over whole distributions in `accept`, on random logits in bfloat16."""
    method = registry.get("autoregressive").with_params()
    row = make_sequence(
        Request([1, 2, 3], method, SamplingParams(temperature)), [1, 2, 3], make_small_models(noise=None)
    )
    n = len(tree)
    logits = (4 * torch.randn(n + 1, V, generator=torch.Generator().manual_seed(1))).bfloat16()
    with torch.inference_mode(), Passes((n + 1) * V) as counted:
        accept(row, tree, logits, logits, {}, is_trace_detailed=True)
    return counted.found


TREES = {
    "plain": DraftTree.empty(),
    "chain": DraftTree.chain([5, 6, 7, 8]),
    "tree": DraftTree.from_parents(list(range(12)), [-1, -1, -1, 0, 0, 0, 1, 1, 3, 3, 4, 8]),
}


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize(("temperature", "most"), [(0.0, 6), (0.7, 9)], ids=["greedy", "sampled"])
def test_verification_makes_few_passes_over_full_distributions(kind: str, temperature: float, most: int) -> None:
    found = passes(TREES[kind], temperature)
    names = [name for name, _ in found]
    assert not [name for name in names if name in SLOW], names
    assert not [name for name, wide in found if wide], "no whole distribution is in float64"
    assert len(names) <= most, names


@pytest.mark.parametrize("temperature", [0.0, 0.7], ids=["greedy", "sampled"])
def test_target_with_excluded_tokens_has_an_entropy(temperature: float) -> None:
    method = registry.get("autoregressive").with_params()
    row = make_sequence(
        Request([1, 2, 3], method, SamplingParams(temperature)), [1, 2, 3], make_small_models(noise=None)
    )
    logits = torch.tensor([[0.0, 0.0, -torch.inf, -torch.inf, -torch.inf, -torch.inf]])
    found = accept(row, DraftTree.empty(), logits, logits, {}, is_trace_detailed=True)
    assert found.figures.entropy.tolist() == pytest.approx([math.log(2)])


@pytest.mark.parametrize("group", ["Walk", "Figure", "Explanation"])
def test_host_copy_has_the_fields_of_the_tensors_in_their_order(group: str) -> None:
    tensors, lists = (dataclasses.fields(getattr(acceptance, f"{group}{kind}")) for kind in ("Tensors", "Lists"))
    assert [field.name for field in tensors] == [field.name for field in lists]


@pytest.mark.parametrize("vocabulary", [6, 2048])
def test_verification_kernels_are_compiled_before_the_first_round(
    vocabulary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels for large vocabularies are loaded with the engine; optimal-two's search when a request needs it."""
    called: list[str] = []

    def noted(module: Any, name: str) -> None:
        call = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, **named: (called.append(name), call(*given, **named))[1])

    noted(distributions, "top_and_entropy")
    noted(distributions, "summarise_softmax")
    noted(optimal_two, "_search_weights_compiled")
    engine = Engine(make_small_models(vocabulary))
    assert called == ["top_and_entropy", "summarise_softmax", "summarise_softmax"] * (vocabulary == 2048)
    called.clear()
    method = registry.get("draft-tree-sampled").with_params(verifier="optimal-two", grower="specinfer")
    row = engine.submit(Request([3, 1, 4], method, SamplingParams(1.0), 4, stop_at_eos=False))
    monkeypatch.setattr(engine._decoder(row.configured_method), "step", lambda rows: True)
    engine.step()
    assert row.committed
    assert called == ["_search_weights_compiled"]
