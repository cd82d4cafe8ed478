"""Forward passes: KV cache, masks and positions of draft trees, and fast implementations of decoder layers."""
