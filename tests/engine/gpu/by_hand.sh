#!/bin/sh
# A server as a person launches it: five steps, the tiny pair.   by_hand.sh PYTHON MODELS ADDRESS PORT
# Nothing of it comes from ops, so that what ops adds would show.
exec "$1" -m sglang.launch_server \
    --model-path "$2/tiny-llama" --host "$3" --port "$4" \
    --attention-backend triton --sampling-backend pytorch --grammar-backend none \
    --mem-fraction-static 0.3 --cuda-graph-max-bs-decode 4 --max-running-requests 4 --enable-metrics \
    --speculative-algorithm EAGLE3 --speculative-draft-model-path "$2/tiny-eagle3" \
    --speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6
