"""Frozen data that every other package shares; imports nothing of `ops` but `errors`."""
