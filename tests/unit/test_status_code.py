"""`ops status` ends with one code, in words and in JSON, and JSON names the code it ends with.

If this fails, a script reads "done" of a fleet that is not, or two scripts read two codes of one fleet.
"""

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ops.cli.release import status
from ops.flows import hosts
from ops.flows import status as flow
from ops.model.inventory import HostSpec
from ops.model.result import HostResult

app = typer.Typer()
app.command()(status)

SERVING: dict[str, Any] = {
    "state": "serving",
    "uptime_s": None,
    "accept_length": None,
    "last_tok_s": None,
    "environment": {"ranks": 0},
    "admitted": True,
    "last_gate": None,
    "lock": None,
    "good": True,
}
GOOD = HostResult(host="a", outcome="serving", details=SERVING)
WANTING = HostResult(host="b", outcome="stopped", details={**SERVING, "state": "stopped", "good": False})
LOST = HostResult(host="b", outcome="refused", exit_code=2, message="no answer", details={"state": "unknown"})


class Project:
    """A project whose hosts answer as they are told to."""

    def __init__(self, *results: HostResult) -> None:
        self._hosts = [HostSpec(name=result.host, address="10.0.0.1") for result in results]

    def here(self) -> "Project":
        return self

    def hosts(self, pattern: str | None) -> list[HostSpec]:
        return self._hosts


@pytest.mark.parametrize(
    ("results", "words", "code"),
    [
        ((GOOD,), (), 0),
        ((LOST,), (), 2),
        ((GOOD, LOST), (), 5),
        ((GOOD, LOST), ("--check",), 5),
        ((GOOD, WANTING), (), 0),
        ((GOOD, WANTING), ("--check",), 6),
        ((GOOD,), ("--check",), 0),
    ],
)
def test_words_and_json_end_with_the_same_code(
    monkeypatch: pytest.MonkeyPatch, results: tuple[HostResult, ...], words: tuple[str, ...], code: int
) -> None:
    answers = {result.host: result for result in results}
    monkeypatch.setattr(hosts, "Project", Project(*results))
    monkeypatch.setattr(flow, "status", lambda spec: answers[spec.name])

    text = CliRunner().invoke(app, list(words))
    document = CliRunner().invoke(app, [*words, "--json"])

    assert (text.exit_code, document.exit_code) == (code, code), text.output
    assert json.loads(document.stdout)["exit_code"] == code
