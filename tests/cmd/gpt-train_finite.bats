# Numbers that are not finite, or large, in gpt-train: losses, gradients, their norm.

bats_require_minimum_version 1.5.0
load tiny_runs

@test "a loss that is not finite stops the run, names step and tensor, keeps the checkpoint" {
    run --separate-stderr train --ranks 2 -s optimizer.adam_lr=900 -s optimizer.muon_lr=900 \
        -s data.checkpoint_every=2 -s precision.gradients=f32 -o "$BATS_TEST_TMPDIR/run"
    [ "$status" -eq 5 ]
    [[ "$stderr" =~ ^gpt-train:\ rank\ [01],\ .*step\ [0-9]+:\ training\ loss\ is\ nan\;\ (all\ weights\ and\ optimizer\ states\ are\ finite|\'[a-z0-9_.]+\'\ is\ not\ finite\ since\ step\ [0-9]+)\;\ try\ .*\;\ go\ on\ from\ step\ [0-9]+\ with ]]
    "$GPT_BIN/gpt-ckpt" verify --full "$BATS_TEST_TMPDIR"/run/step-*
    "$GPT_BIN/gpt-ckpt" stat --format=tsv "$BATS_TEST_TMPDIR"/run/step-* |
        awk -F '\t' 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "nonfinite") c = i; next } $c != 0 { bad = 1 } END { exit bad || NR < 2 }'
}

# bats test_tags=long
@test "a loss scale of a power of two and a clip that is not reached change no bit on 1 and 4 ranks" {
    for n in 1 4; do
        train --ranks $n -o off$n > off$n.log
        train --ranks $n -s optimizer.loss_scale=4096 -s optimizer.clip=1e6 -s optimizer.max_skips=2 -o on$n > on$n.log
        diff <(losses off$n.log) <(losses on$n.log)
        diff -r -x MANIFEST -x recipe.txt off$n/step-000011 on$n/step-000011
    done
    train -s optimizer.clip=0.01 > clipped.log
    # the norm of step 1 before clipping: the same as without, and as that of gradients 2^10 times as large
    for key in clip=1e30 loss_scale=1024; do
        train -s optimizer.$key > norm.log
        [ "$(grep -oE 'grad_norm:[0-9.e+-]+' norm.log | wc -l)" -eq 11 ]
        [ "$(grep -oE -m1 'grad_norm:[^ ]+' norm.log)" = "$(grep -oE -m1 'grad_norm:[^ ]+' clipped.log)" ]
    done
    run ! grep -q grad_norm off1.log
    run diff <(losses off1.log) <(losses clipped.log)
    [ "$status" -eq 1 ]
}

# With this scale the squares of the gradients overflow in every step.
# bats test_tags=long
@test "a step whose gradients are not finite is skipped and counted, and too many in a row end the run" {
    train --ranks 2 -s optimizer.loss_scale=1e28 -s optimizer.max_skips=11 > all.log
    [ "$(grep -o '^step:[0-9]*/11 skipped:[0-9]*' all.log)" = "$(for i in $(seq 11); do echo "step:$i/11 skipped:$i"; done)" ]
    run ! grep -q train_loss all.log
    [ "$(grep -o '^step:0/11 val_loss:[0-9.]*' all.log | cut -d: -f3)" != "" ]
    run --separate-stderr train --ranks 2 -s optimizer.loss_scale=1e28 -s optimizer.max_skips=3
    [ "$status" -eq 5 ]
    [ "$(grep -c skipped: <<<"$output")" -eq 3 ]
    [[ "$stderr" == *"step 4: the gradients are not finite; steps skipped in a row: 4, at most optimizer.max_skips = 3; all weights and optimizer states are finite; try a smaller optimizer.loss_scale" ]]
}

# Scalars whose gradient is 0 in the first steps become 0 / 0 in Adam's first update, and the loss of the next step, from
# which all else follows, with them.
# bats test_tags=long
@test "the first weight that is not finite is named, with the step in which it arose, on any rank, with skips and without" {
    why="'scalars.weight' is not finite since step"
    try="; try an optimizer.adam_eps above 0, 1e-10 for example"
    for every in 1 2 3; do
        for n in 1 3; do
            run --separate-stderr train --ranks $n -s optimizer.adam_eps=0 -s optimizer.adam_every=$every -s data.checkpoint_every=0
            [ "$status" -eq 5 ]
            [[ $stderr == "gpt-train: "*"step $((every + 1)): training loss is nan; $why $every$try" ]]
            run --separate-stderr train --ranks $n -s optimizer.adam_eps=0 -s optimizer.adam_every=$every -s data.checkpoint_every=0 \
                -s optimizer.max_skips=2
            [ "$status" -eq 5 ]
            [[ $stderr == "gpt-train: "*"step "*": the gradients are not finite; steps skipped in a row: 3, at most optimizer.max_skips = 2; $why $every$try" ]]
        done
    done
    # the checkpoint before is sound, and the message names it
    run --separate-stderr train -s optimizer.adam_eps=0 -s optimizer.adam_every=3 -s data.checkpoint_every=3 -o run
    [[ $stderr == "gpt-train: after step 3: 'scalars.weight' is not finite; no checkpoint is written$try; lost: steps 1 to 3" ]]
    train -s schedule.steps=2 -s schedule.extension=2 -o sound > /dev/null
    run --separate-stderr resume --resume sound -s schedule.steps=9 -s optimizer.adam_lr=1000 -s optimizer.muon_lr=1000 -o sound
    [ "$status" -eq 5 ]
    [[ $stderr == "gpt-train: step "*"; go on from step 4 with --resume sound"* ]]
}

# bats test_tags=long
@test "optimizer.grad_norm: the norm in the log, which clip has in any case, and no other bit" {
    train -o without > without.log
    train -s optimizer.grad_norm=yes -o with > with.log
    train -s optimizer.clip=1e30 > clip.log
    diff <(grep -o 'grad_norm:[^ ]*' with.log) <(grep -o 'grad_norm:[^ ]*' clip.log)
    [ "$(grep -c '^step:[0-9]*/11 train_loss:[0-9.]*\( next_loss:[0-9.]*\)\? grad_norm:[0-9.e+-]* train_time:' with.log)" -eq 11 ]
    run ! grep -q grad_norm: without.log
    diff -r -x MANIFEST -x recipe.txt without/step-000011 with/step-000011
    # the key is in recipes that have it alone, so that hashes of others stay
    run ! grep -q grad_norm without/step-000011/recipe.txt
    grep -q '^grad_norm = yes$' with/step-000011/recipe.txt
    run --separate-stderr train -s optimizer.grad_norm=yes -s optimizer.loss_scale=1e28
    [ "$status" -eq 5 ]
    [[ $stderr == "gpt-train: step 1: the gradients are not finite; "* ]]
}

# bats test_tags=long
@test "a NaN in the log has no sign" {
    train -s optimizer.max_skips=99 -s optimizer.adam_eps=0 > nan.log
    grep -q '^step:5/11 val_loss:nan train_time:' nan.log
    run ! grep -q -- -nan nan.log
}
