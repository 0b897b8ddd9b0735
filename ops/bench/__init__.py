"""Measuring a running engine, and the statistics of it."""
