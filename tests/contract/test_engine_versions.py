"""Each covered range of engine versions against its recordings.

If this fails, what `ops` reads of an engine is not what that version says: a load without phases, a crash without a
cause, a server that is ready and called "starting". A new version is a new file in `ops/engine/versions` and its
recordings; these tests find both by themselves.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ops.config import load_profile
from ops.engine.launch_flags import known_versions, load_table
from ops.engine.log import PHASES, cause_of_death, phase_of
from ops.engine.versions import Rules, all_rules, release, rules_of
from ops.gates.acceptance import total
from ops.gates.effective_config import expected, ruling
from ops.gates.itself import answer_ruling
from ops.model.gate import Completion, Reply
from ops.model.verdict import Outcome, Question
from ops.remote import probe

RECORDINGS = Path(__file__).parents[1] / "recordings"
FOLDERS = [(rules, RECORDINGS / name) for rules in all_rules() for name in rules.recordings]
EVERY = pytest.mark.parametrize(("rules", "folder"), FOLDERS, ids=[folder.name for _, folder in FOLDERS])


def recorded(folder: Path, name: str) -> Any:
    found = json.loads((folder / name).read_text())
    return found[0] if isinstance(found, list) else found


def test_every_version_with_a_flag_table_has_rules_and_the_ranges_do_not_overlap() -> None:
    assert [rules_of(version) is not None for version in known_versions()] == [True, True]
    for earlier, later in zip(all_rules(), all_rules()[1:], strict=False):
        assert earlier.before is not None
        assert release(earlier.before) <= release(later.since)
    assert rules_of("0.5.23.post1") is rules_of("0.5.23")
    assert [rules_of(version) for version in ("0.5.9", "0.0.0", "main", "", None)] == [None] * 5


@EVERY
def test_a_load_shows_every_phase_in_order(rules: Rules, folder: Path) -> None:
    names = [name for name, _ in PHASES if name != "CUDA graphs" or "cpu" not in folder.name]
    files = [*folder.glob("startup_*.log")]
    assert files
    for file in files:
        seen = list(dict.fromkeys(filter(None, map(phase_of, file.read_text().splitlines()))))
        assert seen == names, file.name


@EVERY
def test_every_recorded_crash_has_a_cause_in_words(rules: Rules, folder: Path) -> None:
    files = [*folder.glob("crash_*.log"), *folder.glob("kill9_*.log")]
    assert files
    for file in files:
        cause = cause_of_death(file.read_text().splitlines())
        assert cause.name not in ("unknown", "exception"), f"{file.name}: {cause.message}"
        assert "Traceback" not in cause.message, f"{file.name}: {cause.message}"


@EVERY
def test_server_info_says_what_the_gate_reads_of_it(rules: Rules, folder: Path) -> None:
    info = recorded(folder, "server_info_eagle3.json")
    assert rules_of(info["version"]) is rules
    assert bool(info.get("launch_command")) is rules.launch_command
    for name in ("port", "max_req_input_len", "speculative_num_draft_tokens", "max_running_requests"):
        assert isinstance(info[name], int), name
    assert isinstance(info["internal_states"][0]["effective_max_running_requests_per_dp"], int)


@EVERY
def test_an_answer_counts_its_own_speculation(rules: Rules, folder: Path) -> None:
    (file,) = sorted(folder.glob("generate_eagle3_*.json"))
    answer = recorded(folder, file.name)
    meta = answer["meta_info"]
    assert ("first_token_latency" in meta) is rules.first_token_latency
    found = total([Completion(200, "", "", (), 1, 1, 0, "length", 0.0, None, 1.0, meta=meta)])
    assert found is not None
    # The server's own figure counts the token of the prefill as a cycle's, and not what was cut off the last cycle.
    assert found.length == pytest.approx(meta["spec_accept_length"], abs=0.1)


@EVERY
def test_the_load_endpoint_counts_running_and_waiting_requests(rules: Rules, folder: Path) -> None:
    loads = recorded(folder, "v1_loads.json")["loads"]
    assert [load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads] == [0]


@EVERY
def test_an_idle_server_ends_after_sigterm_as_recorded(rules: Rules, folder: Path) -> None:
    states = json.loads((folder / "health_states.json").read_text())
    ends = {run.get("exit_status_after_sigterm") for run in states.values() if isinstance(run, dict)}
    assert ends - {None} == {rules.sigterm_exit}


@EVERY
def test_the_flag_table_is_that_of_the_recorded_help(rules: Rules, folder: Path) -> None:
    text = (folder / "help.txt").read_text()
    table = load_table(rules.since)
    assert len(table) > 300
    assert [flag for flag in table if not re.search(rf"^  .*{re.escape(flag)}[ ,\n]", text, re.MULTILINE)] == []


def test_a_running_version_that_is_not_the_pinned_one_is_refused() -> None:
    info = recorded(RECORDINGS / "sglang-0.5.17-h200", "server_info_eagle3.json")
    manifest = {
        "stack": {"engine_version": "0.5.23", "engine_commit": None},
        "expect": {"server_info": {"port": info["port"]}},
    }
    profile = load_profile(Path(__file__).parents[2], "lab-tiny-baseline", environ={})
    verdict = ruling(expected(manifest, profile), info, [])
    assert verdict.outcome is Outcome.FAIL
    assert "version is '0.5.17', asked for '0.5.23'" in verdict.message
    manifest["stack"] = {"engine_version": "0.5.17", "engine_commit": None}
    assert ruling(expected(manifest, profile), info, []).passed
    manifest["stack"] = {"engine_version": "0.5.9", "engine_commit": "a" * 40}
    assert ruling(expected(manifest, profile), info, []).passed, "a build from a commit names itself as it likes"


def test_a_version_that_tells_its_command_line_and_does_not_is_not_believed() -> None:
    owned = Question("itself", "?").passed("pid 1 listens")
    for name, outcome in (("sglang-0.5.17-h200", Outcome.PASS), ("sglang-0.5.23-cpu", Outcome.INCONCLUSIVE)):
        info = {**recorded(RECORDINGS / name, "server_info_eagle3.json"), "launch_command": None}
        verdict = answer_ruling(Reply(200, info, 0.1), info["port"], ["--port", str(info["port"])], owned)
        assert verdict.outcome is outcome


@contextmanager
def serving(statuses: dict[str, int]) -> Iterator[tuple[str, int, list[str]]]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(statuses.get(self.path, 404))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield "127.0.0.1", server.server_address[1], asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_version_without_ready_is_asked_for_its_health_and_one_with_it_is_not() -> None:
    with serving({"/ready": 503, "/health": 200}) as (address, port, asked):
        assert probe.ready(address, port) == 503
        assert asked == ["/ready"]
    for health in (200, 503):
        with serving({"/health": health}) as (address, port, asked):
            assert probe.ready(address, port) == health
            assert asked == ["/ready", "/health"]
    assert probe.ready("127.0.0.1", port) is None
