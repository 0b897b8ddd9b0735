"""What NCCL variables do the ranks hold beyond the release's: the engine's own, or somebody's?"""

from ops.gates.environment import BY_ENGINE
from ops.verify import Check, Question, Seen, Verdict


def judge(ask: Question, seen: Seen) -> Verdict:
    readable = [rank for rank in seen.ranks if rank["environ"] is not None]
    if not readable:
        return ask.skipped("no rank's environment can be read")
    extra = {
        name: value
        for rank in readable
        for name, value in rank["environ"].items()
        if name.startswith("NCCL_") and name not in seen.environment
    }
    strange = {name: value for name, value in extra.items() if name not in BY_ENGINE}
    own = {name: value for name, value in extra.items() if name in BY_ENGINE}
    if strange:
        named = ", ".join(f"{name}={value}" for name, value in sorted(strange.items()))
        return ask.failed(
            f"{named}: neither of the release nor set by the engine",
            "find who sets it (systemctl cat, supervisord.conf, a wrapper around Python), then ops restart",
            strange=strange,
            engine=own,
        )
    added = ", ".join(f"{name}={value}" for name, value in sorted(own.items()))
    return ask.passed(f"the engine added {added}" if added else "the engine added none", engine=own)


CHECK = Check(
    "engine-variables", "Do the ranks hold no NCCL variable but the release's and the engine's own?", 22, judge
)
