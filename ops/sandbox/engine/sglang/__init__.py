"""The simulated SGLang 0.5.23: no GPU, no model, the real server's outside.

Found as ``sglang`` by the virtual environment of a sandbox host. Needs the standard library, starlette, uvicorn and
setproctitle, and nothing of the project it ships with.
"""

__version__ = "0.5.23"
