"""Places where the simulated engine was found to differ from the real one, and what it does since.

If this fails, tests on the sandbox prove something about an engine that does not exist.
"""

from pathlib import Path

from engine_bench import GPU, make_bench, start
from test_simulated_engine_physics import flags


def test_a_draft_whose_weights_were_never_loaded_accepts_nothing(tmp_path: Path) -> None:
    """As recorded with 0.5.17 on a GPU, and seen with 0.5.23 on a CPU (docs/results/engine-cpu.md)."""
    recorded = (GPU / "generate_eagle3_random_draft_steps2.json").read_text()
    assert '"spec_num_correct_drafts":0' in recorded.replace(" ", "")
    bench = make_bench(tmp_path)
    with start(bench, *flags(bench, 2), "--speculative-draft-load-format", "dummy") as engine:
        engine.wait_healthy()
        meta = engine.generate("Once upon a time", 100)["meta_info"]
    assert meta["spec_num_correct_drafts"] == 0
    assert meta["spec_verify_ct"] >= 99
