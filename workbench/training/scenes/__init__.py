"""Rendered scenes, questions about them, and the vision-language models that are trained on them."""
