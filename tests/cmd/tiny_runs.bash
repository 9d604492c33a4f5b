# tiny_runs.bash - short runs of the tiny recipe on made-up text, and what two of them have in common.

setup_file() { make_shards; }
make_shards() {
    export SHARDS=$BATS_FILE_TMPDIR/shards
    mkdir "$BATS_FILE_TMPDIR/text"
    tests/inputs/text "$BATS_FILE_TMPDIR/text"
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 16384 -o "$SHARDS" "$BATS_FILE_TMPDIR"/text/*
}

# A few steps of the tiny recipe on bytes, at half its width: all stages, the untie step, the extension.
SMALL=(-s model.vocab=272 -s model.head_dim=16 -s model.mlp_width=64 -s model.block=16 -s schedule.steps=9
       -s schedule.extension=2 -s data.val_tokens=1024 -s data.val_chunk=128 -s data.val_every=5
       -s data.checkpoint_every=4
       -s "stages.0=512 3 256 1 1,0.5,0.25>0" -s "stages.1=512 7 256 1.52 1,0.5>0"
       -s "stages.2=1024 11 256 1.73 1" -s "stages.3=1024 13 256 - 1")

# With exec, so that the process of `start ... &` is the program itself.
start() { exec "$GPT_BIN/gpt-train" --threads 1 -r "$GPT_SHARE/recipes/tiny.recipe" "${SMALL[@]}" -d "$SHARDS" -q "$@"; }
train() { "$GPT_BIN/gpt-train" --threads 1 -r "$GPT_SHARE/recipes/tiny.recipe" "${SMALL[@]}" -d "$SHARDS" -q "$@"; }
resume() { "$GPT_BIN/gpt-train" --threads 1 -d "$SHARDS" -q "$@"; }

# Waits until the log of a run in the background has that step.
await_step() { for _ in $(seq 600); do grep -q "^step:$1/" "$2" && break; sleep 0.05; done; }
# Step and loss columns of a log, without clocks and header.
losses() { grep -o '^step:[0-9]*/[0-9]* [a-z_]*loss:[^ ]*' "$1"; }

# True if the files of two checkpoints are the same bytes.
same_checkpoint() { diff -r -x log.txt "$1" "$2"; }

# Prints how many training losses two logs have in common, and their worst relative difference in 1e-7.
worst_difference() {
    paste <(losses "$1" | sed -n 's/.*train_loss://p') <(losses "$2" | sed -n 's/.*train_loss://p') |
        awk '{ d = ($1 - $2) / $2; if (d < 0) d = -d; if (d > w) w = d; n++ } END { if (!n) exit 1; printf "%d %.0f\n", n, w * 1e7 }'
}

setup() { cd "$BATS_TEST_TMPDIR"; }

# bf16 weights and a bf16 orthogonalisation turn a last bit of a sum into 2^-9 of an element now and
# then (about 3e-4 of the loss after 20 steps); in f32 what remains is the order of the sums.
f32_recipe() { sed 's/ bf16 / f32  /' "$GPT_SHARE/recipes/tiny.recipe"; }

# 20 steps of the tiny recipe with all in f32: ranks differ by the order of f32 sums, 2^-24 each, grown over the steps.
f32() { # RULE OPTION...
    sed "s/ bf16 / f32 /; s/normuon *sharded    - *0.95 /$1 /" "$GPT_SHARE/recipes/tiny.recipe" > "$BATS_TEST_TMPDIR/f32.recipe"
    "$GPT_BIN/gpt-train" -r "$BATS_TEST_TMPDIR/f32.recipe" -d "$SHARDS" -q --threads 1 -s model.vocab=272 \
        -s model.head_dim=16 -s model.mlp_width=64 -s optimizer.polar=f32 \
        -s precision.check_weights=yes -s schedule.steps=18 -s schedule.extension=2 -s data.val_tokens=0 \
        -s data.checkpoint_every=10 -s "stages.0=384 3 512 1 1,0.5,0.25>0" -s "stages.1=384 7 512 1.52 1,0.5>0" \
        -s "stages.2=768 11 512 1.73 1" -s "stages.3=768 13 512 - 1" "${@:2}"
}
resumes() { # FOLDER of 3 ranks, LOG: again from step 10 on, to the bit
    rm -rf again
    "$GPT_BIN/gpt-train" --resume "$1/step-000010" -d "$SHARDS" -q --threads 1 --ranks 3 -o again > resumed.log
    diff <(losses "$2" | sed -n '/^step:11/,$p') <(losses resumed.log | sed -n '/^step:11/,$p')
    [ "$(losses resumed.log | grep -c train_loss)" -eq 10 ]
    diff -r "$1/step-000020" again/step-000020
}
agree() { # LOG LOG LINES
    read -r lines worst < <(worst_difference "$1" "$2")
    [ "$lines" -eq "$3" ] && [ "$worst" -le 100 ]
}

# resumed_alike FROM LAST [OPTION...]: run a goes on from its step FROM, with OPTION, to the same bits at step LAST;
# that checkpoint is whole, also resharded; its tensors are listed in tensors.tsv, what was said in resumed.err.
resumed_alike() {
    cp -r "a/step-$1" b
    "$GPT_BIN/gpt-train" -q -d "$SHARDS" --resume b "${@:3}" -o c > c.log 2> resumed.err
    diff -r "a/step-$2" "c/step-$2"
    "$GPT_BIN/gpt-ckpt" verify --full "a/step-$2"
    "$GPT_BIN/gpt-ckpt" ls "a/step-$2" > tensors.tsv
    "$GPT_BIN/gpt-ckpt" reshard "a/step-$2" -o three --ranks 3
    "$GPT_BIN/gpt-ckpt" verify --full three
}

# samples_as_validated RUN STEP: gpt-sample scores the shards as RUN's log, RUN.log, has validated them at its last
# step, and writes the same greedy texts one at a time and three.
samples_as_validated() {
    local loss
    loss=$(sed -n "s/^step:$2.*val_loss:\([0-9.]*\).*/\1/p" "$1.log")
    "$GPT_BIN/gpt-sample" -q -m "$1" --score -d "$SHARDS" > score
    awk -F'\t' -v a="$loss" 'NR == 2 { d = $5 + a; exit !(a && d <= 1e-4 && d >= -1e-4) }' score
    printf '%s\n' "a" "static int main" "The quick brown fox" > p
    for n in 1 3; do
        "$GPT_BIN/gpt-sample" -q -m "$1" -n 40 --ignore-end --json --temperature 0 --input p --batch $n > text.$n
    done
    cmp text.1 text.3
    [ "$(wc -l < text.1)" -eq 3 ]
}
