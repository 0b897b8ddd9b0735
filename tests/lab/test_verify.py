"""`ops verify` says what is no longer as deployed. What it misses, an operator finds at the next boot, or never.

Each test changes one thing on a real host behind the tool's back, and undoes it, so that the next one finds it whole.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ops.sandbox.engine.install import Simulation
from ops.verify import all_checks

from .hosts import Host, Lab, Settings
from .product import INSTANCE_DIR, PROFILE, UNIT, Answer, Operator, events, links, ranks, wait_serving

pytestmark = pytest.mark.lab

CURRENT = f"{INSTANCE_DIR}/current"


class Deployed:
    """One host with the profile on it, and who deployed it there."""

    def __init__(self, host: Host, operator: Operator) -> None:
        self.host = host
        self.operator = operator
        self.release = operator.deploy(host)

    def verify(self) -> Answer:
        return self.operator.ops("verify", "--host", self.host.name)

    @contextmanager
    def changed(self, *files: str) -> Iterator[Host]:
        """Let a test change these files or folders; afterwards they are as before, and so is what was not there."""
        for number, file in enumerate(files):
            self.host.exec(
                "sh", "-c", f"rm -rf /root/kept{number}; cp -a {file} /root/kept{number} 2>/dev/null || true"
            )
        try:
            yield self.host
        finally:
            for number, file in enumerate(files):
                script = f"rm -rf {file}; if [ -e /root/kept{number} ]; then cp -a /root/kept{number} {file}; fi"
                self.host.exec("sh", "-c", script)
            if self.host.kind == "systemd":
                self.host.exec("systemctl", "daemon-reload")


@pytest.fixture(scope="module")
def deployed(lab: Lab, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Callable[[str], Deployed]]:
    """Hosts with the profile deployed, one a kind for the whole module."""
    hosts: dict[str, Host] = {}
    made: dict[str, Deployed] = {}

    def on(kind: str) -> Deployed:
        if kind not in made:
            name = f"{kind}-verify-{worker_id}"
            hosts[kind] = lab.host(name, kind, Settings(simulation=Simulation(time_scale=20)))
            made[kind] = Deployed(hosts[kind], Operator.of(tmp_path_factory.mktemp(kind) / "project", hosts[kind]))
        return made[kind]

    yield on
    for host in hosts.values():
        lab.remove(host)


@pytest.fixture
def systemd(deployed: Callable[[str], Deployed]) -> Deployed:
    return deployed("systemd")


@pytest.fixture
def supervisord(deployed: Callable[[str], Deployed]) -> Deployed:
    return deployed("supervisord")


@pytest.mark.parametrize("kind", ["systemd", "supervisord"])
def test_a_host_as_deployed_holds_and_every_question_was_asked(deployed: Callable[[str], Deployed], kind: str) -> None:
    answer = deployed(kind).verify()

    assert answer.code == 0, answer
    assert [check["name"] for check in answer.host["gate"]["checks"]] == [check.name for check in all_checks()]
    assert answer.outcome_of("environment") == "pass"
    assert answer.check("engine-variables")["evidence"]["engine"] == {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


@pytest.mark.parametrize("kind", ["systemd", "supervisord"])
def test_an_environment_file_removed_or_edited_while_it_serves_is_named(
    deployed: Callable[[str], Deployed], kind: str
) -> None:
    on = deployed(kind)
    file = f"{CURRENT}/engine.env"
    with on.changed(file) as host:
        host.exec("rm", file)
        removed = on.verify()
    with on.changed(file) as host:
        host.exec("sed", "-i", "s/NCCL_PROTO=LL/NCCL_PROTO=LL128/", file)
        edited = on.verify()

    for answer, words in ((removed, "engine.env is missing"), (edited, "engine.env was changed")):
        assert answer.code == 6, answer
        assert answer.wanting() == {"release-files"}, answer
        assert words in answer.check("release-files")["message"]
    assert on.verify().code == 0


def test_secrets_that_others_could_read_are_named(systemd: Deployed) -> None:
    with systemd.changed(f"{CURRENT}/engine.env") as host:
        host.exec("chmod", "0644", f"{CURRENT}/engine.env")
        answer = systemd.verify()

    assert answer.code == 6, answer
    assert "others can read secrets" in answer.check("release-files")["message"]


def test_files_changed_together_with_their_manifest_are_found_by_the_releases_name(systemd: Deployed) -> None:
    with systemd.changed(f"{CURRENT}/launch.sh", f"{CURRENT}/manifest.json") as host:
        script = (
            f'cd {CURRENT} && old=$(sha256sum launch.sh | cut -d" " -f1) && echo "# harmless" >>launch.sh && '
            'new=$(sha256sum launch.sh | cut -d" " -f1) && sed -i "s/$old/$new/" manifest.json'
        )
        host.exec("sh", "-c", script)
        answer = systemd.verify()

    assert answer.code == 6, answer
    assert f"not {systemd.release}" in answer.check("release-files")["message"]


def test_systemd_finds_nothing_to_say_about_the_installed_units(systemd: Deployed) -> None:
    names = ("", "-guard", "-logs")
    units = (*(f"sglang-default{name}.service" for name in names), "sglang-default-logs.timer")
    said = systemd.host.exec("sh", "-c", f"systemd-analyze verify {' '.join(units)} 2>&1; echo status $?")
    assert said == "status 0\n"


def test_systemd_keeps_a_log_from_filling_the_disk(systemd: Deployed) -> None:
    log = f"{INSTANCE_DIR}/logs/old-1.log"
    assert systemd.host.exec("systemctl", "is-active", "sglang-default-logs.timer") == "active\n"
    systemd.host.exec("truncate", "--size", "101M", log)
    systemd.host.exec("systemctl", "start", "sglang-default-logs.service")
    assert systemd.host.exec("stat", "--format", "%s", log, f"{log}.1").split() == ["0", str(101 << 20)]
    systemd.host.exec("rm", log, f"{log}.1")


def test_a_drop_in_of_systemctl_edit_is_named(systemd: Deployed) -> None:
    folder = f"{UNIT}.d"
    with systemd.changed(folder) as host:
        override = "[Service]\\nEnvironment=NCCL_PROTO=Simple\\n"
        host.exec(
            "sh", "-c", f"mkdir {folder} && printf '{override}' >{folder}/override.conf && systemctl daemon-reload"
        )
        answer = systemd.verify()

    assert answer.code == 6, answer
    assert answer.wanting() == {"unit-overrides"}
    assert f"{folder}/override.conf" in answer.check("unit-overrides")["message"]


def test_a_second_program_of_the_same_name_is_named(supervisord: Deployed) -> None:
    conf = "/etc/supervisor/supervisord.conf"
    with supervisord.changed(conf) as host:
        host.exec("sh", "-c", f"printf '[program:engine-default]\\ncommand=/bin/true\\nautostart=false\\n' >>{conf}")
        answer = supervisord.verify()

    assert answer.code == 6, answer
    assert conf in answer.check("unit-overrides")["message"]


def test_an_edited_or_disabled_unit_is_named(systemd: Deployed) -> None:
    with systemd.changed(UNIT) as host:
        host.exec("sed", "-i", "s/^LimitMEMLOCK=.*/LimitMEMLOCK=64K/", UNIT)
        edited = systemd.verify()
    assert edited.code == 6, edited
    assert UNIT in edited.check("unit")["message"]

    systemd.host.exec("systemctl", "disable", "--quiet", "sglang-default.service")
    try:
        disabled = systemd.verify()
    finally:
        systemd.host.exec("systemctl", "enable", "--quiet", "sglang-default.service")
    assert disabled.code == 6, disabled
    assert "sglang-default.service is not enabled" in disabled.check("boot")["message"]


@pytest.mark.parametrize("kind", ["systemd", "supervisord"])
def test_nccl_files_that_appear_are_named_with_what_they_would_change(
    deployed: Callable[[str], Deployed], kind: str
) -> None:
    on = deployed(kind)
    with on.changed("/etc/nccl.conf") as host:
        host.exec("sh", "-c", "echo NCCL_P2P_DISABLE=1 >/etc/nccl.conf")
        system = on.verify()
    with on.changed("/root/.nccl.conf") as host:
        host.exec("sh", "-c", "echo NCCL_SHM_DISABLE=1 >/root/.nccl.conf")
        own = on.verify()
    with on.changed("/etc/nccl.conf") as host:
        host.exec("sh", "-c", "echo NCCL_PROTO=Simple >/etc/nccl.conf")
        harmless = on.verify()

    assert system.code == 6, system
    assert system.check("nccl-files")["message"].startswith("/etc/nccl.conf sets NCCL_P2P_DISABLE=1")
    assert own.code == 6, own
    assert own.check("nccl-files")["message"].startswith("/root/.nccl.conf sets NCCL_SHM_DISABLE=1")
    assert harmless.code == 0, harmless
    assert "the environment wins" in harmless.check("nccl-files")["message"]


def test_a_changed_guard_is_named_before_it_is_needed(systemd: Deployed) -> None:
    with systemd.changed(f"{INSTANCE_DIR}/guard/guard.sh") as host:
        host.exec("sed", "-i", "s/^set -u/exit 0/", f"{INSTANCE_DIR}/guard/guard.sh")
        answer = systemd.verify()

    assert answer.code == 6, answer
    assert answer.check("guard")["message"] == "guard.sh was changed"


@pytest.mark.parametrize("kind", ["systemd", "supervisord"])
def test_an_engine_started_without_the_set_is_named_and_a_blank_environment_is_inconclusive(
    deployed: Callable[[str], Deployed], kind: str
) -> None:
    on = deployed(kind)
    try:
        with on.changed(f"{CURRENT}/engine.env") as host:
            host.exec("sed", "-i", "/^NCCL_ALGO=/d", f"{CURRENT}/engine.env")
            _restart(host)
            lost = on.verify()
        with on.changed(f"{CURRENT}/engine.env") as host:
            host.exec("sed", "-i", "/^SPT_NOENV=/d", f"{CURRENT}/engine.env")
            _restart(host)
        # The file is back: what the ranks hold is all that is wrong.
        blank = on.verify()
    finally:
        _restart(on.host)

    assert lost.code == 6, lost
    assert "NCCL_ALGO is missing in 8 ranks (wanted 'Ring')" in lost.check("environment")["message"]
    assert blank.code == 7, blank
    assert blank.outcome_of("environment") == "inconclusive"
    assert "SPT_NOENV=1" in blank.check("environment")["message"]
    whole = on.verify()
    assert whole.code == 0, whole


def _restart(host: Host) -> None:
    """Restart the engine past `ops`, as somebody in a hurry does; the guard must not take it for a crash."""
    before = set(ranks(host))
    if host.kind == "systemd":
        host.exec("systemctl", "restart", "sglang-default")
    else:
        host.exec("touch", f"{INSTANCE_DIR}/guard/ordered")
        host.exec("supervisorctl", "restart", "engine-default")
    wait_serving(host)
    assert not before & set(ranks(host))


def test_what_nccl_says_itself_is_compared_where_the_log_has_it(deployed: Callable[[str], Deployed]) -> None:
    on = deployed("systemd")
    on.operator.change_profile("baseline", env={"NCCL_DEBUG": "INFO"})
    release = on.operator.deploy(on.host)
    said = on.verify()
    assert said.code == 0, said
    assert "NCCL_PROTO" in said.check("nccl-log")["evidence"]["confirmed"]

    log = f"{INSTANCE_DIR}/logs/{release}.log"
    with on.changed(log) as host:
        host.exec("sed", "-i", "s/NCCL_ALGO set by environment to Ring/NCCL_ALGO set by environment to Tree/", log)
        differs = on.verify()
    assert differs.code == 6, differs
    assert "NCCL_ALGO is 'Tree'" in differs.check("nccl-log")["message"]


def test_a_pcie_set_on_nvlink_is_a_warning_with_the_measured_loss(lab: Lab, tmp_path: Path, worker_id: str) -> None:
    simulation = Simulation(time_scale=20, gpus={"topology": "nvlink"})
    host = lab.host(f"systemd-nvlink-{worker_id}", "systemd", Settings(simulation=simulation))
    try:
        operator = Operator.of(tmp_path / "project", host)
        operator.deploy(host)
        answer = operator.ops("verify", "--host", host.name)
    finally:
        lab.remove(host)

    assert answer.code == 0, answer
    assert "846 -> 745 tok/s" in answer.check("topology")["message"]
    assert "warning: topology" in answer.host["message"]


def test_nccl_conf_is_written_on_request_and_the_file_before_it_comes_back_with_the_rollback(
    deployed: Callable[[str], Deployed],
) -> None:
    on = deployed("systemd")
    first = links(on.host)["current"]
    with on.changed("/etc/nccl.conf") as host:
        host.exec("sh", "-c", "echo '# of the site' >/etc/nccl.conf")
        on.operator.change_profile(PROFILE, nccl_conf=True)
        on.operator.deploy(host)
        written = host.exec("cat", "/etc/nccl.conf")
        verified = on.verify()
        back = on.operator.ops("rollback", "--to", first, "--host", host.name)
        assert back.code == 0, back
        restored = host.exec("cat", "/etc/nccl.conf")
        on.operator.change_profile(PROFILE, nccl_conf=False)

    assert "NCCL_PROTO=LL\n" in written
    assert verified.code == 0, verified
    assert restored == "# of the site\n"
    assert [e["event"] for e in events(on.host)].count("committed") >= 3
