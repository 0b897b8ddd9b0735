"""`ops status`: the truth about a host, read from the host."""

import time
from collections.abc import Mapping
from typing import Any

from ops.engine.phase_timer import phase_shares
from ops.errors import OpsError
from ops.flows.hosts import connected
from ops.flows.report import failed
from ops.model.inventory import HostSpec
from ops.model.release import follows
from ops.model.result import HostResult
from ops.model.state import (
    Armed,
    Facts,
    Links,
    Owner,
    armed,
    confirmed,
    last_gate,
    owner,
    profile_name,
    ungated_restore,
)
from ops.run import alive_here, observe, place


def status(spec: HostSpec) -> HostResult:
    """Read one host. An unreachable host is a result too (its state is unknown, and that is what it says)."""
    try:
        with connected(spec) as host:
            facts = observe(host, engine={"bind": spec.bind}, log_lines=400)
            return describe(spec, facts)
    except OpsError as error:
        return failed(spec, None, error).model_copy(update={"details": {"state": "unknown"}})


def describe(spec: HostSpec, facts: Facts) -> HostResult:
    """Derive a host's state from what was seen. Pure, but for asking this machine whether a local lock owner lives."""
    links = Links.of(facts)
    state, remark = _state(facts, links)
    gate = last_gate(facts, links.current)
    speed = _speed(facts)
    uptime_s = None
    if facts["engine"]["started_at"]:
        uptime_s = round(max(0.0, facts["time"] - facts["engine"]["started_at"]) * spec.time_scale, 1)
    details: dict[str, Any] = {
        "state": state,
        "admitted": (facts["admitted"] or {}).get("release") == links.current and links.current is not None,
        "uptime_s": uptime_s,
        **speed,
        "environment": environment(facts, links.current),
        "links": facts["links"],
        "engine": facts["engine"],
        "lock": _lock(facts),
        "last_gate": None
        if gate is None
        else {"outcome": gate["outcome"], "subset": gate["subset"], "age_s": round(facts["time"] - gate["at"], 1)},
        "good": state == "serving" and not remark,
        **_node(facts, links),
    }
    return HostResult.on(
        spec,
        profile=profile_name(links.current),
        release=links.current,
        outcome=state,
        message=remark,
        details=details,
    )


def _state(facts: Facts, links: Links) -> tuple[str, str]:
    pending = armed(facts)
    if pending is not None and confirmed(facts) is None:
        return "pending", _pending_words(facts, links, pending)
    if links.current is None:
        return "empty", "nothing is deployed"
    engine = facts["engine"]
    if facts["guard"]["wanted"] == "stopped":
        left_over = f"; {len(facts['processes'])} of its processes still run" if facts["processes"] else ""
        return "stopped", f"stopped on purpose{left_over}"
    if engine["state"] not in ("running", "starting") or not engine["pid"]:
        return "down", f"{links.current} should run, the supervisor says {engine['state']}: {engine['detail']}"
    running = {process["release"] for process in facts["processes"]}
    if running - {links.current}:
        return "mixed", f"processes of {', '.join(sorted(str(r) for r in running - {links.current}))} run as well"
    dead = _dead_ranks(facts, links)
    if dead:
        return "down", dead
    http = facts.get("http") or {}
    if http.get("ready") is None and _listens(facts):
        return "unresponsive", f"pid {engine['pid']} listens on its port, but gives no answer: it hangs"
    if http.get("ready") != 200:
        return "starting", f"pid {engine['pid']} does not say it is ready yet (/ready: {http.get('ready')})"
    restore = ungated_restore(facts)
    if restore is not None:
        what = "fell back to" if restore["event"] == "fallback" else "restored"
        return "serving", f"the guard {what} {restore['release']} ({restore['reason']}), ungated: run `ops gate`"
    follower = follows(facts["manifests"].get(links.current))
    if (facts["admitted"] or {}).get("release") != links.current and not follower:
        return "serving", "takes no traffic: not admitted"
    return "serving", ""


