"""Results of a run against a real engine: a JSON document, and a page made of it. Nothing in them is typed by hand."""

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def today() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def project_version(repository: Path) -> str:
    """The commit that ran, `+` when files differ from it; "unknown" outside a checkout."""
    done = subprocess.run(
        ["git", "-C", str(repository), "describe", "--always", "--dirty=+", "--abbrev=12"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or os.environ.get("OPS_COMMIT", "unknown")


def machine() -> dict[str, Any]:
    """The machine, without its name."""
    cpu = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    memory_kib = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0])
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / (1 << 20), 1),
        "kernel": platform.release(),
    }


def versions_of(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """Versions of Python and of installed packages, as that interpreter sees them."""
    script = (
        "import importlib.metadata as m, json, platform, sys\n"
        "found = {'python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run([python, "-c", script, *packages], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += [
        "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows
    ]
    return "\n".join(lines)


def write(name: str, document: Mapping[str, Any], page: str, folder: Path = RESULTS) -> None:
    """Write NAME.json and NAME.md; a reader never sees half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True)
    for suffix, content in (("json", text), ("md", page)):
        file = folder / f"{name}.{suffix}"
        temporary = file.with_suffix(".new")
        temporary.write_text(content.rstrip("\n") + "\n")
        temporary.replace(file)
