# Record 89's recipe at a small size: the same trainer, without special cases.

bats_require_minimum_version 1.5.0
load tiny_runs

# A few steps on bytes: all stages, the untie step, the extension; delayed scales from the third refresh on.
SMALL=(-s model.vocab=272 -s model.bigram_rows=496 -s model.bigram_width=64 -s model.bigram_signs=64
       -s model.heads=2 -s model.head_dim=32 -s model.mlp_width=64 -s model.block=32 -s model.compose_window=20
       -s schedule.steps=9 -s schedule.extension=2 -s data.bos=-1 -s data.cycle=yes -s data.val_tokens=2048
       -s data.val_chunk=256 -s data.checkpoint_every=4 -s "precision.mlp_delayed=1.8 1.12 2"
       -s "stages.0=512 3 56 1 1,0.5,0.25>0" -s "stages.1=512 7 256 1.52 1,0.5>0"
       -s "stages.2=1024 11 256 1.73 1" -s "stages.3=1024 13 256 - 1")
GATES="bf16 zero adam replicated 0.9 0.99 0.1"
SMALL+=(-s "parameters.mudd_gate_w2=2,21,64 $GATES 1 no"
        -s "parameters.mudd_gate_b2=2,21 ${GATES/zero/values:0*4/2.5*2/0,0.5*4/0*7/0*4/2.5*2/0,0.5*5/5/10*2/0*2} 0 no")
RECIPE=${GPT_SHARE:-share}/recipes/record-89.recipe
train() { "$GPT_BIN/gpt-train" --threads 1 "${SMALL[@]}" -d "$SHARDS" -q "$@"; }
losses() { sed -n 's/^step:.* train_loss:\([^ ]*\).*/\1/p' "$1"; }

# bats test_tags=long
@test "resumed: the same bits, the scales of the second product among them" {
    cd "$BATS_TEST_TMPDIR"
    train -r "$RECIPE" -o a > a.log
    resumed_alike 000008 000011
    grep -q 'mlp.next_scale' tensors.tsv
    grep -q 'mlp.post_scale' tensors.tsv
}

# Each rank has scales of its own, and a checkpoint has those of all, in any number of files.
# bats test_tags=long
@test "three ranks resumed: the same bits, each rank with its own scales, also from a resharded checkpoint" {
    cd "$BATS_TEST_TMPDIR"
    train -r "$RECIPE" --ranks 3 -o a > a.log
    "$GPT_BIN/gpt-ckpt" verify --full a/step-000011
    "$GPT_BIN/gpt-ckpt" cat a/step-000008 mlp.post_scale > scales
    [ "$(wc -l < scales)" -eq 36 ]                  # of 12 pairs of matrices and 3 ranks
    [ "$(sort -u scales | wc -l)" -eq 34 ]          # no layer reads the last pair
    "$GPT_BIN/gpt-ckpt" reshard a/step-000008 -o one --ranks 1
    "$GPT_BIN/gpt-ckpt" verify --full one
    for from in a/step-000008 one; do
        rm -rf c
        "$GPT_BIN/gpt-train" -q -d "$SHARDS" --resume $from --ranks 3 -o c > c.log
        diff -r a/step-000011 c/step-000011
    done
    # on two ranks a rank takes those of the same number: two of the three go on
    "$GPT_BIN/gpt-train" -q -d "$SHARDS" --resume one --ranks 2 -o two > two.log
    [ "$("$GPT_BIN/gpt-ckpt" cat two/step-000011 mlp.post_scale | wc -l)" -eq 24 ]
    # a file of all states keeps the three ranks' scales
    "$GPT_BIN/gpt-ckpt" export --states a/step-000008 -o a.safetensors
    "$GPT_BIN/gpt-ckpt" import a.safetensors -o in --ranks 2
    "$GPT_BIN/gpt-ckpt" verify --full in
    cmp scales <("$GPT_BIN/gpt-ckpt" cat in mlp.post_scale)
}

# bats test_tags=long
@test "gpt-sample: the run's last val_loss, greedy texts with any batch" {
    cd "$BATS_TEST_TMPDIR"
    train -r "$RECIPE" -o a > a.log
    samples_as_validated a 11
}

# Weights in f32: in bf16 a last bit of a sum moves roundings.
# bats test_tags=long
@test "1, 3 and 8 ranks agree to 1e-5" {
    cd "$BATS_TEST_TMPDIR"
    sed 's/ bf16 / f32  /' "$RECIPE" > f32.recipe
    for n in 1 3 8; do
        train -r f32.recipe "${SMALL[@]//bf16/f32}" -s optimizer.polar=f32 -s data.val_tokens=0 \
            -s precision.mlp=bf16 -s precision.mlp_down=bf16 -s precision.check_weights=yes \
            -s precision.head_fp8=no --ranks $n > $n.log
    done
    for n in 3 8; do
        paste <(losses 1.log) <(losses $n.log) |
            awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d <= 1e-5)) exit 1; n++ } END { exit n != 11 }'
    done
}
