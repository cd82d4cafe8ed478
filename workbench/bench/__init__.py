"""Measuring and checking: interleaved benches, goodness of fit, promises put to the test."""
