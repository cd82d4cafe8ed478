"""Methods from files outside the package, with tests that they run, are recorded and replayed."""
