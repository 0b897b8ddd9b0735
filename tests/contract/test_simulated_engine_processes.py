"""Processes, signals, ports and GPU memory of the simulated engine.

If this fails, the stop proof, the crash handling and the orphan rules are tested against processes that do not behave
like the real ones, and a real host keeps its GPUs full.
"""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_bench import (
    CPU,
    TUNED,
    Bench,
    Engine,
    alive,
    environ,
    free_port,
    make_bench,
    refused,
    speculative_flags,
    start,
    title,
    wait_for,
)
from engine_shapes import first_rank_shapes, missing_in_order, shape

from ops.sandbox.engine.gpu import hold_gpu, read_gpus
from ops.sandbox.engine.install import install_engine, install_nvidia_smi


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


@pytest.fixture
def engine(bench: Bench) -> Iterator[Engine]:
    with start(bench, *speculative_flags(bench)) as running:
        running.wait_healthy()
        yield running


def long_request(engine: Engine, tokens: int) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(engine.generate("A long answer, please.", tokens))
        except OSError as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: engine.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1, 5, "the request to run")
    return thread, answers


def test_the_tree_is_a_launcher_a_process_for_each_rank_and_a_detokenizer(bench: Bench) -> None:
    with start(bench, tp=4) as engine:
        engine.wait_healthy()
        ranks = [f"sglang::scheduler_TP{i}" for i in range(4)]
        assert sorted(engine.children().values()) == sorted([*ranks, "sglang::detokenizer"])
        assert "sglang.launch_server" in title(engine.process.pid)
        groups = {os.getpgid(pid) for pid in engine.children()}
        assert groups == {os.getpgid(engine.process.pid)}


def test_a_single_rank_has_the_recorded_title(bench: Bench) -> None:
    with start(bench, tp=1) as engine:
        engine.wait_healthy()
        assert sorted(engine.children().values()) == ["sglang::detokenizer", "sglang::scheduler"]


def test_nine_children_are_light_and_start_quickly(bench: Bench) -> None:
    bench.settings(load_s=0.0)
    began = time.monotonic()
    with start(bench, tp=8) as engine:
        engine.wait_healthy()
        took_s = time.monotonic() - began
        sizes = [private_kib(pid) for pid in engine.children()]
    assert len(sizes) == 9
    assert max(sizes) < 12 * 1024
    assert took_s < 5.0


def private_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])


@pytest.mark.parametrize("kept", [True, False])
def test_the_title_blanks_the_environment_unless_told_not_to(bench: Bench, kept: bool) -> None:
    with start(bench, environment={**TUNED, "SPT_NOENV": "1" if kept else ""}, tp=2) as engine:
        engine.wait_healthy()
        for pid in engine.children():
            assert (b"NCCL_PROTO=LL\0" in environ(pid)) is kept
        assert b"NCCL_PROTO=LL\0" in environ(engine.process.pid)


def test_the_engine_adds_its_own_variables_and_keeps_those_that_are_set(bench: Bench) -> None:
    with start(bench, environment={**TUNED, "NCCL_NVLS_ENABLE": "1"}, tp=2) as engine:
        engine.wait_healthy()
        rank = next(pid for pid, name in engine.children().items() if name.endswith("TP1"))
        for setting in (b"NCCL_CUMEM_ENABLE=0\0", b"NCCL_NVLS_ENABLE=1\0", b"CUDA_DEVICE_MAX_CONNECTIONS=8\0"):
            assert setting in environ(rank)


def test_sigterm_of_an_idle_server_drains_and_exits_0(engine: Engine) -> None:
    children = engine.children()
    engine.process.terminate()
    assert engine.wait_for_exit() == 0
    assert not [pid for pid in children if alive(pid)]
    recorded = [
        line for line in first_rank_shapes((CPU / "sigterm_idle.log").read_text()) if "leaked" not in line and line
    ]
    wanted = [s for s in recorded if s.startswith(("SIGTERM", "Gracefully", "INFO", "kill_process_tree"))]
    assert len(wanted) == 7
    assert missing_in_order(wanted, first_rank_shapes(engine.text())) == []


