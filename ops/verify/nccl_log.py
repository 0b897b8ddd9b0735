"""What did NCCL itself say it read? With NCCL_DEBUG=INFO it logs "set by environment" for what it takes."""

from ops.verify import Check, Question, Seen, Verdict


def judge(ask: Question, seen: Seen) -> Verdict:
    lines = seen.deployed["nccl_log"]
    if not lines:
        return ask.skipped(
            "the log has no `set by environment` lines; they come with NCCL_DEBUG: INFO in the profile's env"
        )
    wanted = seen.environment
    wrong = [
        f"{line['name']} is {line['value']!r} in pid {line['pid']}, wanted {wanted[line['name']]!r}"
        for line in lines
        if line["name"] in wanted and line["value"] != wanted[line["name"]]
    ]
    if wrong:
        return ask.failed("; ".join(dict.fromkeys(wrong)), "ops restart, then ops verify again", lines=wrong)
    said = {line["name"] for line in lines}
    confirmed = sorted(said & set(wanted))
    silent = sorted(name for name in wanted if name.startswith("NCCL_") and name not in said)
    text = f"NCCL took {', '.join(confirmed) or 'none of the set'}"
    # NCCL has such a line for some variables only, so silence proves nothing.
    return ask.passed(f"{text}; it says nothing of {', '.join(silent)}" if silent else text, confirmed=confirmed)


CHECK = Check("nccl-log", "Does NCCL say that it took the set from the environment?", 26, judge)
