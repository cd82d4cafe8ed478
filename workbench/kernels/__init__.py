"""Forward passes: KV cache, masks and positions of draft trees, and faster implementations."""
