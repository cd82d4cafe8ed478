"""Measuring and checking: interleaved benches, goodness-of-fit tests, and tests of the methods' promises."""
