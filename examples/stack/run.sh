#!/bin/sh
# The whole stack by one command: nginx, five servers and Redis for the handwriting model.
#   examples/stack/run.sh              in containers if there is docker compose or podman-compose, else as processes
#   examples/stack/run.sh containers | processes
#   PORT=9000 REPLICAS=3 examples/stack/run.sh
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
port=${PORT:-8000}
replicas=${REPLICAS:-5}
packed=${PACKED:-$root/examples/stack/out}

if command -v timebound >/dev/null 2>&1; then
    timebound=timebound
elif [ -x "$root/.venv/bin/timebound" ]; then
    timebound=$root/.venv/bin/timebound
else
    echo "run.sh: there is no timebound command: activate the environment that has it, or make one with python3 -m venv $root/.venv && $root/.venv/bin/pip install $root" >&2
    exit 1
fi

if docker compose version >/dev/null 2>&1; then
    compose="docker compose"
elif command -v podman-compose >/dev/null 2>&1; then
    compose="podman-compose"
else
    compose=""
fi

case ${1:-${compose:+containers}} in
containers)
    [ -n "$compose" ] || { echo "run.sh: neither docker compose nor podman-compose is installed" >&2; exit 1; }
    "$timebound" pack "$root/examples/handwriting" --replicas "$replicas" --only docker,compose --out "$packed"
    cd "$packed"
    # In front, as the other form is: Ctrl-C stops all of it.
    PORT=$port exec $compose up --build --scale "app=$replicas"
    ;;
"" | processes)
    exec "$timebound" up "$root/examples/handwriting" --replicas "$replicas" --port "$port"
    ;;
*)
    echo "run.sh: ${1} is neither containers nor processes" >&2
    exit 2
    ;;
esac