def test_sigterm_lets_a_running_request_finish_and_still_takes_new_ones(bench: Bench) -> None:
    bench.settings(time_scale=20.0)
    with start(bench) as engine:
        engine.wait_healthy()
        thread, answers = long_request(engine, 2000)
        engine.process.terminate()
        engine.wait_for_line("SIGTERM received.")
        assert engine.get("/health").status_code == 503
        assert engine.get("/ready").status_code == 503
        assert engine.generate("Late.", 5)["meta_info"]["completion_tokens"] == 5
        assert engine.wait_for_exit() == 0
        thread.join(5)
        assert answers[0]["meta_info"]["completion_tokens"] == 2000
        shapes = first_rank_shapes(engine.text())
        for line in (
            "Health check request received during shutdown. Returning 503.",
            "Gracefully exiting... Remaining",
        ):
            assert any(s.startswith(shape(line)) for s in first_rank_shapes((CPU / "sigterm_busy.log").read_text()))
            assert any(s.startswith(shape(line)) for s in shapes)


def test_a_killed_rank_takes_the_whole_tree_down_as_recorded(bench: Bench) -> None:
    with start(bench, *speculative_flags(bench), tp=1) as engine:
        engine.wait_healthy()
        children = engine.children()
        thread, answers = long_request(engine, 20000)
        os.kill(next(pid for pid, name in children.items() if "scheduler" in name), signal.SIGKILL)
        assert engine.wait_for_exit() == -9
        thread.join(5)
        assert isinstance(answers[0], OSError)
        assert not [pid for pid in children if alive(pid)]
        recorded = (CPU / "kill9_scheduler.log").read_text()
        words = ("Subprocess", "SIGQUIT", "Sleeping", "No live", "kill_process_tree")
        ending = [s for s in first_rank_shapes(recorded) if s.startswith(words)]
        assert len(ending) == 5
        assert missing_in_order(ending, first_rank_shapes(engine.text())) == []


def test_sigterm_to_a_rank_ends_the_server_as_well(engine: Engine) -> None:
    os.kill(next(pid for pid, name in engine.children().items() if name.endswith("TP1")), signal.SIGTERM)
    assert engine.wait_for_exit() == -9
    assert "Subprocess scheduler_1 " in engine.text()


def test_a_rank_killed_in_the_load_is_reported_at_once(bench: Bench) -> None:
    bench.settings(time_scale=1.0, load_s=9.0)
    with start(bench) as engine:
        engine.wait_for_line("Load weight begin.")
        os.kill(next(pid for pid, name in engine.children().items() if name.endswith("TP0")), signal.SIGKILL)
        assert engine.wait_for_exit(5) == 1
        assert "Rank 0 scheduler died during initialization (exit code: -9)." in engine.text()


def test_ranks_of_a_killed_launcher_are_reparented_and_leave_soon(bench: Bench, engine: Engine) -> None:
    children = engine.children()
    engine.process.kill()
    engine.wait_for_exit()
    ranks = [pid for pid, name in children.items() if "scheduler" in name]
    assert all(alive(pid) and parent(pid) != engine.process.pid for pid in ranks)
    assert read_gpus(bench.simulation)[0].used_mib > 60_000
    began = time.monotonic()
    wait_for(lambda: not any(alive(pid) for pid in children), 5, "the ranks to leave")
    assert time.monotonic() - began > 1.0
    wait_for(lambda: read_gpus(bench.simulation)[0].used_mib < 100, 5, "the memory to return")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_surviving_orphans_keep_their_memory(bench: Bench) -> None:
    bench.settings(knobs={"orphans_survive": True})
    with start(bench) as engine:
        engine.wait_healthy()
        children = engine.children()
        engine.process.kill()
        engine.wait_for_exit()
        time.sleep(2.5)
        assert all(alive(pid) for pid in children)
        holders = [holder for gpu in read_gpus(bench.simulation) for holder in gpu.holders]
        assert {holder.process_name for holder in holders} == {"sglang::scheduler_TP0", "sglang::scheduler_TP1"}


