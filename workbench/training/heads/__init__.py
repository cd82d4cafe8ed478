"""Training of feature drafters, which predict a target's hidden states: trainer, losses, and stored features."""
