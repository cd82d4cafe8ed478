"""Training of feature drafters: one trainer for all, losses in a registry, features of the frozen target read once."""