def test_a_taken_port_prints_the_bind_error_and_exits_3(bench: Bench) -> None:
    port = free_port()
    with start(bench, port=port, tp=1) as first:
        first.wait_healthy()
        second_log = bench.prefix / "second.log"
        with second_log.open("wb") as out:
            command = bench.command("--model-path", str(bench.target), "--host", "127.0.0.1", "--port", str(port))
            status = subprocess.run(command, check=False, stdout=out, stderr=subprocess.STDOUT, timeout=20).returncode
        assert status == 3
        shapes = first_rank_shapes(second_log.read_text())
        recorded = first_rank_shapes((CPU / "crash_port_in_use.log").read_text())
        ending = recorded[recorded.index("INFO:     Waiting for application startup.") :]
        bind = next(s for s in ending if s.startswith("ERROR:"))
        assert re.search(r"\[Errno #\] error while attempting to bind on address .*: address already in use", bind)
        assert missing_in_order([s for s in ending if s != bind], shapes) == []
        assert any("address already in use" in s for s in shapes)
        assert first.info()["port"] == port


def test_a_silent_listener_on_the_port_keeps_the_process_and_its_memory(bench: Bench) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with start(bench, port=listener.getsockname()[1]) as engine:
            engine.wait_for_line("address already in use")
            time.sleep(1.5)
            assert engine.process.poll() is None
            assert read_gpus(bench.simulation)[1].used_mib > 60_000


def test_sigterm_in_the_load_ends_the_launcher(bench: Bench) -> None:
    bench.settings(time_scale=1.0, load_s=9.0)
    with start(bench) as engine:
        engine.wait_for_line("Load weight begin.")
        engine.process.terminate()
        assert engine.wait_for_exit(5) == -signal.SIGTERM


def test_ctrl_c_ends_the_server_and_its_ranks(engine: Engine) -> None:
    children = engine.children()
    engine.process.send_signal(signal.SIGINT)
    assert engine.wait_for_exit() == 0
    assert not [pid for pid in children if alive(pid)]


def test_memory_grows_with_the_load(bench: Bench) -> None:
    bench.settings(knobs={"hang_in_load_at": "weights"})
    with start(bench, "--base-gpu-id", "2") as engine:
        engine.wait_for_line("Load weight begin.")
        early = read_gpus(bench.simulation)
    bench.settings(knobs={})
    with start(bench, "--base-gpu-id", "2") as engine:
        engine.wait_healthy()
        late = read_gpus(bench.simulation)
    assert 0 < early[2].used_mib < 10_000 < 80_000 < late[2].used_mib < late[2].total_mib
    assert [gpu.index for gpu in late if gpu.holders] == [2, 3]


def test_memory_returns_about_a_second_after_the_end(bench: Bench) -> None:
    with start(bench) as engine:
        engine.wait_healthy()
        for pid in [*engine.children(), engine.process.pid]:
            os.kill(pid, signal.SIGKILL)
        engine.wait_for_exit()
        first_look = time.monotonic()
        assert read_gpus(bench.simulation)[0].used_mib > 80_000
        wait_for(lambda: read_gpus(bench.simulation)[0].used_mib < 100, 10, "the memory to return")
        assert time.monotonic() - first_look > 0.9


