#!/usr/bin/env bash
# Makes the project's Python environment, once, and prints its interpreter's path.
#
# The environment lies in ${SIGHTLINE_CACHE:-~/.cache/sightline}/env-<hash of what it is made from>, so
# every clone with the same requirements shares it. The project itself is not installed there: it is
# imported from the working directory. stdout is the interpreter's path and nothing else.
#
#   SIGHTLINE_CACHE        where environments lie
#   SIGHTLINE_PYTHON       the Python 3.11 to build with (default: the first one found on PATH)
#   SIGHTLINE_TORCH_INDEX  index to take torch from, where the default index has a CUDA build
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Modules that make GPU builds of packages importable on a CPU, each loaded by a .pth line.
shims=("$root"/scripts/*_cpu/sightline_*.py)
cache=${SIGHTLINE_CACHE:-$HOME/.cache/sightline}
hash=$(cat "$root"/requirements/* "${shims[@]}" "${BASH_SOURCE[0]}" | sha256sum | cut -c1-12)
env=$cache/env-$hash
python=$env/bin/python
# Written last. The environment is built in its final place: scripts and .pyc files carry their own path.
ready=$env/.ready

if [ -e "$ready" ]; then
    echo "$python"
    exit 0
fi

steps=5 step=0
say() { echo "[sightline] $*" >&2; }
fail() { say "set-up failed: $*"; exit 1; }

pulse=
stop_pulse() {
    [ -z "$pulse" ] || { kill "$pulse" && wait "$pulse"; } 2>/dev/null || true
    pulse=
}
trap stop_pulse EXIT

# A sign of life every half minute.
start_pulse() { # start, in $SECONDS
    (
        trap 'kill "$nap"; exit' TERM
        while sleep 30 & nap=$!; wait "$nap"; do say "      ... $((SECONDS - $1)) s"; done
    ) >/dev/null &
    pulse=$!
}

# Runs one step and says its name and the time it took. `set -e` is off inside the command, so each
# command of a step's function ends in `&&` or is the last.
run_step() { # name, command...
    local what=$1 began=$SECONDS status=0
    shift
    step=$((step + 1))
    say "[$step/$steps] $what"
    start_pulse "$began"
    "$@" || status=$?
    stop_pulse
    [ "$status" = 0 ] || fail "step $step ($what) ended with status $status; run it again to start afresh"
    say "      done after $((SECONDS - began)) s"
}

find_python() {
    local candidate
    for candidate in ${SIGHTLINE_PYTHON:-python3.11 python3 python}; do
        # Run it: a version manager's shim is on PATH even where the version is not installed.
        if "$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.11 with venv found (tried: ${SIGHTLINE_PYTHON:-python3.11 python3 python});" \
        "install it (for example: apt install python3.11-venv) or set SIGHTLINE_PYTHON to its path"
}

# pip is quiet but for what matters: it tells of every find-links folder that is not there.
pip_install() {
    local status=0
    "$python" -m pip install --quiet --no-compile --no-input --disable-pip-version-check \
        --no-warn-script-location "$@" 2>&1 |
        { grep -vE '^(WARNING: Location .* is ignored|Looking in (indexes|links)|$)' || true; } >&2 || status=$?
    return "$status"
}

make_venv() {
    rm -rf "$env" && "$base" -m venv "$env"
}

install_torch() {
    # The lock is a constraint here, so that torch's own dependencies come in the locked versions.
    pip_install ${SIGHTLINE_TORCH_INDEX:+--index-url "$SIGHTLINE_TORCH_INDEX"} \
        -r "$root/requirements/torch.txt" -c "$root/requirements/cpu.lock"
}

install_locks() {
    local lock
    for lock in "$root"/requirements/*.lock; do
        pip_install --no-deps -r "$lock" || return
    done
}

install_shims() {
    local packages shim name
    packages=$("$python" -c 'import site; print(site.getsitepackages()[0])') || return
    for shim in "${shims[@]}"; do
        name=$(basename "$shim" .py)
        cp "$shim" "$packages/" && echo "import $name" >"$packages/$name.pth" || return
    done
}

# Engines and replicas start many at a time: compiling on first import would be paid by each of them.
# Some files are templates that do not compile, hence no check of the status.
compile_all() {
    "$python" -m compileall -q -j 0 -x '/(tests?|testing/_internal|sympy|networkx)/' \
        "$env/lib/python3.11/site-packages" >/dev/null 2>&1 || true
}

finish() {
    install_shims && compile_all &&
        "$python" -W ignore -c 'import ray, torch, torchvision, transformers, vllm' >/dev/null &&
        SGLANG_USE_CPU_ENGINE=1 "$python" -W ignore -c 'from sglang.srt.entrypoints.engine import Engine' >/dev/null
}

mkdir -p "$cache"
exec 9>"$cache/.env-$hash.lock"
if ! flock -n 9; then
    say "another set-up is building $env; waiting for it"
    flock 9
fi
if [ ! -e "$ready" ]; then
    base=$(find_python) || exit 1
    say "making the Python environment in $env, once: 2 to 10 minutes, mostly downloads (3 GB on disk)"
    run_step "virtual environment with $base (some seconds)" make_venv
    run_step "PyTorch for the CPU (1 to 3 min)" install_torch
    run_step "vLLM for the CPU (up to 1 min)" pip_install --no-deps -r "$root/requirements/engines.txt"
    run_step "Ray Serve, SGLang and everything else (1 to 4 min)" install_locks
    run_step "compiling and checking (about 1 min)" finish
    date -u +%FT%TZ >"$ready"
    say "ready after $SECONDS s"
fi
echo "$python"
