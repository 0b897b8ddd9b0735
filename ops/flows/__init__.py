"""Flows: what a command does, told in a few calls. No parsing, no printing."""
