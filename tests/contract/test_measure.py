"""Measured runs against the simulated engine: cold, complete, counted right.

If these fail, a run answered from the prefix cache or cut short counts as a fast one, and a slow profile is admitted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_bench import Bench, Engine, make_bench, start
from gate_rig import PROJECT, call

from ops.bench.measure import RunFailed, measure, rates, times_to_first_token
from ops.config.profiles import load_profile
from ops.gates.live import LiveServer
from ops.hosts.clock import HostClock
from ops.model.gate import Completion

SCALE = 10.0
PROMPTS = {"a": "The harbour master kept two books. " * 12, "b": "def least_recently_used(cache):\n" * 12}
KEY, ADMIN = "sentinel-key", "sentinel-admin"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = make_bench(tmp_path_factory.mktemp("measure"))
    made.settings(time_scale=SCALE, load_s=0.2)
    return made


class Recorder:
    """Keeps every completion that passes through a server's batches."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        self.seen: list[Completion] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)

    def batch(self, *args: Any, **options: Any) -> list[Completion]:
        found = self.server.batch(*args, **options)
        self.seen += found
        return found


@contextmanager
def serving(bench: Bench, *flags: str, **keys: str | None) -> Iterator[Recorder]:
    headers = {"Authorization": f"Bearer {keys.get('api_key')}"} if keys else None
    with start(bench, "--enable-metrics", *flags, headers=headers) as engine:
        engine.wait_healthy()
        yield Recorder(live(engine, **keys))


def live(engine: Engine, **keys: str | None) -> LiveServer:
    host, port = engine.url.removeprefix("http://").split(":")
    return LiveServer(
        profile=load_profile(PROJECT, "baseline", environ={}),
        manifest={},
        clock=HostClock(SCALE),
        bound=(host, int(port)),
        call=call,
        look=dict,
        read_log=lambda lines: Path(engine.log).read_text().splitlines()[-lines:],
        say=lambda text: None,
        api_key=keys.get("api_key"),
        admin_key=keys.get("admin_key"),
    )


@pytest.mark.timing
def test_runs_of_one_user_take_prompts_in_turn_and_count_the_decode(bench: Bench) -> None:
    with serving(bench) as server:
        runs = measure(server, PROMPTS, concurrency=1, runs=6, tokens=128, timeout_s=60)
    assert [run.prompt for run in runs] == ["a", "b"] * 3
    assert rates(runs).mean == pytest.approx(88.8, rel=0.06)
    assert times_to_first_token(runs).mean == pytest.approx(180, rel=0.15)
    assert all((c.cached_tokens or 0) < 5 for c in server.seen)


@pytest.mark.timing
def test_runs_of_eight_users_count_all_their_tokens(bench: Bench) -> None:
    with serving(bench) as server:
        runs = measure(server, PROMPTS, concurrency=8, runs=2, tokens=128, timeout_s=60)
    assert len(server.seen) == 16, "equal prompts of one batch must not answer for each other"
    assert rates(runs).mean == pytest.approx(330, rel=0.1)


def test_where_the_cache_cannot_be_flushed_prompts_are_changed_instead(bench: Bench) -> None:
    keys = ["--api-key", KEY, "--admin-api-key", ADMIN]
    with serving(bench, *keys, api_key=KEY) as server:
        assert not server.flush_cache(1.0)
        measure(server, PROMPTS, concurrency=1, runs=4, tokens=32, timeout_s=60)
    assert all((c.cached_tokens or 0) < 0.25 * (c.prompt_tokens or 0) for c in server.seen)
    with serving(bench, *keys, api_key=KEY, admin_key=ADMIN) as server:
        assert server.flush_cache(1.0)


def test_a_cut_answer_is_no_run(bench: Bench) -> None:
    bench.settings(time_scale=SCALE, load_s=0.2, knobs={"truncate_streams": 0.5, "truncate_min_running": 1})
    try:
        with serving(bench) as server, pytest.raises(RunFailed):
            measure(server, PROMPTS, concurrency=4, runs=1, tokens=64, timeout_s=60)
    finally:
        bench.settings(time_scale=SCALE, load_s=0.2)
