"""Why an engine ended. If this breaks, a failed deploy names the wrong cause, or thinks about it for long."""

import time

from ops.engine.log import cause_of_death

ARGUMENTS = "[2026-11-30 12:22:12] server_args={" + ", ".join(f"'flag_{n}': None" for n in range(1200)) + "}"


def test_the_cause_is_found_at_once_beside_the_line_of_all_arguments() -> None:
    assert len(ARGUMENTS) > 18_000
    begun = time.process_time()
    cause = cause_of_death([ARGUMENTS, "[2026-11-30 12:22:13 TP0] Load weight begin.", *["x" * 20_000] * 3])
    assert cause.name == "unknown"
    assert time.process_time() - begun < 0.5


def test_a_container_that_docker_refuses_is_named_with_dockers_own_words() -> None:
    """Docker's command line prints this and ends; no engine ran, so nothing else tells."""
    line = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
    cause = cause_of_death([line, "", "Run 'docker run --help' for more information"])
    assert cause.name == "container-refused"
    assert 'could not select device driver "" with capabilities: [[gpu]]' in cause.message
