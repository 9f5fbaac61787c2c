#!/bin/sh
# What both engines' entrypoints begin with: where to listen, and target and head on this machine. Sourced, not run.
#
#   AIP_HTTP_PORT      where the container listens (8080)
#   AIP_HEALTH_ROUTE   answered like GET /health;  AIP_PREDICT_ROUTE   like POST /v1/chat/completions (see gate.py)
#   AIP_STORAGE_URI    target/ and head/ below it are taken where the next two are not set
#   EYAS_TARGET        a directory, a hub id or a URL (gs://BUCKET/...)
#   EYAS_HEAD          a directory or a URL; "none": no speculation
#   EYAS_SPECULATION   DEPTH,TOP_K,NODES as `eyas tune` finds them; "off": no speculation (3,1,4)
#   EYAS_SERVED_NAME   the model's name for clients (that of EYAS_TARGET)

fail() {
    echo "eyas: found $1; expected $2; do $3" >&2
    exit 2
}

# The directory of a name: what is behind a URL is fetched, all else stays as it is.
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
is_number "$AIP_HTTP_PORT" || fail "AIP_HTTP_PORT=$AIP_HTTP_PORT" "a port" "correct the container's ports"
# Where the engine listens, behind the gate.
export EYAS_INNER_PORT="${EYAS_INNER_PORT:-30000}"
is_number "$EYAS_INNER_PORT" || fail "EYAS_INNER_PORT=$EYAS_INNER_PORT" "a port" "correct or unset it"
[ "$AIP_HTTP_PORT" != "$EYAS_INNER_PORT" ] || fail "both ports $AIP_HTTP_PORT" "two" "set EYAS_INNER_PORT"

for route in "${AIP_HEALTH_ROUTE:-/health}" "${AIP_PREDICT_ROUTE:-/v1/chat/completions}"; do
    case $route in
        /*) ;;
        *) fail "the route $route" "a path that starts with /" "correct the container's routes" ;;
    esac
done

artifacts=${AIP_STORAGE_URI:-}
artifacts=${artifacts%/}
target=${EYAS_TARGET:-${artifacts:+$artifacts/target}}
head=${EYAS_HEAD:-${artifacts:+$artifacts/head}}
speculation=${EYAS_SPECULATION:-3,1,4}
[ -n "$target" ] || fail "no target" "EYAS_TARGET, or AIP_STORAGE_URI with target/ below it" "set one of them"
[ -n "$head" ] || [ "$speculation" = off ] || fail "no head" "EYAS_HEAD, or AIP_STORAGE_URI with head/ below it" "set one, or EYAS_HEAD=none"

depth='' top_k='' nodes=''
if [ "$head" != none ] && [ "$speculation" != off ]; then
    IFS=, read -r depth top_k nodes rest <<EOF
$speculation
EOF
    if ! is_number "$depth" || ! is_number "$top_k" || ! is_number "$nodes" || [ -n "$rest" ]; then
        fail "EYAS_SPECULATION=$speculation" "three numbers, DEPTH,TOP_K,NODES, or off" "take those of \`eyas tune\`"
    fi
    head=$(local_name "$head") || exit 2
fi
# shellcheck disable=SC2034  # both entrypoints read it
name=${EYAS_SERVED_NAME:-$target}
target=$(local_name "$target") || exit 2

# These would open what the gate keeps shut, from inside.
for word in "$@"; do
    case $word in
        --host | --host=* | --port | --port=*)
            fail "$word" "AIP_HTTP_PORT alone to say where" "leave it out: the engine listens behind the gate" ;;
    esac
done
