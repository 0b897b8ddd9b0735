"""Routers: what sends traffic to hosts. One file each; found by name."""
