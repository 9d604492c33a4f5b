# gpt-train on several ranks: they agree with one another and with one rank.

bats_require_minimum_version 1.5.0
load tiny_runs

@test "after every step all ranks hold the same weights" {
    run --separate-stderr train --ranks 4 -s precision.check_weights=yes -s schedule.steps=6
    [ "$status" -eq 0 ]
    [ "$(grep -c '^step:[0-9]*/8 train_loss' <<< "$output")" -eq 8 ]
}

# bats test_tags=long
@test "early reductions, late gathers and padding kept at home change no bit" {
    local dir=$BATS_TEST_TMPDIR late="mlp ve1 ve2 ve0 lm_head embed attn"
    sed '/^\[parameters\]/,/^\[/s/ no$/ yes/' "$GPT_SHARE/recipes/tiny.recipe" > "$dir/early.recipe"
    train --ranks 4 -o "$dir/a" > "$dir/a.log"
    train --ranks 4 -o "$dir/b" -r "$dir/early.recipe" -s order.late="$late" -s order.padding=no \
        -s precision.check_weights=yes > "$dir/b.log"
    diff <(losses "$dir/a.log") <(losses "$dir/b.log")
    for rank in 0 1 2 3; do
        cmp "$dir/a/step-000011/rank$rank.safetensors.zst" "$dir/b/step-000011/rank$rank.safetensors.zst"
    done
    run ! cmp -s "$dir/a/step-000011/recipe.txt" "$dir/b/step-000011/recipe.txt"
}

# bats test_tags=long
@test "1, 2, 4 and 8 ranks agree to 1e-5 over 20 steps" {
    f32_recipe > "$BATS_TEST_TMPDIR/f32.recipe"
    for n in 1 2 4 8; do
        train -r "$BATS_TEST_TMPDIR/f32.recipe" -s optimizer.polar=f32 -s schedule.steps=18 \
            --ranks $n > "$BATS_TEST_TMPDIR/$n.log"
    done
    for n in 2 4 8; do
        run worst_difference "$BATS_TEST_TMPDIR/1.log" "$BATS_TEST_TMPDIR/$n.log"
        echo "$n ranks: steps, difference in 1e-7: $output"
        [ "${lines[0]% *}" -eq 20 ]
        [ "${lines[0]#* }" -le 100 ]
    done
}

# bats test_tags=long
@test "adam_every = 3: ranks agree when head and embedding part" {
    f32_recipe > "$BATS_TEST_TMPDIR/f32.recipe"
    for n in 1 4; do
        train -r "$BATS_TEST_TMPDIR/f32.recipe" -s optimizer.polar=f32 -s optimizer.adam_every=3 \
            -s precision.check_weights=yes --ranks $n > "$BATS_TEST_TMPDIR/$n.log"
    done
    run worst_difference "$BATS_TEST_TMPDIR/1.log" "$BATS_TEST_TMPDIR/4.log"
    [ "${lines[0]% *}" -eq 11 ]
    [ "${lines[0]#* }" -le 100 ]
}

# bats test_tags=long
@test "3, 4, 7 and 42 ranks train as one does: uneven shares, a resume on other ranks" {
    set=(-s data.chunks=42 -s "stages.0=672 3 512 1 1,0.5,0.25>0" -s "stages.1=672 7 512 1.52 1,0.5>0"
         -s "stages.2=1344 11 512 1.73 1" -s "stages.3=1344 13 512 - 1") # 16 and 32 tokens a chunk
    f32 "normuon sharded - 0.95" --ranks 1 "${set[@]}" > 1.log
    for n in 3 4 7 42; do
        f32 "normuon sharded - 0.95" --ranks $n "${set[@]}" -o out$n > $n.log
        agree 1.log $n.log 20
    done
    "$GPT_BIN/gpt-train" --resume out42/step-000010 -d "$SHARDS" -q --threads 1 --ranks 3 -o resumed > resumed.log
    agree <(sed -n '/^step:11\//,$p' 1.log) resumed.log 10
}
