#!/bin/sh
# The common part of both engines' entrypoints: checks the ports, and fetches target and head. It is sourced, not run.
#
#   AIP_HTTP_PORT      the port of the container (default 8080)
#   AIP_HEALTH_ROUTE   answers like GET /health;  AIP_PREDICT_ROUTE   answers like POST /v1/chat/completions (see gate.py)
#   AIP_STORAGE_URI    a URL with target/ and head/ below it, for those of the next two that are not set
#   EYAS_TARGET        a directory, a hub id or a URL (gs://BUCKET/...)
#   EYAS_HEAD          a directory or a URL; "none": no speculation
#   EYAS_SPECULATION   DEPTH,TOP_K,NODES as `eyas tune` prints them; "off": no speculation (default 3,1,4)
#   EYAS_SERVED_NAME   the model's name for clients (default: EYAS_TARGET)
#   EYAS_DRAIN_S       seconds in which running answers may finish after SIGTERM (default 30, see gate.py)
#   EYAS_METRICS_KEY_ENV   the variable that holds the Bearer token of /metrics (see gate.py)

# fail PROBLEM FIX: both are sentences without the final full stop.
fail() {
    echo "eyas: error: $1. $2." >&2
    exit 2
}

# Prints the directory of a name: a URL is fetched, everything else stays as it is.
local_name() {
    case $1 in
        *://*) PYTHONPATH="${EYAS_LIB:-/opt/eyas/lib}" python3 -m eyas.base.fetch "$1" ;;
        *) printf '%s\n' "$1" ;;
    esac
}

is_number() {
    case $1 in
        '' | *[!0-9]*) return 1 ;;
        *) return 0 ;;
    esac
}

export AIP_HTTP_PORT="${AIP_HTTP_PORT:-8080}"
is_number "$AIP_HTTP_PORT" || fail "AIP_HTTP_PORT=$AIP_HTTP_PORT is not a port" "Correct the port of the container"
# The port of the engine, behind the gate.
export EYAS_INNER_PORT="${EYAS_INNER_PORT:-30000}"
is_number "$EYAS_INNER_PORT" || fail "EYAS_INNER_PORT=$EYAS_INNER_PORT is not a port" "Correct it, or unset it"
[ "$AIP_HTTP_PORT" != "$EYAS_INNER_PORT" ] ||
    fail "AIP_HTTP_PORT and EYAS_INNER_PORT are both $AIP_HTTP_PORT" "Set EYAS_INNER_PORT to another port"

for route in "${AIP_HEALTH_ROUTE:-/health}" "${AIP_PREDICT_ROUTE:-/v1/chat/completions}"; do
    case $route in
        /*) ;;
        *) fail "The route $route does not start with a slash" "Correct the routes of the container" ;;
    esac
done

artifacts=${AIP_STORAGE_URI:-}
artifacts=${artifacts%/}
target=${EYAS_TARGET:-${artifacts:+$artifacts/target}}
head=${EYAS_HEAD:-${artifacts:+$artifacts/head}}
speculation=${EYAS_SPECULATION:-3,1,4}
[ -n "$target" ] || fail "The container has no target" "Set EYAS_TARGET, or AIP_STORAGE_URI to a URL with target/ below it"
[ -n "$head" ] || [ "$speculation" = off ] ||
    fail "The container has no head" "Set EYAS_HEAD, or AIP_STORAGE_URI to a URL with head/ below it, or EYAS_HEAD=none"

depth='' top_k='' nodes=''
if [ "$head" != none ] && [ "$speculation" != off ]; then
    IFS=, read -r depth top_k nodes rest <<EOF
$speculation
EOF
    if ! is_number "$depth" || ! is_number "$top_k" || ! is_number "$nodes" || [ -n "$rest" ]; then
        fail "EYAS_SPECULATION=$speculation is not a tree" "Use DEPTH,TOP_K,NODES as \`eyas tune\` prints it, or off"
    fi
    head=$(local_name "$head") || exit 2
fi
# The method and slots of a block head, which drafts all of them as a chain, whatever EYAS_SPECULATION says; empty for
# EAGLE-3. The block_size of DFlash counts the anchor, which is no slot.
slots='' method=''
if [ -n "$depth" ] && [ -f "$head/config.json" ]; then
    slots=$(python3 -c 'import json, sys
raw = json.load(open(sys.argv[1]))
names, raw = raw.get("architectures", []), {**raw.get("dflash_config", {}), **raw}
if "Qwen3DSparkModel" in names: print("dspark", int(raw["block_size"]))
if "DFlashDraftModel" in names: print("dflash", int(raw["block_size"]) - 1)' "$head/config.json") ||
        fail "$head/config.json cannot be read" "Export the head again"
    # shellcheck disable=SC2034  # both entrypoints read it
    method=${slots% *} slots=${slots#* }
fi
# shellcheck disable=SC2034  # both entrypoints read it
name=${EYAS_SERVED_NAME:-$target}
target=$(local_name "$target") || exit 2

# With these the engine could be reached without passing the gate.
for word in "$@"; do
    case $word in
        --host | --host=* | --port | --port=*)
            fail "The argument $word is not allowed: the engine listens behind the gate" \
                "Remove it, and set AIP_HTTP_PORT instead" ;;
    esac
done
