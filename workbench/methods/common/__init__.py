"""Code that several decoding methods share: nets, drafting states, KV caches, and presets of their declarations."""
