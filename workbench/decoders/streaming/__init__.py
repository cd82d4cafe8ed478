"""Plain decoding with a KV cache of constant size (StreamingLLM)."""
