# gpt-train: gradients that wait for an update when a run ends are kept, and used by a run that goes on.

bats_require_minimum_version 1.5.0
load tiny_runs
load run_ends

# A schedule that is the same for any number of steps, with all in f32: ranks, and what is put aside, differ by the order
# of f32 sums alone, 2^-24 each, grown over a few steps.
setup_file() {
    make_shards
    f32_recipe > "$BATS_FILE_TMPDIR/my.recipe"
    sed 's/ bf16 / f32  /; s/^head_fp8 = .*/head_fp8 = no/' "$GPT_SHARE/recipes/record-74.recipe" > "$BATS_FILE_TMPDIR/r74.recipe"
}
EVEN=(-s model.vocab=272 -s model.head_dim=16 -s model.mlp_width=64 -s optimizer.polar=f32
      -s schedule.extension=0 -s schedule.cooldown=0 -s schedule.momentum_low=0.9 -s schedule.momentum_high=0.9 -s schedule.final_window=3
      -s data.val_tokens=0 -s data.checkpoint_every=0 -s "stages.0=672 3 512 1 1,0.5" -s "stages.1=672 3 512 1 1,0.5"
      -s "stages.2=672 3 512 1 1,0.5" -s "stages.3=672 3 512 - 1,0.5")
RECIPE=$BATS_FILE_TMPDIR/my.recipe
even() { "$GPT_BIN/gpt-train" -q -r "$RECIPE" "${EVEN[@]}" -d "$SHARDS" --threads 1 "$@"; }
ckpt() { "$GPT_BIN/gpt-ckpt" "$@"; }

# The training losses of the second log are those of the first one's last steps: so many, to 1e-5.
follows() { # LOG LOG COUNT
    diff <(losses "$1" | tail -n "$3" | cut -d : -f 1,2) <(losses "$2" | cut -d : -f 1,2)
    read -r lines worst < <(worst_difference <(losses "$1" | tail -n "$3") "$2")
    echo "$lines steps, worst difference $worst e-7"
    [ "$lines" -eq "$3" ] && [ "$worst" -le 100 ]
}

# bats test_tags=long
@test "a run that gets more steps agrees with the longer one, on 1 to 3 ranks, tied and untied, with masters, resharded" {
    for it in "2 1 1 3" "2 3 1 100" "3 2 3 3"; do
        read -r every ranks next untie <<< "$it"
        keys=(-s optimizer.adam_every="$every" -s schedule.untie="$untie")
        rm -rf short cut
        even "${keys[@]}" --ranks $ranks -s schedule.steps=10 -o whole > whole.log
        even "${keys[@]}" --ranks $ranks -s schedule.steps=5 -o short > short.log
        ckpt verify --full short
        ckpt reshard -q --ranks $next short -o cut
        ckpt verify --full cut
        "$GPT_BIN/gpt-train" -q --resume cut -d "$SHARDS" --threads 1 --ranks $next -s schedule.steps=10 -o rest > rest.log
        follows whole.log rest.log 5
        # in the middle, and on one rank: no sum in another order
        if [ "$ranks$next" = 11 ]; then
            diff -r -x MANIFEST -x recipe.txt whole/step-000010 rest/step-000010
        fi
        # 10 is a multiple of 2
        [ -z "$(ckpt stat rest/step-000010 | grep '\.gradient')" ] || [ $every != 2 ]
        rm -rf whole rest
    done
}

# bats test_tags=long
@test "tied tables with masters, whose move needs the gradients' memory; bf16 gradients; a sparse table" {
    keys=(-s schedule.untie=100 -s precision.adam_master=f32)
    RECIPE=$GPT_SHARE/recipes/tiny.recipe
    for ranks in 1 3; do
        even "${keys[@]}" --ranks $ranks -s schedule.steps=4 -o whole$ranks > whole.log
        even "${keys[@]}" --ranks $ranks -s schedule.steps=3 -o short$ranks > /dev/null
        "$GPT_BIN/gpt-train" -q --resume short$ranks -d "$SHARDS" --threads 1 --ranks $ranks -s schedule.steps=4 -o rest$ranks > rest.log
        # one step, of the same weights: its loss has the same bits; then nothing but the order of sums
        diff <(losses whole.log | tail -n 1) <(losses rest.log)
        ckpt diff --tolerance 1e-2 whole$ranks rest$ranks
    done
    diff -r -x MANIFEST -x recipe.txt whole1/step-000004 rest1/step-000004
    ckpt diff --tolerance 2e-2 short1 short3 '*.gradient'
    RECIPE=$BATS_FILE_TMPDIR/r74.recipe
    keys=(-s model.bigram_rows=496 -s model.heads=2 -s model.head_dim=32 -s model.block=32 -s data.cycle=yes -s data.bos=-1
          -s schedule.untie=100)
    for ranks in 1 2; do
        even "${keys[@]}" --ranks $ranks -s schedule.steps=6 > whole.log
        even "${keys[@]}" --ranks $ranks -s schedule.steps=3 -o sparse$ranks > /dev/null
        "$GPT_BIN/gpt-train" -q --resume sparse$ranks -d "$SHARDS" --threads 1 --ranks $((3 - ranks)) -s schedule.steps=6 > rest.log
        follows whole.log rest.log 3
    done
    ckpt diff --tolerance 1e-4 sparse1 sparse2 '*.gradient'
}

