"""NCCL's own words in a log that ranks write in blocks: a value cut by the end of a block must not be believed.

If this fails, `ops verify` reports a set that every rank took as lost, because two ranks' lines ran into each other.
"""

from pathlib import Path

from ops.remote import deployed

RECORDED = "tests/recordings/sglang-0.5.17-h200/nccl_blocks_ll.log"


def said(log: Path) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {0: {}, 1: {}}
    for entry in deployed.nccl_settings(str(log)):
        found[entry["gpu"]][entry["name"]] = entry["value"]
    return found


def test_what_a_rank_has_written_is_read_and_what_is_in_its_buffer_is_silence(repository: Path) -> None:
    first, second = said(repository / RECORDED).values()
    assert second["NCCL_PROTO"] == "LL" and second["NCCL_ALGO"] == "Ring" and second["NCCL_NTHREADS"] == "512"
    assert first.items() <= second.items()
    assert set(second) - set(first) == {"NCCL_ALGO", "NCCL_NTHREADS", "NCCL_PROTO"}


def test_a_value_cut_by_the_end_of_a_block_is_not_taken_for_another_value(repository: Path, tmp_path: Path) -> None:
    text = (repository / RECORDED).read_text()
    whole = "[1] NCCL INFO NCCL_PROTO set by environment to LL\n"
    assert whole in text
    log = tmp_path / "release.log"
    # As rank 0's block ends in the recording: amid a line, with another process's line right behind it.
    log.write_text(text.replace(whole, whole[:-2] + "[2026-11-30 15:28:44 TP0] Init torch distributed ends.\n"))
    assert "NCCL_PROTO" not in said(log)[1]
