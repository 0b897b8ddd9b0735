"""SGLang 0.5.17 up to the first version known to differ. Versions between the two were not looked at.

Source: the wheel of 0.5.17 (srt/entrypoints/http_server.py has no /ready; srt/managers/tokenizer_manager.py:3037), and
the recordings.
"""

from ops.engine.versions import Rules

RULES = Rules(
    since="0.5.17",
    before="0.5.23",
    recordings=("sglang-0.5.17-h200",),
    ready=False,
    launch_command=False,
    first_token_latency=False,
    sigterm_exit=-9,
)
