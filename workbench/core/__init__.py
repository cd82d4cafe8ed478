"""Pure functions and plain types: draft trees, sampling, acceptance rules. Nothing here depends on a model."""
