"""Is it our engine that answers on the port?"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ops.engine.versions import rules_of
from ops.gates import wanted
from ops.model.gate import Gate, Learned, Reply, Server
from ops.model.profile import SECRET_FLAGS
from ops.model.release import follows
from ops.model.verdict import Question, Verdict

ASK = Question("itself", "Does the engine that we started, and no other process, answer on the port?")
WILDCARDS = ("0.0.0.0", "::", "")


def judge(server: Server, learned: Learned) -> Verdict:
    address, port = server.endpoint
    facts = server.facts()
    owned = owner_ruling(facts, address, port, wanted.release(server))
    if not owned.passed or follows(server.manifest):  # a rank that is not 0 has no /server_info to ask
        return owned
    reply = server.http("GET", "/server_info", timeout_s=30.0)
    return answer_ruling(reply, port, wanted.arguments(server), owned)


def owner_ruling(facts: Mapping[str, Any], address: str, port: int, release: str) -> Verdict:
    """Judge who owns the listening socket."""
    listeners = [
        entry
        for entry in facts.get("listeners") or []
        if entry["port"] == port and (entry["address"] == address or entry["address"] in WILDCARDS)
    ]
    own = {p["pid"]: p for p in wanted.own(facts, release)}
    evidence = {
        "endpoint": f"{address}:{port}",
        "listeners": listeners,
        "engine_pid": facts["engine"].get("pid"),
    }
    if not listeners:
        return ASK.failed(
            f"nothing listens on {address}:{port}",
            "`ops logs`: an engine may print that it is ready although binding the port failed",
            **evidence,
        )
    foreign = [entry for entry in listeners if entry["pid"] is not None and entry["pid"] not in own]
    if foreign:
        who = ", ".join(f"pid {e['pid']} ({e.get('title', '')[:80]}, user {e.get('user', '?')})" for e in foreign)
        return ASK.failed(
            f"{address}:{port} belongs to another process: {who}",
            "end that process (ops does not touch what it did not start), then deploy again",
            **evidence,
        )
    if any(entry["pid"] is None for entry in listeners):
        return ASK.inconclusive(
            f"the owner of {address}:{port} cannot be seen",
            "give the SSH user the right to see the engine's processes (same user, or become)",
            **evidence,
        )
    started = facts["engine"].get("started_at")
    born = [own[e["pid"]].get("starttime") for e in listeners]
    return ASK.passed(f"pid {listeners[0]['pid']} listens", **evidence, started_at=started, starttimes=born)


def answer_ruling(reply: Reply, port: int, arguments: Sequence[str], owned: Verdict) -> Verdict:
    """Judge what `/server_info` says of itself against the release's command line."""
    info = reply.body
    if reply.status != 200 or not isinstance(info, dict):
        return ASK.failed(
            f"/server_info answered {reply.status or reply.error}",
            "`ops logs`; a process that accepts connections but answers nothing is no server",
            **owned.evidence,
        )
    evidence = {
        **owned.evidence,
        "version": info.get("version"),
        "launch_command": info.get("launch_command"),
    }
    if info.get("port") != port:
        return ASK.failed(f"it says that its port is {info.get('port')}", "`ops status`, `ops logs`", **evidence)
    launched = info.get("launch_command")
    rules = rules_of(info.get("version"))
    if not launched and rules is not None and rules.launch_command:
        return ASK.inconclusive(
            f"version {info['version']} tells its command line, and this server does not",
            "something else answers in the engine's name: `ops status`, `ops logs`",
            **evidence,
        )
    if launched and arguments and not same_words(launched, arguments):
        odd = sorted(set(arguments).symmetric_difference(_words(launched)))
        return ASK.failed(
            f"it was started with other arguments; they differ in: {' '.join(odd)}",
            "an older server answers, or the unit was edited by hand: deploy again",
            **evidence,
        )
    return ASK.passed(owned.message, **evidence)


def same_words(launched: str, arguments: Sequence[str]) -> bool:
    """Compare a launch command as the engine reports it with the one asked for.

    Source: SGLang 0.5.23 /server_info `launch_command` (server_info_eagle3.json); 0.5.17 has none.
    """
    return any(_words(launched, how) == _words(" ".join(arguments), how) for how in (shlex.split, str.split))


def _words(launched: str, how: Callable[[str], list[str]] = str.split) -> list[str]:
    try:
        words = how(launched)
    except ValueError:  # a lone quote inside a value is no syntax error: the engine joins with blanks
        words = launched.split()
    # launch.sh adds the file with the secrets; the engine tells its path, or the flags it read there, or neither.
    hidden = {"--config", *(f"--{flag}" for flag in SECRET_FLAGS)}
    return [word for i, word in enumerate(words) if word not in hidden and (i == 0 or words[i - 1] not in hidden)]


GATE = Gate(ASK.name, ASK.question, 20, judge, needs=("alive",), of_follower=True)
