#!/bin/sh
# One GPU cut into four unequal ones by CUDA MPS: `sync` beside DistributedDataParallel. Needs root, or MPS running already.
set -e
cd "$(dirname "$0")"
export CUDA_MPS_PIPE_DIRECTORY="${TMPDIR:-/tmp}/mps" CUDA_MPS_LOG_DIRECTORY="${TMPDIR:-/tmp}/mps-log"
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d || true  # it may run already
trap 'echo quit | nvidia-cuda-mps-control' EXIT
python3 against_ddp.py --device cuda --shares 40,20,10,10 --precision bfloat16 --models resnet18:256:60 "$@"
