"""Training of feature drafters: one trainer for all, a registry of losses, stored features of the frozen target."""
