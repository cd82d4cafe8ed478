"""The teaching notebooks kept in order, and the static site: executed notebooks, the methods, the API reference."""
