"""Speculative Decoding Workbench: every drafter on one engine, and a way to see what each one does."""

__version__ = "0.1.0"
