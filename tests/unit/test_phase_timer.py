"""Draft, verify and extend from the engine's own timer. When these fail, an operator who tunes the number of steps is
told a share of the cycle that is not there, and tunes the wrong part.
"""

from pathlib import Path

from ops.engine.phase_timer import phase_shares, shares_text

RECORDED = Path(__file__).parents[1] / "recordings" / "sglang-0.5.17-h200" / "metrics_device_timer.txt"


def test_the_shares_of_a_recorded_engine_add_up_and_verify_leads() -> None:
    shares = phase_shares(RECORDED.read_text())

    draft, verify, extend = 0.039878432072699095 + 0.0448775040209293, 0.19156707248091706, 0.08296585404872893
    total = draft + verify + extend
    assert shares == {
        "draft": round(draft / total, 4),
        "verify": round(verify / total, 4),
        "extend": round(extend / total, 4),
    }
    assert shares_text(shares) == "draft 24 %, verify 53 %, extend 23 %"


def test_an_engine_without_the_timer_has_no_shares() -> None:
    assert phase_shares("sglang:gen_throughput 88.8\n") == {}
    assert phase_shares('sglang:forward_execution_seconds_total{category="idle"} 4.0\n') == {}


def test_ranks_are_summed() -> None:
    line = 'sglang:forward_execution_seconds_total{{category="{}",tp_rank="{}"}} {}\n'
    text = (
        line.format("target_verify", 0, 3.0) + line.format("target_verify", 1, 3.0) + line.format("eagle_draft", 0, 2.0)
    )

    assert phase_shares(text) == {"draft": 0.25, "verify": 0.75}
