"""Drafters, which propose tokens to the target, one idea per file."""
