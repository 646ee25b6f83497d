#!/bin/sh
# Run a benchmark on one GPU cut into several by CUDA MPS. Needs root, or MPS running already.
#   sh benchmarks/gpu.sh against_ddp.py --device cuda --shares 40,20,10,10 --precision bfloat16 --models resnet18:256:60
#   sh benchmarks/gpu.sh four_shares.py rates
set -e
here="$(dirname "$0")"
export CUDA_MPS_PIPE_DIRECTORY="${TMPDIR:-/tmp}/mps" CUDA_MPS_LOG_DIRECTORY="${TMPDIR:-/tmp}/mps-log"
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d || true  # it may run already
trap 'echo quit | nvidia-cuda-mps-control' EXIT
script="$1"
shift
python3 "$here/$script" "$@"
