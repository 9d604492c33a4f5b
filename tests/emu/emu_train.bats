# gpt-train on an emulated GPU (tests/emu): what it says of GPUs that are not at hand, and that it takes the
# memory that --plan says.

bats_require_minimum_version 1.5.0

setup_file() {
    export SHARDS=$BATS_FILE_TMPDIR/shards
    mkdir "$BATS_FILE_TMPDIR/text"
    tests/inputs/text "$BATS_FILE_TMPDIR/text"
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 1024 -o "$SHARDS" "$BATS_FILE_TMPDIR"/text/00*
    echo 3.4445 -4.7750 2.0315 > "$BATS_FILE_TMPDIR/one.coeffs"
}

setup() {
    emulated=$GPT_TESTS/../emu/gpt-train
    run "$emulated" --version
    [ "$status" -ne 77 ] || skip "needs ${output#skipped: }"
    export GPT_EMU_SEED=1
}

# Three steps and a validation, of 32 tokens each. One row of polar's table in place of five, which take most of a step
# here; gpu_polar_test and gpu_optim_test have all of them.
SMALL=(-s optimizer.coeffs="$BATS_FILE_TMPDIR/one.coeffs"
       -s model.vocab=272 -s model.mlp_width=64 -s schedule.steps=2 -s schedule.extension=1
       -s data.chunks=1 -s data.val_tokens=32 -s data.val_chunk=32 -s data.val_every=0 -s "stages.0=32 1 32 1 1,0.5"
       -s "stages.1=32 1 32 1 1" -s "stages.2=32 1 32 1 1" -s "stages.3=32 2 32 - 1")
train() { "$emulated" -r "$GPT_SHARE/recipes/tiny.recipe" "${SMALL[@]}" -d "$SHARDS" -q --gpus 1 "$@"; }

refused() { # CODE MESSAGE OPTION...
    run --separate-stderr train "${@:3}"
    echo "$status: $stderr"
    [ "$status" -eq "$1" ]
    [ -z "$output" ]
    [ "$(grep -v '^emulated GPU' <<< "$stderr")" = "gpt-train: $2" ]
}

@test "no driver, too old a driver, no GPU, too old a GPU, GPUs that differ: one sentence each" {
    GPT_EMU_DRIVER=0 refused 5 "no GPU: no NVIDIA driver is installed"
    GPT_EMU_DRIVER=12080 refused 5 "the GPU driver is too old: it supports CUDA 12.8, this program needs 13.0"
    GPT_EMU_GPU="" refused 5 "no GPU is visible"
    GPT_EMU_GPU=7.5 refused 5 \
        "GPU 0 has compute capability 7.5, this program needs 8.0 or newer (Ampere: A100, RTX 30)"
    GPT_EMU_GPU="9.0 8.9" refused 5 \
        "GPUs 0 and 1 differ: compute capability 9.0 and 8.9; CUDA_VISIBLE_DEVICES can choose equal ones" --gpus 2
    GPT_EMU_GPU=8.9 refused 5 \
        "no native path on GPU 0: it has compute capability 8.9, the native path is Hopper's (9.0)" --gpu-path native
}

@test "an fp8 head below 8.9: in bf16, as one line of the log says; required, it is refused" {
    GPT_EMU_GPU=8.0 refused 5 \
        "precision.head_fp8 = require: GPU 0 has compute capability 8.0, fp8 needs 8.9 or newer" -s precision.head_fp8=require
    for gpu in 8.0 8.9; do
        GPT_EMU_GPU=$gpu train -s precision.head_fp8=yes > "$BATS_TEST_TMPDIR/$gpu.log"
        GPT_EMU_GPU=$gpu train -s precision.head_fp8=no > "$BATS_TEST_TMPDIR/$gpu.no.log"
        grep "compute capability $gpu, portable path" "$BATS_TEST_TMPDIR/$gpu.log"
    done
    losses() { grep -o '^step:[0-9]*/[0-9]* [a-z_]*loss:[^ ]*' "$BATS_TEST_TMPDIR/$1.log"; }
    [ "$(losses 8.0 | wc -l)" -eq 4 ]
    [ "$(grep -c 'the head in bf16: no fp8 below 8.9$' "$BATS_TEST_TMPDIR/8.0.log")" -eq 1 ]
    [ "$(grep -c 'the head in bf16' "$BATS_TEST_TMPDIR/8.9.log")" -eq 0 ]
    diff <(losses 8.0) <(losses 8.0.no)
    run diff <(losses 8.9) <(losses 8.9.no)
    [ "$status" -eq 1 ]
}

