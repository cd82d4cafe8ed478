"""Bundled methods: one module each, which declares the method as `METHOD`."""
