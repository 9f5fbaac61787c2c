#!/bin/sh
# vLLM with a head of eyas's, behind the gate. Arguments go to `vllm serve`; variables: see ../entrypoint.sh.
set -eu
# shellcheck source=deploy/entrypoint.sh
. "${EYAS_HOME:-/opt/eyas}/entrypoint.sh"

# Routes that a client must not have, should anybody open the gate.
unset VLLM_SERVER_DEV_MODE VLLM_ALLOW_RUNTIME_LORA_UPDATING

if [ -n "$depth" ]; then
    [ "$top_k" = 1 ] || fail "EYAS_SPECULATION=$speculation" "a chain, TOP_K 1: vLLM has no trees" \
        "take the chain of \`eyas tune\`"
    case $head in
        *[\"\\]*) fail "the head $head" "a path without quotes" "rename it" ;;
    esac
    config="{\"method\": \"eagle3\", \"model\": \"$head\", \"num_speculative_tokens\": $depth}"
    set -- --speculative-config "$config" "$@"
fi
exec python3 "${EYAS_HOME:-/opt/eyas}/gate.py" \
    vllm serve "$target" --host 127.0.0.1 --port "$EYAS_INNER_PORT" --served-model-name "$name" "$@"
