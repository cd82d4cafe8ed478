"""Parallel prompt decoding: the target itself predicts later tokens at trained embeddings after the draft.

A prompt token is a learned input embedding that belongs to no vocabulary token. `ProbeDrafter` defines the positions of
prompt tokens, and uses the predictions there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from workbench.core.probes import Probes
from workbench.core.tree import DraftTree
from workbench.engine.request import Sequence
from workbench.methods.common.probe_drafter import ProbeDrafter, ProbeLayout, ProbeNet, ProbeState
from workbench.methods.common.trained_net import load_fitting
from workbench.models.loading import Models


class PromptTokens(ProbeNet):
    """Trained weights of parallel prompt decoding: v input embeddings for each of m prompt tokens.

    Each embedding of a prompt token has its own position, and the predictions at these positions are averaged.

    Args:
        width: the target's hidden size D.
        prompts: number m of prompt tokens.
        ensemble: number v of embeddings per prompt token.
        context: unused; all nets have this argument.

    Source: Chen et al. 2024, Hardware-aware parallel prompt decoding, arXiv:2405.18628, §3.
    """

    kind: ClassVar[str] = "ppd"

    def __init__(self, width: int, prompts: int = 3, ensemble: int = 1, context: int = 1024) -> None:
        super().__init__()
        self.width, self.levels, self.ensemble = width, prompts, ensemble
        self.embeds = nn.Parameter(torch.zeros(prompts, ensemble, width))

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild the trained prompt tokens."""
        return {"width": self.width, "prompts": self.levels, "ensemble": self.ensemble}


@dataclass(slots=True)
class PromptState(ProbeState):
    """Drafting state of parallel prompt decoding for one text.

    Attributes:
        similar_tokens: vocabulary token most similar to each prompt embedding, shown in the trace.
    """

    similar_tokens: Int[Tensor, " jv"] | None = None


@dataclass(frozen=True)
class PPD(ProbeDrafter):
    """Draft with trained prompt tokens at extra positions of the verifying pass.

    `ProbeDrafter` describes the algorithm.

    Source: Chen et al. 2024, Hardware-aware parallel prompt decoding, arXiv:2405.18628, §3 and Figure 2.
    """

    needs: ClassVar[tuple[str, ...]] = (PromptTokens.kind, "trees")
    display_name: ClassVar[str] = "prompt tokens"

    def init_state(self, sequence: Sequence, models: Models) -> PromptState:
        """Return a drafting state with the trained prompt tokens, which are loaded once per target.

        Raises:
            ModelError: the prompt embeddings cannot be read, or were trained for another target.
        """
        advice = "Train prompt tokens for this target: workbench train ppd --target …"
        net = load_fitting(PromptTokens, models, "prompt tokens", advice)
        unit = nn.functional.normalize
        with torch.inference_mode():
            similarity = (
                unit(net.embeds.flatten(0, 1), dim=-1) @ unit(models.target.embed.get_parameter("weight"), dim=-1).T
            )
            return PromptState(net, similar_tokens=similarity.argmax(-1))

    def add_probe_inputs(self, sequence: Sequence, tree: DraftTree, layout: ProbeLayout, probes: Probes) -> Probes:
        """Return the probes (extra positions for drafting) of a forward pass, with prompt embeddings as inputs."""
        state: PromptState = sequence.state.drafter
        assert state.similar_tokens is not None
        return replace(
            probes,
            tokens=state.similar_tokens[layout.input_index],
            states=state.net.embeds.flatten(0, 1)[layout.input_index],
        )
