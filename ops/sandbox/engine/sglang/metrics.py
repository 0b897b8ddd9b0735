"""Prometheus text in the real server's names, types and labels."""

from .server import Server


def render(server: Server) -> str:
    return ""
