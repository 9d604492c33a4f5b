# Track 3's recipe at a small size: rows, f32 weights with bf16 copies, biases, gains; ranks, resuming,
# sampling.

bats_require_minimum_version 1.5.0
load tiny_runs

SMALL=(-s model.vocab=272 -s model.heads=2 -s model.head_dim=32 -s model.mlp_width=64 -s model.block=16
       -s schedule.steps=9 -s data.cycle=yes -s data.val_tokens=2048 -s data.val_chunk=256 -s data.val_every=3
       -s data.checkpoint_every=4 -s "stages.0=512 8 64 1 1" -s "stages.1=512 8 64 - 1")
train() { "$GPT_BIN/gpt-train" --threads 1 -r track-3 "${SMALL[@]}" -d "$SHARDS" -q "$@"; }
losses() { sed -n 's/^step:\([0-9]*\).* \(train\|val\)_loss:\([^ ]*\).*/\1 \3/p' "$1"; }

# Sums of a rank's micro-batches are in another order, and each is rounded to bf16.
# bats test_tags=long
@test "1, 2 and 4 ranks agree; before step 0 the loss is that of equal chances" {
    cd "$BATS_TEST_TMPDIR"
    for n in 1 2 4; do
        train --ranks "$n" -o "r$n" > "$n.log"
        losses "$n.log" > "of$n"
    done
    head -1 of1 | awk '{ d = $2 - log(272); exit !(d < 1e-4 && d > -1e-4) }'
    [ "$(wc -l < of1)" -eq 13 ]
    for n in 2 4; do
        paste of1 "of$n" | awk '{ d = $2 - $4; if (!(d < 1e-3 && d > -1e-3)) exit 1 }'
    done
    awk 'NR == 1 { first = $2 } END { exit !($2 < first - 1) }' of1
}

# bats test_tags=long
@test "resumed on 2 ranks: the same bits; gpt-ckpt knows its tensors" {
    cd "$BATS_TEST_TMPDIR"
    train --ranks 2 -o a > a.log
    resumed_alike 000008 000009 --ranks 2
    [ ! -s resumed.err ]
    grep -q '^layers.9.attn.k.weight.*f32' tensors.tsv
    grep -q '^embed.exp_avg.*bf16' tensors.tsv
}

# bats test_tags=long
@test "gpt-sample: the run's last val_loss, greedy texts with any batch" {
    cd "$BATS_TEST_TMPDIR"
    train -o a > a.log
    samples_as_validated a 9
}

# A weight that is f32 begins with the number drawn, not with its bf16.
@test "initial weights are f32, and all that the model reads is bf16 of them" {
    cd "$BATS_TEST_TMPDIR"
    train -s schedule.steps=1 -s optimizer.adam_wd=0 \
          -s 'rules.muon12=lr 0 | momentum 0.95 nesterov | polar $coeffs | shape | decay 0 plain | step' -o a > a.log
    "$GPT_BIN/gpt-ckpt" cat a/step-000001 layers.0.attn.q.weight > q
    awk '{ for (i = 1; i <= NF; i++) { n++; s += $i ^ 2; e = $i; while (e != 0 && e ^ 2 < 16384) e *= 2; while (e ^ 2 >= 65536) e /= 2; odd += e != int(e) } }
         END { r = sqrt(s / n) / 0.0207289; exit !(n == 4096 && r > 0.97 && r < 1.03 && odd > 0.9 * n) }' q
}

@test "what rows cannot be is refused" {
    refused() {
        run --separate-stderr train "$@"
        [ "$status" -eq 2 ] || [ "$status" -eq 3 ]
        [ -z "$output" ]
    }
    refused -s "stages.0=512 8 48 1 1"
    [[ $stderr = *"expected rows of one length"* ]]
    refused -s data.val_chunk=160 -s data.val_tokens=1600
    [[ $stderr = *"expected a multiple of a row, 64 tokens"* ]]
    refused -s model.rope_pairs=halves -s "layers.3=plain 3 long yes - - - 3"
    [[ $stderr = *"rope_pairs = halves"* ]]
    refused -s "states.q_bank=f32 - - -"
    [[ $stderr = *"'q_bank' is not under adam"* ]]
    refused -s "states.lm_head=f32 - - -"
    [[ $stderr = *"a master is for a narrower weight"* ]]
    refused -s precision.mlp=fp8
    [[ $stderr = *"the recipe has 'up_bank'"* ]]
}

# p + B + 1 >= n: of a shard of n tokens (n - 2) / B steps.
@test "what a shard has left over is not used, and is told" {
    cd "$BATS_TEST_TMPDIR"
    local n=0 steps=0 shard
    for shard in "$SHARDS"/*train*.bin; do
        n=$((n + ($(stat -c %s "$shard") - 1024) / 2))
        steps=$((steps + (($(stat -c %s "$shard") - 1024) / 2 - 2) / 512))
    done
    run --separate-stderr train -s data.cycle=no -s schedule.steps=$((steps + 1))
    [ "$status" -eq 3 ]
    [ -z "$output" ]
    [[ $stderr = *"found enough for $steps at most"* ]]
    train -s schedule.steps=1 -s data.val_tokens=0 > a.log
    grep -qF "pass: trains on $((steps * 512)) of $n tokens" a.log
}
