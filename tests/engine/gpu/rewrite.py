#!/usr/bin/env python3
"""Write the page of a run again from its document, after the report has changed. It measures nothing.

python tests/engine/gpu/rewrite.py engine-gpu.json --out docs/results [--earlier engine-gpu.json] [--nccl-start LOG]
"""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    import engine_results
    import gpu_report
    import nccl_words

    parser = argparse.ArgumentParser(description="write the page of a GPU run again from its document")
    parser.add_argument("document", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--earlier", type=Path, help="document of an earlier run")
    parser.add_argument("--nccl-start", type=Path, help="log of a start with an NCCL set, recorded on that machine")
    options = parser.parse_args()
    found = json.loads(options.document.read_text())
    found["rewritten"] = engine_results.today()
    if options.nccl_start:
        found["nccl-start"] = nccl_words.recorded_start(options.nccl_start)
    earlier = json.loads(options.earlier.read_text()) if options.earlier else None
    gpu_report.write(found, found["failures"], options.out, earlier)


if __name__ == "__main__":
    main()