# After one step from the same weights Adam's first moment is 1 - beta1 times the gradient; beta1 is 0.5 of the head, 0.9 of
# scalars. Untied, since the reduction of a tied head's adds the embedding's.
@test "what is kept is the gradient, without its scale, for any number of ranks" {
    sed 's/^tied = .*/tied = -/; s/transpose:lm_head/normal:0.005/' "$RECIPE" > untied.recipe
    RECIPE=untied.recipe
    numbers() { ckpt cat "$1" "$2" | tr -s ' \t' '\n'; }
    even -s schedule.steps=1 -s optimizer.adam_every=1 -o moved > /dev/null
    for it in "1 1" "3 1" "2 4096"; do
        read -r ranks scale <<< "$it"
        even -s schedule.steps=1 -s optimizer.adam_every=2 --ranks $ranks -s optimizer.loss_scale=$scale -o run$ranks > /dev/null
        for of in "lm_head 0.5 8704" "scalars 0.1 36"; do
            read -r label rest count <<< "$of"
            paste <(numbers run$ranks $label.gradient) <(numbers moved $label.exp_avg) |
                awk -v rest=$rest -v count=$count '{ d = $1 * rest - $2; if (d < 0) d = -d; m = $2 < 0 ? -$2 : $2
                                                    if (m > most) most = m; if (!(d <= worst)) worst = d }
                                                  END { exit !(NR == count && most > 0 && worst <= most * 1e-5) }'
        done
    done
    RECIPE=$BATS_FILE_TMPDIR/my.recipe
    # which is applied with the scale that the recipe has then
    even -s schedule.steps=6 -o whole > whole.log
    even -s schedule.steps=3 -s optimizer.loss_scale=4096 -o scaled > /dev/null
    "$GPT_BIN/gpt-train" -q --resume scaled -d "$SHARDS" --threads 1 -s optimizer.loss_scale=0.25 -s schedule.steps=6 > rest.log
    follows whole.log rest.log 3
}

# bats test_tags=long
@test "the end of the data between two updates: the last step is kept, and more data go on" {
    make_documents
    once=(-d "$DOCS" -s data.cut=document -s optimizer.adam_every=4 -s data.bos=256 -s schedule.steps=40)
    run --separate-stderr even "${once[@]}" -s data.cycle=no -o run
    [ "$status" -eq 3 ]
    last=$(sed -n 's/^step:\([0-9]*\)\/.*/\1/p' <<< "$output" | tail -n 1)
    [ $((last % 4)) -ne 0 ]
    echo "$stderr"
    [[ $stderr == "gpt-train: "*"is used up"*"; go on from step $last with --resume run" ]]
    ckpt verify --full run
    even "${once[@]}" -s data.cycle=yes > whole.log
    "$GPT_BIN/gpt-train" -q --resume run -d "$DOCS" --threads 1 --ranks 2 -s data.cycle=yes > rest.log
    follows whole.log rest.log $((40 - last))
}

@test "the plan names what waits; a recipe in which nothing waits there says so; without gradients it begins at zero" {
    run --separate-stderr even -s schedule.steps=7 --plan
    [[ $output == *"after the last step, 7, gradients wait for an update that the run does not reach: scalars ve0 ve1 ve2 "*" lm_head embed; "* ]]
    run --separate-stderr even -s schedule.steps=8 --plan
    [[ $output != *"gradients wait"* ]]
    even -s schedule.steps=7 -o run > /dev/null
    [ "$(ckpt stat --format tsv run | grep -c '^lm_head.gradient')" -eq 1 ]
    run --separate-stderr "$GPT_BIN/gpt-train" -q --resume run -d "$SHARDS" -s schedule.steps=8 -s optimizer.adam_every=1
    [ "$status" -eq 0 ]
    [[ ${stderr_lines[0]} == "gpt-train: resume: 'scalars.gradient', which waits in the checkpoint of step 7, is not used: with an update every 1 step nothing waits there" ]]
    even -s schedule.steps=7 -s optimizer.adam_every=1 -o none > /dev/null
    run ! grep -q '\.gradient' none/step-000007/MANIFEST
    run --separate-stderr "$GPT_BIN/gpt-train" -q --resume none -d "$SHARDS" -s schedule.steps=8 -s optimizer.adam_every=2
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
}

# A head of zeros, of logits in units of 1e-12: the loss is ln 272, and its gradient in this scale beyond f32.
@test "gradients that are not finite are not kept, and the checkpoint is" {
    sed 's/^tied = .*/tied = -/; s/^\(lm_head .*\)normal:0.005 /\1zero /; s/^\(embed .*\)transpose:lm_head /\1normal:0.005 /' "$RECIPE" > far.recipe
    RECIPE=far.recipe
    for ranks in 1 2; do
        run --separate-stderr even -s "model.softcap=23 0 1e-12" -s schedule.steps=1 -s optimizer.loss_scale=1e30 -s optimizer.max_skips=1 \
            --ranks $ranks -o run$ranks
        [ "$status" -eq 0 ]
        [ "$stderr" = "gpt-train: step 1: gradients that wait for the next update are not finite: they are not kept" ]
        ckpt verify --full run$ranks
        run ! grep -q '\.gradient' run$ranks/step-000001/MANIFEST
    done
}
