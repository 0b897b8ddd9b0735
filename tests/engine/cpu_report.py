"""What a run against the real engine on a CPU found: docs/results/engine-cpu.{json,md}."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import engine_results as results

PARTS = (
    "environment",
    "profiles",
    "random_draft",
    "wiring",
    "rollback",
    "stop",
    "killed_scheduler",
    "crashes",
)
CRASHES = ("unknown-flag", "port-in-use", "too-many-arguments-unset", "killed-while-loading")


@dataclass
class Report:
    """Filled by the tests, part by part."""

    parts: dict[str, Any] = field(default_factory=dict)

    def put(self, part: str, found: Any) -> None:
        assert part in PARTS
        self.parts[part] = found

    def add(self, part: str, name: str, found: Any) -> None:
        assert part in PARTS
        self.parts.setdefault(part, {})[name] = found

    @property
    def complete(self) -> bool:
        return set(self.parts) == set(PARTS) and set(self.parts["crashes"]) == set(CRASHES)

    def write(self, engine_python: Path, commands: Sequence[Mapping[str, Any]]) -> None:
        """Write the page; a run of a few tests, or one that failed, leaves the last whole one in place."""
        if not self.complete:
            return
        document = {
            "date": results.today(),
            "project": results.project_version(Path(__file__).resolve().parents[2]),
            "machine": results.machine(),
            "versions": results.versions_of(engine_python, ["sglang", "torch", "transformers", "triton"]),
            "commands": list(commands),
            **self.parts,
        }
        results.write("engine-cpu", document, page(document))


def page(found: Mapping[str, Any]) -> str:
    """The page of a run."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    machine = found["machine"]
    random, wiring, killed = found["random_draft"], found["wiring"], found["killed_scheduler"]
    return "\n\n".join(
        [
            "# The real engine on a CPU",
            f"Written by `make test-engine-cpu` on {found['date']}, project {found['project']}. {versions}; "
            f"{machine['cpu']}, {machine['cores']} cores. All of it: `engine-cpu.json`.",
            "## Profiles\n\nDeployed by `ops deploy` over SSH and judged by its gate; speed is reported, not judged.",
            results.table(
                ["profile", "accept length", "tok/s", "ratio to the baseline (95 %)", "runs", "start, s", "gate, s"],
                [_row(name, row) for name, row in found["profiles"].items()],
            ),
            "## Environment\n\n"
            f"{len(found['environment']['variables'])} variables of `engine.env`, read in /proc of each of "
            f"{found['environment']['ranks']} scheduler(s): {', '.join(found['environment']['variables'])}.",
            "## Refused",
            results.table(
                ["what", "exit code", "refused by", "words"],
                [
                    ("a draft of random weights", random["exit_code"], random["check"], random["words"]),
                    ("other layer ids, before anything was touched", *_refusal(wiring["deploy"])),
                    ("other layer ids, loaded for real by a restart", *_refusal(wiring["restart"])),
                ],
            ),
            f"With the wrong layer ids {wiring['ids']} the accept length was {wiring['accept_length']}, with the right "
            f"ones {wiring['accept_length_right']}: on this pair only the comparison of the configuration tells.",
            "## Rollback, stop, a killed scheduler",
            f"`ops rollback --to baseline`: {found['rollback']['profile']} served after "
            f"{found['rollback']['seconds']} s.",
            f"`ops stop`: {found['stop']['before']} processes before, {found['stop']['after']} after, "
            f"{found['stop']['seconds']} s.",
            f"`kill -9` of the scheduler: said to be *{killed['cause']}* ({killed['words']}); the supervisor's next "
            f"start served after {killed['seconds']} s.",
            "## Crashes and what `ops` said",
            results.table(
                ["crash", "classified as", "words"],
                [(name, row["cause"], row["words"]) for name, row in found["crashes"].items()],
            ),
            "## Commands",
            results.table(
                ["command", "exit code", "s"],
                [(f"`{row['command']}`", row["exit_code"], row["seconds"]) for row in found["commands"]],
            ),
        ]
    )


def _row(name: str, row: Mapping[str, Any]) -> tuple[object, ...]:
    ratio = f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})" if "ratio" in row else "-"
    return (name, row.get("accept_length", "-"), row["tok_s"], ratio, row["runs"], row["start_s"], row["gate_s"])


def _refusal(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (row["exit_code"], row["check"], row["words"])
