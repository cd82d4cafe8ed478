"""Benchmarks and checks: interleaved measurements, goodness-of-fit tests, tests of methods' exactness promises."""
