"""Benchmarks and checks: interleaved measurements, goodness-of-fit tests, tests that methods keep their promises."""
