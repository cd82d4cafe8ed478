"""Drafters for a real chat model, trained on stored answers of the model and its hidden states over them."""
