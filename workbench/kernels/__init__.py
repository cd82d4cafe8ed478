"""Forward passes: the KV cache, masks and positions of draft trees, faster implementations."""
