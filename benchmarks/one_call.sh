#!/bin/sh
# One call on a machine with a GPU: headlines of LeNet and ResNets on it, cells of the map on what is left of the cores.
#   sh benchmarks/one_call.sh SECONDS OUT [DEVICE [QUEUES]]
# Begins nothing after SECONDS, gives up 30 s later, and is killed 50 s later; results are JSON lines under OUT, appended
# as they come. QUEUES: name:processes, of the nets and map. A queue that is empty goes on with cells of the map.
seconds="$1" out="$2" device="${3:-cuda}" queues="${4:-resnet18:2 resnet20:2 lenet:2 mlp:2 map:2}"
root="$(cd "$(dirname "$0")/.." && pwd)"
python="${PYTHON:-python3}"
export OMP_NUM_THREADS=1 PYTHONPATH="$root/src:$root/benchmarks${PYTHONPATH:+:$PYTHONPATH}"
began="$(date +%s)"
mkdir -p "$out"
out="$(cd "$out" && pwd)"
cd "$root/benchmarks" || exit 1
if [ "$device" != cpu ]; then
    export CUDA_MPS_PIPE_DIRECTORY="${TMPDIR:-/tmp}/mps" CUDA_MPS_LOG_DIRECTORY="${TMPDIR:-/tmp}/mps-log"
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    nvidia-cuda-mps-control -d > "$out/mps.log" 2>&1 || true # it may run already, or be forbidden
fi
left() { echo $((seconds - $(date +%s) + began)); }
until_end() { timeout -k 5 $(($(left) + 50)) "$@"; }
headlines() { # net, processes, device
    cp ../docs/results/headlines.jsonl "$out/headlines_$1.jsonl"
    until_end "$python" -m headlines --models "$1" --device "$3" --processes "$2" --seconds "$(left)" --no-page \
        --kept "$out/headlines_$1.jsonl" > "$out/$1.log" 2>&1
}
map() { # name, processes, options
    [ "$(left)" -gt 20 ] || return
    name="$1" processes="$2"
    shift 2
    [ -e "$out/$name.jsonl" ] || cp ../docs/results/map.jsonl "$out/$name.jsonl"
    until_end "$python" -m maps --processes "$processes" --seconds "$(left)" --no-page --kept "$out/$name.jsonl" "$@" \
        >> "$out/$name.log" 2>&1
}
for queue in $queues; do
    name="${queue%:*}" processes="${queue#*:}"
    case "$name" in
    # Stride has changed since its first cells.
    map) (map map_16 "$processes" --workers 16 4 64 --again stride; map map_16 "$processes" --workers 16) & ;;
    mlp) (headlines mlp "$processes" cpu; map map_64 "$processes" --workers 64) & ;;
    lenet) (headlines lenet "$processes" "$device"; map map_4 "$processes" --workers 4) & ;;
    *) headlines "$name" "$processes" "$device" & ;;
    esac
done
wait
if [ "$device" != cpu ]; then echo quit | nvidia-cuda-mps-control; fi
wc -l "$out"/*.jsonl
