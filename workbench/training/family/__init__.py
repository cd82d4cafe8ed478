"""Drafters for a real chat model, trained on its answers and hidden states, which are computed once and stored."""
