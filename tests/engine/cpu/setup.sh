#!/usr/bin/env bash
# Build an environment in which the real SGLang 0.5.23 runs on a CPU, or check one that is there.
#
#   tests/engine/cpu/setup.sh [FOLDER]      (default: .cache/engine-cpu of the project)
#
# Once about two minutes and 3.1 GB; afterwards a second. What a CPU lacks is replaced by stubs/ (see README.md).
#   PYTHON  interpreter, 3.11                (default: python3.11, else python3)
#   TORCH   the torch requirement            (default: torch==2.13.0)
# pip must find a CPU build of torch (its version ends in "+cpu"). Where the index has CUDA builds only:
#   TORCH=./torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl tests/engine/cpu/setup.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/../../../.cache/engine-cpu}
PYTHON=${PYTHON:-$(command -v python3.11 || command -v python3)}
TORCH=${TORCH:-torch==2.13.0}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
wanted=$(cat "$here/requirements.txt" - <<<"$TORCH sglang==0.5.23" | sha256sum | cut -d' ' -f1)

exec 9>"$folder/.lock"
flock 9
if [[ $(cat "$folder/.built" 2>/dev/null) != "$wanted" ]]; then
    t0=$SECONDS
    "$PYTHON" -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v == (3, 11) else "python 3.11 is needed, this is %d.%d; set PYTHON=" % v)'
    rm -rf "$folder/venv"
    "$PYTHON" -m venv "$folder/venv"
    # --no-deps everywhere: sglang's CUDA packages (several GB) are left out on purpose; requirements.txt is complete.
    pip=("$folder/venv/bin/python" -m pip install --quiet --no-deps --disable-pip-version-check)
    "${pip[@]}" "$TORCH"
    "${pip[@]}" -r "$here/requirements.txt"
    "${pip[@]}" sglang==0.5.23
    echo "built in $((SECONDS - t0)) s, $(du -sm "$folder/venv" | cut -f1) MB"
    built=1
fi

# The stand-ins are found, and the hooks are loaded, by whatever starts this interpreter: no variable to forget.
packages=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\nimport cpu_engine_hooks\n' "$here/stubs" >"$packages/cpu_engine.pth"
[[ -n ${built:-} ]] || { echo "engine: $folder/venv/bin/python"; exit 0; }

# Check: torch is a CPU build, the stand-in is found, and a whole speculative command line resolves.
SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$here/../models" <<'PY'
import sys

import torch

assert torch.version.cuda is None, f"torch {torch.__version__} is no CPU build (see TORCH in setup.sh)"
import sgl_kernel
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.server_args import prepare_server_args

models = sys.argv[1]
words = f"--model-path {models}/tiny-llama --device cpu --attention-backend intel_amx --speculative-algorithm EAGLE3"
words += f" --speculative-draft-model-path {models}/tiny-eagle3 --speculative-num-steps 3"
arguments = prepare_server_args([*words.split(), "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"])
arguments.resolve_once()
found = resolving_view(arguments)
assert found.attention_backend == "intel_amx", found.attention_backend
print(f"checked: torch {torch.__version__}, stand-in {sgl_kernel.__version__}, {found.speculative_num_steps} steps")
PY
echo "$wanted" >"$folder/.built"
echo "engine: $folder/venv/bin/python"
