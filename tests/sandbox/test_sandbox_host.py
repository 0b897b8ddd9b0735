"""The sandbox is a host like any other. If this breaks, every test and demo that deploys to it proves nothing:
a deploy might fail (or pass) because of the stage and not because of the play; or processes stay behind on the
machine of whoever ran `make test`."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fabric
import paramiko
import pytest
import yaml
from ssh_clients import connect, openssh, run

from ops.errors import ConfigError, Refused
from ops.sandbox.address import listen, listening_inode
from ops.sandbox.host import Sandbox
from ops.sandbox.layout import write_record
from ops.sandbox.models import AUX_LAYER_IDS
from ops.sandbox.processes import starttime_of

pytestmark = pytest.mark.sandbox
Factory = Callable[..., Sandbox]


def wait_for(condition: Callable[[], bool], what: str, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.01)


def refuses_ssh(box: Sandbox) -> bool:
    try:
        socket.create_connection((box.address, box.ssh_port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


def in_background(connection: fabric.Connection, command: str) -> None:
    """Start a command on a channel of its own and leave it there."""
    connection.transport.open_session(timeout=10).exec_command(command)


def test_a_second_up_changes_nothing_and_both_are_fast(sandbox: Factory) -> None:
    started = time.monotonic()
    box = sandbox("box")
    first_s = time.monotonic() - started
    before = {(process.pid, process.starttime) for process in box.processes()}
    contents = box.inventory.read_text(), box.layout.client_key.read_text()
    started = time.monotonic()
    again = sandbox("box")
    assert {(process.pid, process.starttime) for process in again.processes()} == before
    assert (again.inventory.read_text(), again.layout.client_key.read_text()) == contents
    assert first_s < 10 and time.monotonic() - started < 3


def test_a_lost_daemon_comes_back_and_the_other_is_left_alone(sandbox: Factory) -> None:
    box = sandbox("box")
    first = box.record
    assert first.supervisord is not None
    os.kill(first.supervisord.pid, signal.SIGKILL)
    wait_for(lambda: not box.state().supervisord, "supervisord is gone")
    sandbox("box")
    assert box.record.sshd == first.sshd
    assert box.record.supervisord != first.supervisord and box.state().up


def test_daemons_that_a_killed_up_did_not_write_down_are_found(sandbox: Factory) -> None:
    box = sandbox("box")
    record = box.record
    write_record(box.layout, record.model_copy(update={"sshd": None, "supervisord": None}))
    assert sandbox("box").record == record
    assert len(box.processes()) == 2


def test_two_ups_of_one_name_at_the_same_moment_make_one_host(sandbox: Factory) -> None:
    with ThreadPoolExecutor(3) as pool:
        boxes = list(pool.map(sandbox, ["box"] * 3))
    assert len({box.address for box in boxes}) == 1 and len(boxes[0].processes()) == 2
    assert openssh(boxes[0], "echo in").stdout == b"in\n"


def test_down_leaves_no_process_and_no_file(sandbox: Factory, project: Path) -> None:
    box = sandbox()
    address = box.address
    with connect(box) as connection:
        run(
            connection,
            "exec >/dev/null 2>&1 </dev/null; setsid sh -c 'exec sleep 300' & exec env -i setsid -f sleep 301",
        )
        wait_for(
            lambda: {"sleep 300", "sleep 301"} <= {process.title for process in box.processes()}, "both sleeps run"
        )
        box.down()
    assert box.processes() == []
    assert list(project.iterdir()) == [project / "envs"]
    assert listening_inode(address, 2222) is None


def test_down_finds_a_process_that_blanked_its_environment_and_lost_its_parents(sandbox: Factory) -> None:
    box = sandbox()
    title = "import setproctitle, time; setproctitle.setproctitle('sglang::scheduler_TP0'); time.sleep(300)"
    with connect(box) as connection:
        run(connection, f'setsid {box.layout.engine_python} -c "{title}" >$HOME/rank.log 2>&1 </dev/null &')

    def rank() -> list[int]:
        return [process.pid for process in box.processes() if process.title == "sglang::scheduler_TP0"]

    wait_for(lambda: bool(rank()), "the rank has its title")
    pid = rank()[0]
    assert not Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0"), "the environment is readable: nothing is proven"
    box.down()
    assert starttime_of(pid) is None


def test_down_spares_the_shell_of_a_person_who_looks_into_the_folder(sandbox: Factory) -> None:
    box = sandbox()
    with subprocess.Popen(
        ["tail", "-f", box.layout.log / "sshd.log"], cwd=box.layout.log, stdout=subprocess.PIPE
    ) as tail:
        assert tail.pid not in [process.pid for process in box.processes()]
        box.down()
        assert tail.poll() is None
        tail.kill()


def test_commands_get_a_clean_environment_and_return_what_they_return(sandbox: Factory) -> None:
    box = sandbox()
    with connect(box) as connection:
        status, out, _ = run(connection, "env; pwd")
        assert status == 0
        names = dict(line.partition("=")[::2] for line in out.decode().splitlines() if "=" in line)
        assert set(names) - {"PWD", "_"} == {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "OPS_SANDBOX"}
        assert names["PATH"] == "/usr/bin:/bin" and out.decode().splitlines()[-1] == str(box.layout.home)
        assert run(connection, "echo no >&2; exit 7") == (7, b"", b"no\n")
        assert run(connection, "kill -9 $$")[0] == 128 + signal.SIGKILL
        assert run(connection, "wc -c", stdin=b"x" * 3_000_000) == (0, b"3000000\n", b"")
        assert run(connection, "cat /dev/stdin", stdin=b"as from a pipe") == (0, b"as from a pipe", b"")
        assert run(connection, "exit 3", stdin=b"nobody reads this" * 100_000)[0] == 3


def test_a_terminal_is_one_where_the_client_asks_for_it(sandbox: Factory) -> None:
    box = sandbox()
    with connect(box) as connection:
        channel = connection.transport.open_session(timeout=10)
        channel.settimeout(10)
        channel.get_pty("vt100", width=90, height=30)
        channel.exec_command("tty >&2; stty size; echo $TERM; read line; echo got $line; read line; echo ended; exit 5")
        channel.sendall(b"word\n\x04")
        out = b"".join(iter(lambda: channel.recv(65536), b"")).decode()
        assert channel.recv_exit_status() == 5
    lines = out.splitlines()
    assert {"30 90", "vt100", "got word", "ended"} <= set(lines), out
    assert any(line.startswith("/dev/pts/") for line in lines), out
    refused = openssh(box, "tty")
    assert (refused.returncode, refused.stdout) == (1, b"not a tty\n")


def test_big_outputs_are_whole_and_the_status_comes_after_them(sandbox: Factory) -> None:
    box = sandbox()
    command = "seq 1 700000; seq 1 700000 >&2; exit 9"
    expected = b"".join(b"%d\n" % number for number in range(1, 700_001))
    with connect(box) as connection:
        result = connection.run(command, hide=True, warn=True, in_stream=False)
        assert (result.exited, result.stdout.encode(), result.stderr.encode()) == (9, expected, expected)
    done = openssh(box, command)
    assert (done.returncode, done.stdout, done.stderr) == (9, expected, expected)


def test_many_commands_share_one_connection_at_the_same_time(sandbox: Factory) -> None:
    box = sandbox()
    with connect(box) as connection, ThreadPoolExecutor(20) as pool:
        started = time.monotonic()
        results = list(pool.map(lambda number: run(connection, f"sleep 1; echo {number}; exit {number}"), range(20)))
        assert results == [(number, f"{number}\n".encode(), b"") for number in range(20)]
        assert time.monotonic() - started < 8, "20 commands of 1 s ran one after the other"


def test_a_command_costs_little(sandbox: Factory) -> None:
    box = sandbox()
    with connect(box) as connection:
        times = []
        for _ in range(30):
            started = time.monotonic()
            run(connection, "exit 0")
            times.append(time.monotonic() - started)
    assert sorted(times)[len(times) // 2] < 0.05


def test_files_travel_by_sftp(sandbox: Factory, tmp_path: Path) -> None:
    box = sandbox()
    content = os.urandom(2_000_000)
    (tmp_path / "there").write_bytes(content)
    with connect(box) as connection:
        connection.put(str(tmp_path / "there"), remote=f"{box.root}/file")
        connection.get(f"{box.root}/file", local=str(tmp_path / "back"))
        assert connection.sftp().stat(f"{box.root}/file").st_size == len(content)
    assert (tmp_path / "back").read_bytes() == content == (box.root / "file").read_bytes()


def test_only_the_right_key_the_right_user_and_the_right_host_key_get_in(sandbox: Factory, tmp_path: Path) -> None:
    box, other = sandbox(), sandbox()
    assert openssh(box, "echo in").stdout == b"in\n"
    refused = openssh(box, "echo in", user="root")
    assert refused.returncode == 255 and b"Permission denied" in refused.stderr
    with pytest.raises(paramiko.AuthenticationException):
        connect(box, key=str(other.layout.client_key))
    wrong = tmp_path / "known_hosts"
    wrong.write_text(other.layout.known_hosts.read_text().replace(other.address, box.address))
    with pytest.raises(paramiko.BadHostKeyException):
        connect(box, known_hosts=str(wrong))
    assert {path.stat().st_mode & 0o777 for path in (box.layout.client_key, box.layout.host_key)} == {0o600}


def test_the_end_of_a_connection_ends_its_commands_but_not_what_left_their_session(sandbox: Factory) -> None:
    box = sandbox()
    with connect(box) as kept, connect(box) as lost:
        in_background(kept, "trap '' HUP TERM; sleep 311; :")
        in_background(lost, "trap '' HUP TERM; sleep 312; :")
        run(lost, "setsid -f sleep 313 >/dev/null 2>&1 </dev/null; nohup sleep 314 >/dev/null 2>&1 </dev/null &")

        def sleeps() -> set[str]:
            return {process.title for process in box.processes() if process.title.startswith("sleep")}

        wait_for(lambda: sleeps() == {"sleep 311", "sleep 312", "sleep 313", "sleep 314"}, "all commands run")
        lost.close()
        wait_for(lambda: sleeps() == {"sleep 311", "sleep 313"}, "the lost connection's commands end")


def test_a_closed_channel_breaks_the_pipes_of_its_command_and_of_no_other(sandbox: Factory) -> None:
    box = sandbox()

    def talkers() -> list[str]:
        return [process.title for process in box.processes() if "talker" in process.title]

    with connect(box) as connection:
        channels = [connection.transport.open_session(timeout=10) for _ in range(2)]
        for number, channel in enumerate(channels):
            channel.exec_command(f"while echo talker-{number}; do sleep 0.05; done")
        wait_for(lambda: len(talkers()) == 2, "both talk")
        channels[0].close()
        wait_for(lambda: len(talkers()) == 1, "the one without a listener ends")
        assert "talker-1" in talkers()[0] and channels[1].recv(8) == b"talker-1"


PROGRAM = """\
[program:engine-default]
command=/bin/sh -c 'echo started >> {root}/starts; exec sleep 320'
autostart=true
autorestart=true
startsecs=0
"""


def install_program(box: Sandbox) -> None:
    folder = box.root / "default" / "releases" / "one"
    folder.mkdir(parents=True)
    (folder / "supervisor.conf").write_text(PROGRAM.format(root=box.root))
    (box.root / "default" / "current").symlink_to("releases/one")


def supervisorctl(box: Sandbox, *words: str) -> str:
    variables = yaml.safe_load(box.inventory.read_text())["all"]["hosts"][box.name]
    command = " ".join([variables["ops_supervisorctl"], "-c", variables["ops_supervisor_conf"], *words])
    with connect(box) as connection:
        return run(connection, command)[1].decode()


def test_what_supervisord_runs_outlives_the_connection_and_a_reboot(sandbox: Factory) -> None:
    box = sandbox()
    install_program(box)
    assert "engine-default" in supervisorctl(box, "update")
    wait_for(lambda: "RUNNING" in supervisorctl(box, "status"), "the program runs")
    before = box.processes()
    box.reboot(down_s=0.1)
    assert all(starttime_of(process.pid) != process.starttime for process in before)
    wait_for(lambda: "RUNNING" in supervisorctl(box, "status"), "the program runs after the boot")
    assert (box.root / "starts").read_text() == "started\n" * 2


def test_gpu_memory_is_held_by_ranks_and_back_at_once_after_a_reboot(sandbox: Factory) -> None:
    box = sandbox(load_s=1)
    argv = f"-m sglang.launch_server --model-path {box.layout.target} --tp 4 --trust-remote-code --host {box.address}"
    with connect(box) as connection:
        in_background(connection, f"SPT_NOENV=1 setsid {box.layout.engine_python} {argv} >$HOME/engine.log 2>&1")
        wait_for(lambda: len(box.gpu_holders()) == 4, "four ranks hold memory")
        titles = {process.pid: process.title for process in box.processes()}
        assert {titles[holder.pid] for holder in box.gpu_holders()} == {
            f"sglang::scheduler_TP{rank}" for rank in range(4)
        }
        query = "--query-compute-apps=pid,used_memory --format=csv,noheader,nounits"
        out = run(connection, f"{box.layout.bin}/nvidia-smi {query}")[1].decode()
        assert {int(line.split(",")[0]) for line in out.splitlines()} == {holder.pid for holder in box.gpu_holders()}
    box.reboot(down_s=0)
    assert box.gpu_holders() == []


def test_a_host_without_power_is_silent_keeps_its_address_and_comes_back_with_its_disk(sandbox: Factory) -> None:
    box = sandbox()
    address, inventory = box.address, box.inventory.read_text()
    (box.root / "kept").write_text("kept")
    with connect(box) as connection:
        box.power_cut()
        assert box.processes() == []
        wait_for(lambda: not connection.transport.is_active(), "the client notices")
    assert refuses_ssh(box)
    other = sandbox()
    assert other.address != address, "the address was given away while its host was down"
    box.power_on()
    assert (box.address, box.inventory.read_text()) == (address, inventory)
    with connect(box) as connection:
        assert run(connection, f"cat {box.root}/kept")[1] == b"kept"


def test_an_ssh_cut_drops_connections_and_refuses_new_ones_for_its_time(sandbox: Factory) -> None:
    box = sandbox()
    with connect(box) as connection:
        in_background(connection, "sleep 330")
        wait_for(lambda: any(process.title == "sleep 330" for process in box.processes()), "the command runs")
        started = time.monotonic()
        box.fault("ssh-cut", for_s=1.0)
        assert refuses_ssh(box) and [fault["name"] for fault in box.state().faults] == ["ssh-cut"]
        wait_for(lambda: not connection.transport.is_active(), "the client notices")
    assert not any(process.title == "sleep 330" for process in box.processes())
    wait_for(lambda: not refuses_ssh(box), "SSH answers again")
    assert 0.9 < time.monotonic() - started < 3
    assert openssh(box, "echo back").stdout == b"back\n" and box.state().faults == []


def test_a_cut_is_cleared_at_once_and_connections_can_be_dropped_without_one(sandbox: Factory) -> None:
    box = sandbox()
    box.fault("ssh-cut", for_s=600)
    assert refuses_ssh(box)
    box.clear_faults()
    with connect(box) as connection:
        box.kill_connections()
        wait_for(lambda: not connection.transport.is_active(), "the client notices")
        assert openssh(box, "echo in").stdout == b"in\n"


def test_sandboxes_that_come_up_at_the_same_moment_get_different_addresses(sandbox: Factory) -> None:
    with ThreadPoolExecutor(4) as pool:
        boxes = list(pool.map(sandbox, [f"twin-{number}" for number in range(4)]))
    assert len({box.address for box in boxes}) == 4
    assert all(openssh(box, "echo $OPS_SANDBOX").stdout.decode().strip() == str(box.layout.folder) for box in boxes)


def test_the_default_address_is_refused_by_the_name_of_its_holder(sandbox: Factory, project: Path) -> None:
    holder = listen("127.0.77.1")
    with holder if holder is not None else contextlib.nullcontext():
        with pytest.raises(Refused, match=r"127\.0\.77\.1:2222 is taken by pid \d+ \(") as refused:
            sandbox("sandbox")
        assert holder is None or f"pid {os.getpid()} " in refused.value.message
    assert not (project / ".sandbox").exists(), "a refused sandbox leaves something behind"


def test_the_inventory_and_the_models_are_those_of_the_story(sandbox: Factory) -> None:
    box = sandbox(time_scale=20)
    variables = yaml.safe_load(box.inventory.read_text())["all"]["hosts"][box.name]
    assert variables["ansible_host"] == variables["ops_bind"] == box.address and variables["ops_time_scale"] == 20
    target = Path(variables["ops_paths"]["/shared"]) / "models/Kimi-K2.5"
    draft = Path(variables["ops_paths"]["/data"]) / "models/kimi-k2.5-eagle3"
    text = json.loads((target / "config.json").read_text())["text_config"]
    wiring = json.loads((draft / "config.json").read_text())
    assert (text["num_hidden_layers"], text["hidden_size"], text["vocab_size"]) == (61, 7168, 163840)
    assert wiring["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == AUX_LAYER_IDS == [2, 30, 58]
    for path in ("ops_root", "ops_engine_python", "ops_supervisor_conf", "ops_supervisorctl", "ops_known_hosts"):
        assert Path(variables[path]).exists(), path


def test_ansible_reaches_it_through_its_inventory(sandbox: Factory, tmp_path: Path) -> None:
    box = sandbox()
    (tmp_path / "ansible.cfg").write_text("")
    ansible = Path(sys.executable).parent / "ansible"
    done = subprocess.run(
        [ansible, "-i", box.inventory, "all", "-m", "copy", "-a", f"content=carried dest={box.root}/by-ansible"],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
            "ANSIBLE_SSH_ARGS": "-o ControlMaster=no",  # the path of a control socket would be too long here
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (box.root / "by-ansible").read_text() == "carried"


def test_a_folder_too_deep_for_a_socket_works_and_leaves_nothing_outside(project: Path) -> None:
    deep = project.joinpath(*["a-folder-with-a-long-name"] * 4, "and a space")
    (deep / "envs").mkdir(parents=True)
    box = Sandbox.up("deep", project=deep)
    try:
        socket_folder = box.layout.socket.parent
        assert socket_folder.is_relative_to("/tmp") and not socket_folder.is_relative_to(box.layout.folder)
        assert openssh(box, "echo in").stdout == b"in\n"
        assert box.layout.socket.is_socket()
    finally:
        box.down()
    assert not socket_folder.exists()


def test_a_full_disk_is_full_to_the_last_block_and_free_again_when_cleared(sandbox: Factory) -> None:
    try:
        box = sandbox(root_size_mib=8)
    except Refused as refused:
        if os.geteuid() == 0:
            raise
        pytest.skip(f"no right to mount here: {refused}")
    with connect(box) as connection:
        write = f"head -c 100000 /dev/zero > {box.root}/upload"
        assert run(connection, write)[0] == 0
        (box.root / "upload").unlink()
        box.fault("disk-full")
        status, _, error = run(connection, write)
        assert status != 0 and b"No space left on device" in error
        assert [fault["name"] for fault in box.state().faults] == ["disk-full"]
        box.clear_faults()
        assert run(connection, write)[0] == 0
        assert box.state().faults == []


def test_disk_full_without_a_limited_disk_is_refused_with_the_way_out(sandbox: Factory) -> None:
    box = sandbox()
    with pytest.raises(Refused, match="root folder of limited size") as refused:
        box.fault("disk-full")
    assert "--root-size-mib" in refused.value.hint and not box.layout.ballast.exists()


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("disk-ful", {}, "near: disk-full"),
        ("ssh-cut", {"on": "current"}, "fault of the host"),
        ("disk-full", {"for_s": 3}, "takes no --for"),
        ("reboot", {"for_s": -1}, "not between 0 and 3600"),
        ("slow-20-percent", {"for_s": 3}, "fault of the engine"),
        ("orphan-on-port", {"until": "noon"}, "--until noon"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(
    sandbox: Factory, name: str, options: dict[str, Any], complaint: str
) -> None:
    box = sandbox()
    with pytest.raises(ConfigError, match=complaint):
        box.fault(name, **options)
    assert box.state().faults == []
