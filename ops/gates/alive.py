"""Is the engine running, in one piece, since we started it?"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ops.gates import wanted
from ops.model.gate import Gate, Learned, Server
from ops.model.release import follows
from ops.model.verdict import Question, Verdict

ASK = Question("alive", "Does the engine run, complete and without an interruption since its start?")

FATAL = re.compile(
    r"Scheduler hit an exception|[Rr]eceived sigquit from a child|SIGQUIT received|crashed with exit code"
    r"|watchdog timeout \(|Initialization failed|Capture cuda graph failed|CUDA out of memory|illegal memory access"
    r"|device-side assert|\[Errno 98\]|NCCL error|kill_process_tree called"
)
"""Lines after which a server is dead, dying or not the one on the port.

Source: recordings crash_*.log and kill9_scheduler.log (SGLang 0.5.17, 0.5.23); srt/managers/scheduler.py:6371,
srt/utils/watchdog.py:153-240, srt/managers/tokenizer_manager.py:4072.
"""
LOG_LINES = 2000
MET = re.compile(r"^\[[^\]]*?\b(TP\d+)\] Init (?:parallel|torch distributed) ends")
LOADED = re.compile(r"^\[[^\]]*?\b(TP\d+)\] Load weight end")
"""Source: SGLang 0.5.23 srt/model_executor/model_runner.py:1274; recording nccl_info_ll.log of 0.5.17."""


def judge(server: Server, learned: Learned) -> Verdict:
    # With several machines that ops knows nothing of this host holds a part of the ranks: then any count passes.
    spread = server.profile.engine.flag("nnodes") is not None
    ranks = None if spread else wanted.local_ranks(server)
    log = server.log(LOG_LINES)
    verdict = ruling(server.facts(), log, wanted.release(server), ranks)
    if verdict.passed and follows(server.manifest):
        verdict = joined_ruling(verdict, log)
    if verdict.passed:
        learned.pid = int(str(verdict.evidence["pid"]))
    return verdict


def ruling(facts: Mapping[str, Any], log: Sequence[str], release: str, ranks: int | None) -> Verdict:
    """Judge what was seen. `ranks`: how many scheduler processes there must be; None: not known."""
    engine = facts["engine"]
    state, pid = engine.get("state"), engine.get("pid")
    look = "`ops logs` shows why; then deploy again, or `ops rollback`"
    if state != "running" or not pid:
        detail = engine.get("detail") or ""
        return ASK.failed(f"the supervisor says {state}: {detail}".rstrip(": "), look, state=state, pid=pid)
    exits = unexpected_exits(facts)
    fatal = [line for line in log if FATAL.search(line)]
    processes = wanted.own(facts, release)
    found = len(wanted.ranks(processes))
    evidence = {
        "pid": pid,
        "state": state,
        "unexpected_exits": exits,
        "ranks": found,
        "fatal_lines": fatal[:5],
    }
    if facts.get("unseen"):
        return ASK.inconclusive(
            f"the environment of pid {pid} is closed to the agent, so nobody knows whose processes run",
            "give the SSH user the right to see the engine's processes (same user, or become)",
            **evidence,
        )
    if pid not in {p["pid"] for p in processes}:
        return ASK.failed(f"pid {pid} is not of release {release}", "`ops status` names what runs", **evidence)
    if exits:
        return ASK.failed(f"the engine ended by itself and was restarted, {exits} times", look, **evidence)
    if fatal:
        return ASK.failed(f"the log has a fatal line: {fatal[0][-200:]}", look, **evidence)
    if ranks is not None and found < ranks:
        return ASK.failed(f"{found} scheduler processes of {ranks} are alive", look, **evidence)
    return ASK.passed(f"pid {pid}, {found} scheduler processes", **evidence)


def joined_ruling(alive: Verdict, log: Sequence[str]) -> Verdict:
    """Judge a rank that is not 0, whose /health is a dummy that always says 200: each of its processes must have met
    the others and loaded its part. That they still compute is proven by a generation of rank 0, which takes all ranks.

    Source: SGLang 0.5.23 srt/utils/common.py (launch_dummy_health_check_server), srt/entrypoints/engine.py:1234-1297.
    """
    met = {match[1] for line in log if (match := MET.match(line))}
    loaded = {match[1] for line in log if (match := LOADED.match(line))}
    ranks = int(str(alive.evidence["ranks"]))
    evidence = {**alive.evidence, "met": sorted(met), "loaded": sorted(loaded)}
    if len(met & loaded) < ranks:
        return ASK.failed(
            f"of {ranks} ranks {len(met)} met the others and {len(loaded)} loaded their part; /health says 200 anyway",
            "`ops logs` of this host and of rank 0: look for the address of --dist-init-addr",
            **evidence,
        )
    return ASK.passed(f"{alive.message}, all of which met the other hosts", **evidence)


def unexpected_exits(facts: Mapping[str, Any]) -> int:
    """Count the exits nobody ordered since the engine was last started on purpose."""
    count = int(facts["engine"].get("restarts") or 0)
    for event in reversed(facts.get("journal") or []):
        if event.get("event") == "step-started" and event["step"]["kind"] == "start":
            break
        count += event.get("event") == "engine-exit"
    return count


GATE = Gate(ASK.name, ASK.question, 10, judge, of_follower=True)
