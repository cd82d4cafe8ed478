"""Rendered scenes, what can be asked about them, and the vision-language models that learn from them."""
