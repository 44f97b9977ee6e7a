#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Rung 6 on a machine with an NVIDIA GPU, from a checkout: each stage bounded in time, its log in $OUT.
#
#   tests/gpu/run_rung6.sh [STAGE...]      build tests contract sanitizer quick bench (default: all)
#
# VLLM_LIB: vLLM's library of CUDA operators, for the benches. PYTHON: the interpreter (python3).
# Exit code: how many stages failed.
set -u
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=${OUT:-$PWD/build/rung6}
umask 077
mkdir -p "$out" build/cache
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export DSV41TOPK_CACHE_DIR=${DSV41TOPK_CACHE_DIR:-$PWD/build/cache}
failed=0

# stage NAME SECONDS LINES COMMAND...: SIGINT first, so that pytest and the bench still report.
stage() {
  local name=$1 seconds=$2 lines=$3 start=$SECONDS code
  shift 3
  timeout -s INT -k 15 "$seconds" "$@" >"$out/$name.log" 2>&1
  code=$?
  printf '== %s: exit %s, %s s\n' "$name" "$code" $((SECONDS - start))
  tail -n "$lines" "$out/$name.log"
  [ "$code" -eq 0 ] || failed=$((failed + 1))
}

build() {
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  nvcc --version | tail -n 2
  "$python" setup.py -q build_ext --inplace || return
  "$python" -m dsv41topk build --arch sm_90 || return
  "$python" -c '
import dsv41topk, torch
print("torch", torch.__version__, "build():", dsv41topk.build())
assert dsv41topk.build()'
}

tests=(-q -p no:cacheprovider -o filterwarnings=default --require-gpu --durations=5)
peers=()
[ -z "${VLLM_LIB:-}" ] || peers=(--vllm-lib "$VLLM_LIB")

[ $# -gt 0 ] || set -- build tests contract sanitizer quick bench
for name; do
  case $name in
    build)
      export python
      export -f build
      stage build 240 12 bash -c build
      ;;
    tests)
      stage tests 240 30 "$python" -m pytest "${tests[@]}" tests/gpu \
        --ignore tests/gpu/test_sanitizer.py
      ;;
    contract)
      stage contract 300 25 "$python" -m pytest "${tests[@]}" -n 8 --backends cuda tests/contract
      ;;
    sanitizer)
      stage sanitizer 540 25 "$python" -m pytest "${tests[@]}" -n 4 tests/gpu/test_sanitizer.py
      ;;
    quick)
      stage quick 90 60 "$python" -m dsv41topk bench gpu --quick --seconds 60 "${peers[@]}"
      ;;
    bench)
      stage bench 300 50 "$python" -m dsv41topk bench gpu --seconds 240 \
        --json "$out/bench.json" "${peers[@]}"
      ;;
    *)
      echo "no stage $name" >&2
      exit 64
      ;;
  esac
done
exit "$failed"
