"""A look at a whole fleet: if this fails, an operator of fifty hosts waits for `ops status` longer than for Ansible."""

import pytest

from benchmarks.fifty_hosts import play

from .hosts import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timing, pytest.mark.timeout(600)]

HOSTS = 50


def test_the_status_of_fifty_hosts_is_not_slower_than_ansibles_ping(lab: Lab) -> None:
    found = {measured.name: measured for measured in play(HOSTS, 1)}

    status, ping = found["ops status --group"], found["ansible -m ping"]
    assert status.wall_s <= ping.wall_s, found
    assert {measured.answered for measured in found.values()} == {HOSTS}
