#!/bin/sh
# Profile eagle3-1step, instance default. Written by ops; a change here is drift and is reported.
# Run by hand it does the same as under the supervisor: only the output stays in the terminal.
set -eu
unset CDPATH

ops_release_dir=$(cd -- "$(dirname -- "$0")" && pwd -P)
OPS_RELEASE=${ops_release_dir##*/}
case $ops_release_dir in
*/releases/*) OPS_INSTANCE_DIR=${ops_release_dir%/releases/*} ;;
*) OPS_INSTANCE_DIR=$ops_release_dir ;;
esac

if [ ! -t 1 ]; then
    mkdir -p -- "$OPS_INSTANCE_DIR/logs"
    ops_log=$OPS_INSTANCE_DIR/logs/$OPS_RELEASE.log
    (umask 027 && : >>"$ops_log")
    exec </dev/null >>"$ops_log" 2>&1
    echo "== ops start $OPS_RELEASE at $(date -u +%Y-%m-%dT%H:%M:%SZ), pid $$"
fi

# What the supervisor or a login shell happens to have set must not change the engine.
for ops_name in $(env | sed -n 's/^\(NCCL_[A-Za-z0-9_]*\)=.*/\1/p; s/^\(SGL[A-Z]*_[A-Za-z0-9_]*\)=.*/\1/p'); do
    unset "$ops_name"
done
# KEY=VALUE lines, taken literally: no quotes, no expansion, as `docker --env-file` reads them.
while IFS= read -r ops_line || [ -n "$ops_line" ]; do
    case $ops_line in
    '' | '#'*) ;;
    *) export "${ops_line%%=*}=${ops_line#*=}" ;;
    esac
done <"$ops_release_dir/engine.env"
export OPS_RELEASE OPS_INSTANCE_DIR

# `python -m` looks for modules in the working directory first; nothing lies here that could be taken for one.
cd -- "$ops_release_dir"
exec /workspace/sglang/bin/python \
    -m sglang.launch_server \
    --model-path /workspace/shared/models/Kimi-K2.5 \
    --served-model-name kimi-k2.5 \
    --tp-size 8 \
    --host 10.0.0.2 \
    --port 8000 \
    --mem-fraction-static 0.88 \
    --max-running-requests 64 \
    --trust-remote-code \
    --disable-custom-all-reduce \
    --enable-metrics \
    --speculative-algorithm EAGLE3 \
    --speculative-draft-model-path /workspace/data/models/kimi-k2.5-eagle3 \
    --speculative-num-steps 1 \
    --speculative-eagle-topk 1 \
    --speculative-num-draft-tokens 2
