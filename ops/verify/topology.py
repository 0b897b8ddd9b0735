"""Was the NCCL set tuned for the links that this host's GPUs have?"""

import re

from ops.verify import Check, Question, Seen, Verdict

ON_NVLINK = "2 x H200, a tiny pair: 846 -> 745 tok/s once, 872 -> 915 another time"
"""Simple protocol -> low-latency set. Source: tests/engine/models/README.md, docs/results/engine-gpu.md."""


def judge(ask: Question, seen: Seen) -> Verdict:
    nccl = seen.manifest["nccl"]
    if nccl["topology"] == "any":
        return ask.passed(f"set {nccl['name']} is for any links")
    text = (seen.facts["gpus"] or {}).get("topology")
    links = kinds(text) if text else set()
    if text and len(gpus(text)) == 1:
        return ask.skipped("one GPU has no links to others")
    if not links:
        return ask.inconclusive(
            "`nvidia-smi topo -m` shows no links between GPUs", "look at nvidia-smi on the host, then ops verify again"
        )
    nvlink = any(link.startswith("NV") for link in links)
    shown = ", ".join(sorted(links))
    if nccl["topology"] == "pcie" and nvlink:
        return ask.passed(
            f"set {nccl['name']} was tuned for PCIe, these GPUs have NVLink ({shown}): it may be a loss "
            f"({ON_NVLINK}); measure the set `default` against it",
            warning=True,
            links=sorted(links),
        )
    if nccl["topology"] == "nvlink" and not nvlink:
        return ask.passed(
            f"set {nccl['name']} was tuned for NVLink, these GPUs have none ({shown}): measure before you keep it",
            warning=True,
            links=sorted(links),
        )
    return ask.passed(f"set {nccl['name']} is for {nccl['topology']}, the links are {shown}", links=sorted(links))


def kinds(text: str) -> set[str]:
    """Return the kinds of links between GPUs, from `nvidia-smi topo -m`: NV18, PIX, PXB, PHB, NODE, SYS.

    Source: nvidia-smi topo -m, legend of driver 550 and 580.
    """
    rows = gpus(text)
    return {word for row in rows for word in row[1 : 1 + len(rows)] if word != "X"}


def gpus(text: str) -> list[list[str]]:
    """Return the matrix's rows of GPUs: each has an X for itself, which the header, GPU0 in front as well, has not."""
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    return [row for row in rows if row and re.fullmatch(r"GPU\d+", row[0]) and "X" in row]


CHECK = Check("topology", "Was the NCCL set tuned for this host's GPU links?", 50, judge)
