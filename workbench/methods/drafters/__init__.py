"""Drafters: one idea per file."""
