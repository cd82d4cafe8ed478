"""Models and heads: finding, downloading, converting, loading and checking them, and running their forward passes."""
