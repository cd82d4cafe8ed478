"""Drafters for a real chat model, trained on what it says and thinks: read once, kept on disk, used by every recipe."""
