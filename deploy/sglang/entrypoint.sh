#!/bin/sh
# Starts SGLang with a head from eyas behind the gate. Arguments go to SGLang; variables: see ../entrypoint.sh.
set -eu
# shellcheck source=deploy/entrypoint.sh
. "${EYAS_HOME:-/opt/eyas}/entrypoint.sh"

if [ -n "$slots" ]; then
    set -- --speculative-algorithm "$(echo "$method" | tr '[:lower:]' '[:upper:]')" --speculative-draft-model-path "$head" \
        --speculative-num-draft-tokens "$((slots + 1))" "$@"
elif [ -n "$depth" ]; then
    set -- --speculative-algorithm EAGLE3 --speculative-draft-model-path "$head" --speculative-num-steps "$depth" \
        --speculative-eagle-topk "$top_k" --speculative-num-draft-tokens "$nodes" "$@"
fi
exec python3 "${EYAS_HOME:-/opt/eyas}/gate.py" \
    python3 -m sglang.launch_server --model-path "$target" --host 127.0.0.1 --port "$EYAS_INNER_PORT" \
    --served-model-name "$name" --enable-metrics "$@"
