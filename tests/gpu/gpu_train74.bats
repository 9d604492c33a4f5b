# Record 74, small, on GPUs: against the CPU, graphs cut around the sparse exchange, resume. Run by
# `make check-gpu`; skipped where no GPU is visible.

bats_require_minimum_version 1.5.0
load ../check/needs

setup_file() {
    export SHARDS=$BATS_FILE_TMPDIR/shards
    mkdir "$BATS_FILE_TMPDIR/text"
    tests/inputs/text "$BATS_FILE_TMPDIR/text"
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 16384 -o "$SHARDS" "$BATS_FILE_TMPDIR"/text/*
}

setup() {
    needs gpu
    cd "$BATS_TEST_TMPDIR"
}

# All stages, the untie step, the extension, at learning rates at which a run is not chaotic.
SMALL=(-s model.vocab=384 -s model.bigram_rows=1536 -s model.heads=2 -s model.head_dim=32
       -s model.mlp_width=256 -s model.block=32 -s schedule.steps=57 -s schedule.extension=3
       -s optimizer.adam_lr=0.002 -s optimizer.muon_lr=0.008 -s precision.head_fp8=no
       -s data.bos=-1 -s data.cycle=yes -s data.val_tokens=0 -s data.checkpoint_every=20
       -s "stages.0=2048 3 112 1 1,0.5,0.25>0" -s "stages.1=2048 7 512 1.52 1,0.5>0"
       -s "stages.2=4096 11 512 1.73 1" -s "stages.3=4096 13 512 - 1")
DENSE="parameters.bigram_embed=b,d bf16 zero adam sharded 0.75 0.95 75 5 no"
train() { "$GPT_BIN/gpt-train" -r "$GPT_SHARE/recipes/record-74.recipe" "${SMALL[@]}" -d "$SHARDS" -q "$@"; }
CPUS=$(($(nproc) >= 8 ? 8 : 2))         # ranks of a run on the CPU
losses() { sed -n 's/.*train_loss:\([^ ]*\).*/\1/p' "$1"; }
worst() { paste <(losses "$1") <(losses "$2") | awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > w) w = d; n++ } END { if (!n) exit 1; printf "%d %.0f\n", n, w * 1e4 }'; }

# within LOG LOG TENTHS_OF_A_PROMILLE: all 60 steps
within() {
    run worst "$1" "$2"
    echo "steps, worst difference in 1e-4: $output"
    [ "${output% *}" -eq 60 ]
    [ "${output#* }" -le "$3" ]
}

@test "the optimizer's golden file" {
    "$GPT_TESTS/golden" --device cuda "$BATS_TEST_DIRNAME/../golden/r74-optimizer-small.safetensors"
}

@test "60 steps on CPU and GPU: losses within 1%" {
    train --ranks $CPUS > cpu.log
    train --device cuda > gpu.log
    within cpu.log gpu.log 100
}

@test "graphs and single launches, and a resumed run: the same bits" {
    train --device cuda --keep 0 -o a > a.log
    train --device cuda --no-graph -o b > b.log
    diff <(losses a.log) <(losses b.log)
    diff -r a/step-000060 b/step-000060
    "$GPT_BIN/gpt-train" -q --device cuda -d "$SHARDS" --resume a/step-000020 -o c > c.log
    diff -r a/step-000060 c/step-000060
}

# Means of two ranks round once more where NCCL adds them: 1e-3. One rank adds in another order: 1%.
@test "two GPUs: the sparse exchange does what the dense one does, graphs or not" {
    needs gpus-2
    train --gpus 1 > one.log
    train --gpus 2 -s precision.check_weights=yes > sparse.log
    train --gpus 2 --no-graph > eager.log
    train --gpus 2 -s "$DENSE" > dense.log
    diff <(losses sparse.log) <(losses eager.log)
    within sparse.log dense.log 10
    within one.log sparse.log 100
    grep -q '^sparse: 30 exchanges, ' sparse.log
}
