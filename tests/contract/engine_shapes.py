"""Reduce a log line to its shape: the words that stay the same from run to run."""

import re

STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: TP(?P<rank>\d+))?\] ")
REPLACED = (
    (re.compile(r"server_args=.*"), "server_args={}"),
    (re.compile(r"bs=\[[^\]]*\]"), "bs=[]"),
    (re.compile(r"type=\w+"), "type=T"),
    (re.compile(r"backend='\w+'"), "backend=B"),
    (re.compile(r"http://[\d.:]+"), "http://ADDRESS"),
    (re.compile(r"[\d.]+:\d+ - "), "CLIENT - "),
    (re.compile(r"('[\d.]+', \d+)"), "ADDRESS"),
    (re.compile(r"remaining_rids=\[[^\]]*\]"), "remaining_rids=[]"),
    (re.compile(r"(cpu|cuda) graph"), "G graph"),
    (re.compile(r"available_(cpu|gpu)_mem"), "available_mem"),
    (re.compile(r"-?\d+(\.\d+)?"), "#"),
)


def shape(line: str) -> str:
    line = STAMP.sub("", line.strip())
    for pattern, text in REPLACED:
        line = pattern.sub(text, line)
    return line


def first_rank_shapes(text: str) -> list[str]:
    """Return the shapes of all stamped lines that the launcher or rank 0 wrote."""
    shapes: list[str] = []
    for line in text.splitlines():
        match = STAMP.match(line)
        if match and match["rank"] in (None, "0"):
            shapes.append(shape(line))
    return shapes


def missing_in_order(wanted: list[str], seen: list[str]) -> list[str]:
    """Return the wanted lines that do not appear, in this order, among those seen."""
    missing: list[str] = []
    position = 0
    for line in wanted:
        try:
            position = seen.index(line, position) + 1
        except ValueError:
            missing.append(line)
    return missing
