#!/usr/bin/env bash
# Everything that only a GPU can show, in one call: build, tests with --device cuda, compute-sanitizer, benchmarks.
# The inference path first and by itself: block kernels, nothing that waits, graphs.
#
#   python/benchmarks/gpu_check.sh [OUT]
#
# Needs a GPU, nvcc, and a Python with torch for CUDA ($PYTHON, default python3); no network. Goes on after a step that
# fails; exits 1 if any did. Logs are left in OUT (argument, else $OUT, else build/gpu_check), the report in
# OUT/gpu_check.json and python/benchmarks/results/gpu_check.json.
#   STEPS="build inference tests memcheck racecheck initcheck benchmarks" (default: all) for a part of them
#   STEP_SECONDS=900 the longest that one step may take
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || exit 1
out=${1:-${OUT:-$root/build/gpu_check}}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
cd "$root" || exit 1

python=${PYTHON:-python3}
steps=${STEPS:-build inference tests memcheck racecheck initcheck benchmarks}
step_seconds=${STEP_SECONDS:-900}
records=$out/steps.tsv
failed=0
: > "$records"

wanted() { [[ " $steps " == *" $1 "* ]]; }

# run NAME COMMAND...: its log, exit status and seconds are kept.
run() {
    local name=$1 started status
    shift
    started=$(date +%s.%N)
    echo "== $name: $*"
    timeout --kill-after=10 "$step_seconds" "$@" > "$out/$name.log" 2>&1
    status=$?
    printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$status" "$started" "$(date +%s.%N)" "$*" >> "$records"
    if [ "$status" -ne 0 ]; then
        failed=1
        echo "   failed with status $status; the last lines of $out/$name.log:"
        tail -n 15 "$out/$name.log" | sed 's/^/   | /'
    fi
    return "$status"
}

build() {
    export DISK_OPS_CUDA=1
    run build "$python" -m pip install --no-build-isolation --no-deps --no-index -v -e . && return
    run build_in_place "$python" setup.py build_ext --inplace # where pip lacks what an editable install needs
}

find_sanitizer() {
    local nvcc_folder folder
    nvcc_folder=$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
    for folder in ${CUDA_HOME:+"$CUDA_HOME/bin"} "$nvcc_folder" /usr/local/cuda/bin /usr/local/cuda*/bin; do
        [ -x "$folder/compute-sanitizer" ] && echo "$folder/compute-sanitizer" && return
    done
    command -v compute-sanitizer || echo compute-sanitizer
}

# Tests of the ops that launch kernels of ours on small inputs; the left-out ones spend their time in torch.
op_tests=(-m pytest -q -p no:cacheprovider tests/test_nms.py tests/test_neighbors.py tests/test_sampling.py
    tests/test_match_native.py tests/test_describe_op.py tests/test_blocks_on_device.py --device cuda
    -k "not dynamo and not opcheck and not gradcheck and not larger and not threads and not Compat and not exception
    and not network and not half_precision and not with_gradients")

# sanitize TOOL OPTIONS...
sanitize() {
    local tool=$1
    shift
    # Without torch's cache of memory every tensor is an allocation of its own, whose ends are watched.
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 run "$tool" "$(find_sanitizer)" --tool "$tool" "$@" "$python" "${op_tests[@]}"
}

# Uninitialised reads inside torch's own kernels are none of ours: what counts is kernels of this package.
initcheck() {
    sanitize initcheck || return
    run initcheck_of_our_kernels bash -c '! grep -B 2 -A 8 "at .*disk_ops::" "$1"' - "$out/initcheck.log"
}

benchmarks() {
    local program name
    for program in python/benchmarks/bench_*.py; do
        name=$(basename "$program" .py)
        run "$name" "$python" "$program" --device cuda --json "$out/$name.json"
    done
}

wanted build && build
run environment "$python" -m disk_ops
wanted inference && run inference "$python" -m pytest -q -p no:cacheprovider --device cuda \
    tests/test_blocks_on_device.py tests/test_no_synchronisation.py tests/test_graphs.py tests/test_detector.py
wanted tests && run tests "$python" -m pytest -q -p no:cacheprovider --continue-on-collection-errors --device cuda
wanted memcheck && sanitize memcheck --error-exitcode 9
wanted racecheck && sanitize racecheck --error-exitcode 9
wanted initcheck && initcheck
wanted benchmarks && benchmarks

"$python" python/benchmarks/gpu_report.py "$out" || failed=1
exit "$failed"
