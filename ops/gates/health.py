"""Does it say that it is well, or is it merely busy?

`/health` is neither enough (an old process, a hang, garbage) nor needed (503 during a long prefill), so this check
waits as long as the engine is seen to work, and leaves the proof of life to `generation`.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ops.model.gate import Gate, Learned, Server
from ops.model.verdict import Question, Verdict

ASK = Question("health", "Does /health answer 200, or is the engine busy with work that advances?")

POLL_S = 2.0
QUIET_S = 25.0
"""No 200 and no progress for so long is death. Source: the engine's own health wait is 20 s
(SGLANG_HEALTH_CHECK_TIMEOUT, SGLang 0.5.23 srt/entrypoints/http_server.py:218); one poll more."""
QUIET_POLLS = 3
PATIENCE_S = 240.0
PROGRESS = re.compile(r"(Prefill|Decode) batch")


@dataclass(frozen=True)
class Poll:
    """One look: when, what `/health` said (None: no answer), and the latest line that shows work."""

    at_s: float
    status: int | None
    work: str


def judge(server: Server, learned: Learned) -> Verdict:
    polls: list[Poll] = []
    told = False
    while True:
        reply = server.http("GET", "/health", timeout_s=30.0)
        polls.append(Poll(server.clock.now_s(), reply.status, last_work(server.log(200))))
        verdict = ruling(polls)
        if verdict is not None:
            return verdict
        if not told:
            server.say(f"/health answers {reply.status or reply.error}; waiting while the log advances")
            told = True
        server.clock.sleep_s(POLL_S)


def last_work(log: Sequence[str]) -> str:
    """Return the last line of prefill or decode; access lines (such as those of our own polls) are no work."""
    return next((line for line in reversed(log) if PROGRESS.search(line)), "")


def ruling(polls: Sequence[Poll]) -> Verdict | None:
    """Judge the polls so far; None: go on."""
    now = polls[-1]
    waited_s = now.at_s - polls[0].at_s
    evidence = {
        "polls": len(polls),
        "waited_s": round(waited_s, 1),
        "statuses": [p.status for p in polls[-10:]],
    }
    if now.status == 200:
        return ASK.passed("200" if len(polls) == 1 else f"200 after {waited_s:.0f} s of work", **evidence)
    advanced = [p for before, p in itertools.pairwise(polls) if p.work != before.work]
    quiet_from = advanced[-1].at_s if advanced else polls[0].at_s
    quiet = [p for p in polls if p.at_s >= quiet_from]
    if now.at_s - quiet_from >= QUIET_S and len(quiet) > QUIET_POLLS:
        return ASK.failed(
            f"/health answers {now.status or 'nothing'} and nothing was computed for {now.at_s - quiet_from:.0f} s",
            "`ops logs`: look for a watchdog or NCCL line; then deploy again, or `ops rollback`",
            **evidence,
        )
    if waited_s >= PATIENCE_S:
        return ASK.inconclusive(
            f"busy for {waited_s:.0f} s: /health answers {now.status}, but the log advances",
            "somebody sends long requests: drain the host, then run `ops gate`",
            **evidence,
        )
    return None


GATE = Gate(ASK.name, ASK.question, 30, judge, needs=("alive", "itself"))
