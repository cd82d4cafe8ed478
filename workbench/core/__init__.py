"""Draft trees, sampling and acceptance rules, as pure functions and plain types that need no model."""