def _node(facts: Facts, links: Links) -> dict[str, Any]:
    """The host's part in a model over several hosts, where the current release is one."""
    node = (facts["manifests"].get(links.current) or {}).get("node")
    return {"node": node} if node else {}


def _dead_ranks(facts: Facts, links: Links) -> str:
    """Whether ranks of a model over several hosts are gone behind a /health that says 200; empty when none is.

    Source: SGLang 0.5.23 srt/entrypoints/engine.py:1015-1029: a node whose rank is not 0 waits for its schedulers one
    after the other, and its dummy /health answers meanwhile.
    """
    manifest = facts["manifests"].get(links.current) or {}
    wanted = manifest["expect"]["ranks"] if manifest.get("node") else 0
    live = sum(process["title"].startswith("sglang::scheduler") for process in facts["processes"])
    http = facts.get("http") or {}
    if live >= wanted or http.get("ready") != 200 or facts.get("unseen"):
        return ""
    return f"{live} of {wanted} ranks live, whatever /health says: the model does not run"


def _pending_words(facts: Facts, links: Links, pending: Armed) -> str:
    left = max(0, round(pending.deadline - facts["time"]))
    back = links.last_good or links.baseline or "nothing running"
    if facts["guard"]["fired"]:
        return f"the guard is undoing {pending.release}: going back to {back}"
    if pending.release == links.last_good and facts["lock"] is not None:
        return f"going back to {pending.release}; the guard takes over in {left} s"
    return f"{pending.release} waits for its confirmation; in {left} s the guard goes back to {back}"


def _listens(facts: Facts) -> bool:
    ours = {process["pid"] for process in facts["processes"]}
    return any(entry["pid"] in ours for entry in facts["listeners"])


def _speed(facts: Facts) -> dict[str, Any]:
    http = facts.get("http") or {}
    info = http.get("server_info") or {}
    internal: Mapping[str, Any] = (info.get("internal_states") or [{}])[0]
    load: Mapping[str, Any] = (http.get("loads") or [{}])[0]
    accept = (load.get("speculative") or {}).get("accept_length") or internal.get("avg_spec_accept_length")
    return {
        "accept_length": accept,
        "last_tok_s": internal.get("last_gen_throughput") or load.get("gen_throughput"),
        "running_requests": load.get("num_running_reqs"),
        "phase_shares": phase_shares("\n".join(http.get("timer") or ())),
    }


def environment(facts: Facts, release: str | None) -> dict[str, Any]:
    """What each rank's process holds against the release: {verdict: ok|wanting|unknown, ranks, missing}."""
    if release is None or not facts["processes"]:
        return {"verdict": "unknown", "ranks": 0, "missing": []}
    wanted: Mapping[str, str] = (facts["manifests"].get(release) or {}).get("environment", {})
    ranks = [p for p in facts["processes"] if p["title"].startswith("sglang::scheduler")]
    readable = [p for p in ranks if p["environ"] is not None]
    missing = sorted(
        {name for rank in readable for name, value in wanted.items() if rank["environ"].get(name) != value}
    )
    if not ranks or len(readable) < len(ranks):
        return {"verdict": "unknown", "ranks": len(ranks), "missing": missing}
    return {"verdict": "wanting" if missing else "ok", "ranks": len(ranks), "missing": missing}


def _lock(facts: Facts) -> dict[str, Any] | None:
    lock = facts["lock"]
    if lock is None:
        return None
    alive = owner(facts, here=place(), alive=alive_here) is Owner.ALIVE
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(lock["since"]))
    pending = armed(facts)
    if alive:
        meaning = "its client is at work"
    elif pending is not None and confirmed(facts) is None:
        left = max(0, round(pending.deadline - facts["time"]))
        meaning = f"its client is gone; the guard undoes {pending.release} in {left} s (--break-lock: now)"
    else:
        meaning = "its client is gone and nothing is pending: the next command takes it over"
    return {**lock, "since": since, "alive": alive, "meaning": meaning}