def nvidia_smi(bench: Bench, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = bench.prefix / "bin" / "nvidia-smi"
    if not script.exists():
        install_nvidia_smi(script.parent, bench.simulation, bench.python)
    return subprocess.run([script, *arguments], check=False, capture_output=True, text=True, timeout=20)


def test_nvidia_smi_answers_the_forms_that_the_field_uses(bench: Bench) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        hold_gpu(bench.simulation, 5, sleeper.pid, 41_000, "python3", "mallory")
        gpus = nvidia_smi(bench, "--query-gpu=index,name,memory.total,memory.used", "--format=csv")
        lines = gpus.stdout.splitlines()
        assert lines[0] == "index, name, memory.total [MiB], memory.used [MiB]"
        assert lines[6] == "5, NVIDIA RTX PRO 6000 Blackwell Server Edition, 97887 MiB, 41004 MiB"
        assert len(lines) == 9
        plain = nvidia_smi(
            bench, "-i", "5", "--query-gpu=memory.free,compute_cap,uuid", "--format=csv,noheader,nounits"
        )
        assert re.fullmatch(r"56883, 12\.0, GPU-[0-9a-f-]{36}\n", plain.stdout)
        uuid = plain.stdout.strip().rpartition(" ")[2]
        apps = nvidia_smi(bench, "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader")
        assert apps.stdout == f"{uuid}, {sleeper.pid}, python3, 41000 MiB\n"
        assert f"GPU 5: NVIDIA RTX PRO 6000 Blackwell Server Edition (UUID: {uuid})" in nvidia_smi(bench, "-L").stdout
        assert re.search(rf"\|    5   N/A  N/A +{sleeper.pid} +C +python3 +41000MiB", nvidia_smi(bench).stdout)
    finally:
        sleeper.kill()
        sleeper.wait()


def test_nvidia_smi_refuses_what_the_real_one_refuses(bench: Bench) -> None:
    unknown = nvidia_smi(bench, "--query-gpu=index,memory.speed", "--format=csv")
    assert (unknown.returncode, unknown.stdout) == (2, 'Field "memory.speed" is not a valid field to query.\n\n')
    assert nvidia_smi(bench, "--frobnicate").returncode == 2


def test_the_topology_matrix_follows_the_settings(bench: Bench) -> None:
    matrix = nvidia_smi(bench, "topo", "-m").stdout.splitlines()
    assert matrix[0].split("\t")[1:9] == [f"GPU{i}" for i in range(8)]
    assert matrix[1].split("\t")[1:9] == [" X ", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    bench.settings(gpus={"topology": "nvlink", "count": 2, "name": "NVIDIA H200", "mib": 143771})
    assert nvidia_smi(bench, "topo", "-m").stdout.splitlines()[1].split("\t")[1:3] == [" X ", "NV18"]


def test_installing_again_writes_nothing_and_repairs_what_changed(bench: Bench) -> None:
    packages = next((bench.prefix / "lib").glob("python*")) / "site-packages"
    module = packages / "sglang" / "physics.py"
    before = module.stat().st_mtime_ns
    install_engine(packages)
    assert module.stat().st_mtime_ns == before
    (packages / "sglang" / ".content-hash").write_text("another version\n")
    module.write_text("broken\n")
    install_engine(packages)
    assert "PLAIN_DECODE_MS" in module.read_text()


def test_the_package_imports_nothing_of_the_project(bench: Bench) -> None:
    packages = next((bench.prefix / "lib").glob("python*")) / "site-packages"
    for module in (packages / "sglang").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) ops\b", module.read_text(), re.M), module


def test_an_unknown_simulation_key_stops_the_start(bench: Bench) -> None:
    (bench.simulation / "config.json").write_text(json.dumps({"time_scael": 10}))
    status, text = refused(bench)
    assert (status, "unknown keys ['time_scael']" in text) == (1, True)


def test_nccl_conf_files_count_where_the_environment_is_silent(bench: Bench, tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("# lowered by somebody\nNCCL_MAX_NCHANNELS=2\nNCCL_NTHREADS=64\n")
    environment = {"NCCL_CONF_FILE": str(conf), "NCCL_DEBUG": "INFO", "NCCL_NTHREADS": "512"}
    with start(bench, environment=environment) as engine:
        engine.wait_healthy()
        assert "NCCL_MAX_NCHANNELS set by environment to 2\n" in engine.text()
        assert "NCCL_NTHREADS set by environment to 512\n" in engine.text()
