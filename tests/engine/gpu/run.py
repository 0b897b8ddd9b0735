#!/usr/bin/env python3
"""Run the whole product against the real SGLang on one or two NVIDIA GPUs, and write the results.

    python tests/engine/gpu/run.py --engine-python /path/to/sglang/bin/python

The Python that runs this has `ops` with its extra `sandbox` installed; --engine-python is one with SGLang. Everything
is done over SSH on a host of the sandbox's kind (its SSH server and supervisord, no root). What was found is kept in
--work after each step: call it again, and it goes on where it stopped; after a whole run, or on another commit, it
begins anew. Exit status: 0 every claim holds, 1 one does not, 75 there is more to do than --budget-s allowed.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    from gpu_main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