@test "MLPs in fp8: other losses on either path, the same bits after resuming; below 8.9 those of bf16" {
    cd "$BATS_TEST_TMPDIR"
    losses() { grep -o '^step:[0-9]*/[0-9]* [a-z_]*loss:[^ ]*' "$1.log"; }
    fp8=(-s precision.mlp=fp8 -s precision.mlp_down=fp8 -s precision.mlp_backward=fp8)
    for gpu in 8.0 8.9 9.0; do
        export GPT_EMU_GPU=$gpu
        train > bf16.log
        train "${fp8[@]}" -s data.checkpoint_every=1 --keep 0 -o "$gpu" > fp8.log
        losses fp8
        [ "$(losses fp8 | wc -l)" -eq 4 ]
        [ "$(grep -c ', the MLPs in bf16: no fp8 below 8.9$' fp8.log)" -eq "$([ "$gpu" = 8.0 ] && echo 1 || echo 0)" ]
        run diff <(losses bf16) <(losses fp8)
        [ "$status" -eq "$([ "$gpu" = 8.0 ] && echo 0 || echo 1)" ]
        "$emulated" -q --gpus 1 -d "$SHARDS" --resume "$gpu/step-000002" -o again > /dev/null
        diff -r "$gpu/step-000003" again/step-000003
        rm -r again
    done
}

# Memory that an op takes in a step, because the plan left it out, the emulated GPU refuses.
@test "--plan's sum is what the emulated GPU gives, all of it before the first step" {
    for case in "9.0 native yes 0 fp8" "9.0 native no 32 bf16" "9.0 portable yes 32 fp8" "8.0 portable no 0 fp8" \
        "8.0 portable no 0 bf16"; do
        read -r gpu path fp8 block mlp <<< "$case"
        set=(--gpu-path "$path" -s "precision.head_fp8=$fp8" -s "precision.head_block=$block" -s "precision.mlp=$mlp"
             -s "precision.mlp_down=$mlp" -s "precision.mlp_backward=$mlp" -s "precision.attn=$mlp"
             -s "precision.attn_backward=$mlp" -s "precision.attn_out=$mlp" -s "precision.mlp_grads=${mlp/fp8/both}")
        GPT_EMU_GPU=$gpu train "${set[@]}" > "$BATS_TEST_TMPDIR/log"
        taken=$(sed -n 's/^peak memory allocated: \([0-9]*\) .*/\1/p' "$BATS_TEST_TMPDIR/log")
        sum=$(GPT_EMU_GPU=$gpu train --plan "${set[@]}" | awk '$1 == "sum" { print $2 }')
        echo "$case: taken $taken MiB, plan $sum"
        awk -v a="$taken" -v b="$sum" 'BEGIN { exit !(a > 0 && a - b <= 0.55 && b - a <= 0.55) }' # rounded
    done
}

# The scale at which the squares of some steps' gradients overflow, and those of others do not: between the least and the
# greatest norm. NorMuon's banks and Adam's parameters move in each step, so each that is skipped would show.
@test "steps that are skipped among others: the same losses, norms and weights with graphs and without" {
    cd "$BATS_TEST_TMPDIR"
    set -- -s schedule.steps=3 -s data.val_tokens=0 -s optimizer.adam_every=1 -s optimizer.max_skips=9 -s "stages.0=32 1 32 1 1"
    export GPT_EMU_GPU=9.0
    "$GPT_BIN/gpt-train" -r tiny "${SMALL[@]}" -d "$SHARDS" -q "$@" | grep -o 'grad_norm:[^ ]*' | cut -d: -f2 | sort -g > norms
    scale=$(awk '{ x[NR] = $1 } END { printf "%.6g", 1.8446e19 / sqrt(x[int(NR / 2)] * x[int(NR / 2) + 1]) }' norms)
    steps() { grep -o '^step:[0-9/]* \(train_loss\|skipped\):.*grad_norm:[^ ]*\|^step:[0-9/]* skipped:[0-9]*' "$1"; }
    train "$@" -s optimizer.loss_scale="$scale" -o graphs > graphs.log
    train "$@" -s optimizer.loss_scale="$scale" --no-graph -o none > none.log
    steps graphs.log
    [ "$(steps graphs.log | wc -l)" -eq 4 ]
    [ "$(steps graphs.log | grep -c skipped)" -ge 1 ]
    [ "$(steps graphs.log | grep -c train_loss)" -ge 1 ]
    diff <(steps graphs.log) <(steps none.log)
    diff -r -x log.txt graphs none
}

# Steps in which other parameters move are other graphs: those of 4 steps, two of them launched again.
@test "[states]: steps of its own for a parameter, with graphs and without" {
    set -- -s "states.ve0=- - - - 4" -s "states.scalars=- - - - 1" -s schedule.steps=5 -s data.val_tokens=0 \
        -s "stages.0=32 1 32 1 1"
    GPT_EMU_GPU=9.0 train "$@" | grep -o '^step:[0-9/]* train_loss:[^ ]*' > "$BATS_TEST_TMPDIR/graphs"
    GPT_EMU_GPU=9.0 train "$@" --no-graph | grep -o '^step:[0-9/]* train_loss:[^ ]*' > "$BATS_TEST_TMPDIR/none"
    [ "$(wc -l < "$BATS_TEST_TMPDIR/graphs")" -eq 6 ]
    diff "$BATS_TEST_TMPDIR/graphs" "$BATS_TEST_TMPDIR/none"
}
