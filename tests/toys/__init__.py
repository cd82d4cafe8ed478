"""Methods from files outside the package, each with the tests that it runs, records and replays."""
