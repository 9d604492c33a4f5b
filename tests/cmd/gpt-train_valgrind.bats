# gpt-train under valgrind.

bats_require_minimum_version 1.5.0
load tiny_runs
load ../check/needs

# A fused multiply-add takes valgrind a hundred times as long as another instruction. So the run with all stages does
# without them (GPT_SIMD), and two steps of few tokens check the loops that have them.
@test "valgrind finds nothing on a run with checkpoint and validation, nor in the loops for this processor" {
    needs valgrind own-memory
    printf '3.4445 -4.7750 2.0315\n%.0s' 1 2 > two.coeffs # a first and a last row: others do what these do
    clean() { # SIMD OPTION...
        # OpenBLAS: one thread, and kernels that valgrind can translate in seconds.
        run --separate-stderr env OPENBLAS_NUM_THREADS=1 OPENBLAS_CORETYPE=Nehalem GPT_SIMD="$1" valgrind -q \
            --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
            "$GPT_BIN/gpt-train" -r "$GPT_SHARE/recipes/tiny.recipe" "${SMALL[@]}" -d "$SHARDS" -q \
            --ranks 2 -s data.chunks=2 -s data.checkpoint_every=2 -s schedule.extension=1 \
            -s optimizer.coeffs=two.coeffs "${@:2}"
        echo "$stderr"
        [ "$status" -eq 0 ]
        [ -z "$stderr" ]
    }
    clean none -s schedule.steps=3 -s data.val_tokens=512 -s "stages.0=256 3 128 1 1,0.5,0.25>0" \
        -s "stages.1=256 7 128 1.52 1,0.5>0" -s "stages.2=256 11 128 1.73 1" -s "stages.3=512 13 256 - 1" \
        -o "$BATS_TEST_TMPDIR/run"
    [[ $output != *"kernels: AVX"* ]]
    clean avx512 -s schedule.steps=1 -s data.val_tokens=32 -s data.val_chunk=32 -s "stages.0=64 1 32 1 1,0.5,0.25>0" \
        -s "stages.1=64 1 32 1.52 1,0.5>0" -s "stages.2=64 1 32 1.73 1" -s "stages.3=64 2 32 - 1"
}
