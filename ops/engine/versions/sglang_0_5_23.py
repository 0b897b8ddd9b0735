"""SGLang 0.5.23 and, until one is known to differ, what follows.

Source: the wheel of 0.5.23 (srt/entrypoints/http_server.py:714, srt/server_args.py:303), and the recordings.
"""

from ops.engine.versions import Rules

RULES = Rules(
    since="0.5.23",
    before=None,
    recordings=("sglang-0.5.23-cpu",),
    ready=True,
    launch_command=True,
    first_token_latency=True,
    sigterm_exit=0,
)
