#!/bin/sh
# Starts vLLM with a head from eyas behind the gate. Arguments go to `vllm serve`; variables: see ../entrypoint.sh.
set -eu
# shellcheck source=deploy/entrypoint.sh
. "${EYAS_HOME:-/opt/eyas}/entrypoint.sh"

# These would add routes that no client may have, if the gate were ever opened.
unset VLLM_SERVER_DEV_MODE VLLM_ALLOW_RUNTIME_LORA_UPDATING

if [ -n "$depth" ]; then
    [ -n "$slots" ] || [ "$top_k" = 1 ] ||
        fail "EYAS_SPECULATION=$speculation is a tree, but vLLM runs only chains (TOP_K 1)" \
        "Use the chain that \`eyas tune\` prints"
    case $head in
        *[\"\\]*) fail "The path of the head $head contains a quote or a backslash" "Rename it" ;;
    esac
    [ -z "$slots" ] || python3 -c 'import importlib.metadata as m, sys
try: version = m.version("vllm").split(".")
except m.PackageNotFoundError: sys.exit(0)  # a build without metadata: vLLM itself checks the method
sys.exit(version[0] == "0" and version[1].isdigit() and int(version[1]) < 25)' ||
        fail "This vLLM cannot serve a block head" "Use vLLM 0.25.0 or newer (deploy/images.env), or deploy.engine=eyas"
    config="{\"method\": \"${method:-eagle3}\", \"model\": \"$head\", \"num_speculative_tokens\": ${slots:-$depth}"
    [ "$method" != dspark ] || config="$config, \"draft_sample_method\": \"probabilistic\""
    set -- --speculative-config "$config}" "$@"
fi
exec python3 "${EYAS_HOME:-/opt/eyas}/gate.py" \
    vllm serve "$target" --host 127.0.0.1 --port "$EYAS_INNER_PORT" --served-model-name "$name" "$@"
