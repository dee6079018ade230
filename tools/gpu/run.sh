#!/bin/bash
# Checks and measures loads onto a GPU that is there for a few minutes, what matters most first.
#
#     run.sh [--device cuda] [--python python3] [--out FOLDER] [--seconds 560]
#
# Runs from the folder that `make gpu-bundle` has made, beside which `make gpu-peers` has put the
# wheels of other libraries. Each step has a time limit and a file of its own in FOLDER ($OUT, or
# ./out), so that one that fails costs the others nothing. The summary at the end is short enough
# for a log that keeps 12,000 characters.
set -u
pack=$(cd "$(dirname "$0")" && pwd)
device=cuda
python=python3
out=${OUT:-out}
seconds=560
while [ $# -gt 1 ]; do
    case $1 in
    --device) device=$2 ;;
    --python) python=$2 ;;
    --out) out=$2 ;;
    --seconds) seconds=$2 ;;
    *) break ;;
    esac
    shift 2
done
if [ $# -gt 0 ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
# The steps run in the folder of the pack.
[[ $python != */* ]] || python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
results=()
failed=0

# A tenth of the summary's 12,000 characters for each of the steps that matter most.
shown() { tail -n "$1" "$out/$2.txt" | cut -c 1-110 | tail -c 1600 | sed 's/^/    /'; }

report() {
    printf '%s\n' "${1%%$'\n'*}"
    results+=("$1")
}

# step NAME LIMIT LINES NEEDS COMMAND...: runs a command for LIMIT seconds at most. The summary has
# the last LINES of its output. NEEDS is a program without which it is not run, or "gpu", or "".
step() {
    local name=$1 limit=$2 lines=$3 needs=$4
    shift 4
    local left=$((seconds - SECONDS))
    [ "$limit" -lt $left ] || limit=$left
    if [ "$needs" != "" ] && [ "$device" = cpu ]; then
        report "not run  $name: it needs a GPU"
    elif [ "$needs" != "" ] && [ "$needs" != gpu ] && ! command -v "$needs" >/dev/null; then
        report "not run  $name: there is no $needs"
    elif [ $limit -lt 2 ]; then
        report "not run  $name: no time is left"
    else
        local start=$SECONDS status=0
        timeout -k 5 "$limit" "$@" >"$out/$name.txt" 2>&1 </dev/null || status=$?
        case $status in
        0) status=ok ;;
        124 | 137) status="TIME OUT" ;;
        *) status="FAILED $status" ;;
        esac
        [ "$status" = ok ] || failed=1
        report "$status  $name: $((SECONDS - start)) s
$(shown "$lines" "$name")"
    fi
}

PATH=$PATH:/usr/local/cuda/bin
export PYTHONPATH=$pack:$scratch/peers PYTHONUNBUFFERED=1
cd "$scratch" || exit 2
shopt -s nullglob
wheels=("$pack"/../peers/*.whl)
if [ ${#wheels[@]} -gt 0 ]; then
    step peers 60 3 "" "$python" -m pip install -q --no-index --no-deps --no-warn-script-location \
        --target "$scratch/peers" "${wheels[@]}"
else
    report "not run  peers: there are no wheels beside $pack, which make gpu-peers brings"
fi

check() { printf '%s\n' "$python" "$pack/check.py" --device "$device" "$@"; }
mapfile -t quick < <(check --quick)
mapfile -t full < <(check)
step check-quick 60 20 "" "${quick[@]}"
files=/dev/shm
[ "$(df -k --output=avail $files | tail -1)" -gt $((20 << 20)) ] || files=$scratch
benchmark() {
    local name=$1 limit=$2
    shift 2
    step "$name" "$limit" 34 gpu "$python" -m benchmarks.local.gpu --device "$device" \
        --directory $files --json "$out/$name.json" "$@"
}
benchmark loads-1-gib 90 --rounds 3 --workloads large --size 1
step check-full 150 6 "" "${full[@]}"
step memory 5 12 "" sh -c 'df -h /dev/shm; free -g; nvidia-smi || true'
benchmark loads-8-gib 110 --rounds 3 --workloads large --size 8 --only-loads
# Torch keeps freed memory, which hides accesses behind the end of a tensor.
step memcheck 100 6 compute-sanitizer env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer \
    --tool memcheck --error-exitcode 9 --target-processes all "${quick[@]}"
step kernels 20 14 gpu "$python" -m benchmarks.local.gpu_kernels --json "$out/kernels.json"
step counters 30 24 ncu ncu --clock-control none --kernel-name 'regex:sha256|sum_kernel|mac_kernel|stream_kernel' \
    --launch-count 24 --metrics gpu__time_duration.sum,sm__throughput.avg.pct_of_peak_sustained_elapsed,dram__throughput.avg.pct_of_peak_sustained_elapsed \
    "${quick[@]}"
benchmark transformer 60 --rounds 3 --workloads transformer --only-loads

summary() {
    printf '\nSummary, %s s on %s; all output is in %s\n' "$SECONDS" "$device" "$out"
    printf '%s\n' "${results[@]}"
}
summary | head -c 12000 | tee "$out/summary.txt"
exit $failed
