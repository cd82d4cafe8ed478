"""Beam search: several candidate texts grow together, and the best complete one is the output."""
