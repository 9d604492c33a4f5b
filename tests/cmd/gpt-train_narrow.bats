# Heads of queries and keys that are narrower than those of values, on record 84's recipe at a small size.

bats_require_minimum_version 1.5.0
load tiny_runs
load record84_runs

# Two layers of 32 channels among layers of 16, all of which turn; projections in fp8, each of its own number of rows.
MIXED=(-s model.qk_head_dim=16 -s model.rope_dim=16 -s "layers.3=plain 3 long yes - - 3 3 32:0.085"
       -s "layers.10=plain 9 long yes - - 9 10 32:0.085" -s precision.attn=fp8 -s precision.attn_backward=fp8
       -s "parameters.qk_bank=12h,2e,d bf16 uniform:0.5 normuon sharded - 0.9 1 1 yes")

# bats test_tags=long
@test "layers of two widths: resumed on 2 ranks the same bits, scored as validated, names by layer" {
    train -r "$RECIPE" "${MIXED[@]}" -s schedule.steps=5 -s schedule.extension=1 --ranks 2 -o a > a.log
    resumed_alike 000004 000006 --ranks 2
    # a matrix has 32 rows: one of q and one of k in layer 2, two of each in layer 3
    sed -n 's/^layers\.\([23]\)\.attn\.\([qk][.01]*\)\.weight\t.*\t\([0-9x]*\)\t[0-9]*\t[0-9]*$/\1 \2 \3/p' tensors.tsv |
        diff - <(printf '%s\n' "2 q 32x64" "2 k 32x64" "3 q.0 32x64" "3 q.1 32x64" "3 k.0 32x64" "3 k.1 32x64")
    samples_as_validated a 6
}

@test "a GPU is refused before anything is read" {
    run --separate-stderr "$GPT_BIN/gpt-train" -r "$RECIPE" -s model.qk_head_dim=32 -s model.rope_dim=32 -d nowhere --gpus 1
    [ "$status" -eq 5 ] && [ -z "$output" ]
    case $stderr in *"qk_head_dim: on a GPU a half of head_dim, or 96 of 128;"* | *"built without CUDA"*) ;; *) false ;; esac
}
