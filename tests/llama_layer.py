"""The decoder layer of transformers with the weights of our layer; both should have equal outputs."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from workbench.methods.common.feature_net import FeatureNet


class TransformersLayer(torch.nn.Module):
    """A net's attention and MLP with the norms before them, in float64."""

    def __init__(self, net: FeatureNet) -> None:
        super().__init__()
        config = LlamaConfig(
            hidden_size=net.width, intermediate_size=net.down.in_features, num_attention_heads=net.heads,
            num_key_value_heads=net.heads, head_dim=net.head_size, rms_norm_eps=net.eps,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        )  # fmt: skip
        config._attn_implementation = "eager"
        self.layer, self.rotary = LlamaDecoderLayer(config, 0), LlamaRotaryEmbedding(config)
        mine = net.state_dict()
        attention = zip("qkv", mine["qkv.weight"].chunk(3), strict=True)
        gate, up = mine["gate_up.weight"].chunk(2)
        theirs = {f"self_attn.{name}_proj.weight": weight for name, weight in attention} | {
            "input_layernorm.weight": mine["before.weight"], "self_attn.o_proj.weight": mine["out.weight"],
            "post_attention_layernorm.weight": mine["between.weight"], "mlp.gate_proj.weight": gate,
            "mlp.up_proj.weight": up, "mlp.down_proj.weight": mine["down.weight"],
        }  # fmt: skip
        self.double()
        self.layer.load_state_dict(theirs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output [B, n, D] for hidden states, with causal attention."""
        places, n = torch.arange(x.shape[1])[None], x.shape[1]
        later = torch.full((n, n), -torch.inf, dtype=x.dtype).triu(1)[None, None]
        found = self.layer(x, attention_mask=later, position_ids=places, position_embeddings=self.rotary(x, places))
        return found[0] if isinstance(found, tuple) else found
