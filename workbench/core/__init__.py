"""Pure functions and plain types: trees, sampling, rejection rules. Nothing here knows a model."""
