"""Code that several methods share: nets, drafting states, KV caches, presets and texts."""
