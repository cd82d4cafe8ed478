"""Beam search: several candidate texts are extended together, and the best complete text is the output."""
