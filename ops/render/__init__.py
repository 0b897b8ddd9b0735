"""From a profile, its stack, its NCCL set and a host to the bytes of a release. Pure: same input, same bytes."""

from ops.render.argv import engine_argv
from ops.render.env_file import engine_environment, without_secrets
from ops.render.release import render

__all__ = ["engine_argv", "engine_environment", "render", "without_secrets"]
