"""Find, download, convert, load and check models and heads, and run their forward passes."""
