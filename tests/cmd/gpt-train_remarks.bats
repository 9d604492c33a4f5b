# gpt-train says what a recipe is unlikely to mean, and runs it all the same.

bats_require_minimum_version 1.5.0
load few_steps

plan() { run --separate-stderr "$GPT_BIN/gpt-train" --plan "$@"; }
remarks() { grep '^remark: ' <<< "$output" || true; }

@test "recipes that are here have no remark" {
    for recipe in "$GPT_SHARE"/recipes/*.recipe; do
        plan -r "$recipe"
        [ "$status" -eq 0 ]
        [ -z "$(remarks)" ]
    done
}

@test "windows and sequences longer than a micro-batch, losses and rates of 0, coefficients that diverge" {
    plan -r record-61 -s "stages.0=131072 3 100000 1 1"     # of 16,384 tokens a micro-batch
    [ "$status" -eq 0 ]
    [ "$(remarks)" = "remark: stages.0: a sequence of 100000 tokens, and a micro-batch has 16384: no piece of a document is so long" ]
    plan -r record-61 -s "stages.1=131072 129 2048 1 1"
    [ "$(remarks)" = "remark: stages.1: windows of 16512 tokens, and a micro-batch has 16384: no token sees so far back in training" ]
    plan -r record-61 -s "stages.1=131072 128 16384 1 1"    # just so long
    [ -z "$(remarks)" ]
    plan -r record-61 -s "stages.1=131072 3 2048 1 0,0>0"
    [ "$(remarks)" = "remark: stages.1: all losses have weight 0: its steps train nothing" ]
    plan -r record-61 -s "stages.1=131072 3 2048 1 0,0>0.5" # it grows
    [ -z "$(remarks)" ]
    plan -r record-61 -s "stages.1=131072 3 2048 0 1"
    [ "$(remarks)" = "remark: stages.1: the learning rate is 0: its steps train nothing" ]
    plan -r record-61 -s "optimizer.coeffs=100 100 100"     # 100 + 100 + 100
    [ "$status" -eq 0 ]
    [ "$(remarks)" = "remark: optimizer.coeffs: singular values up to 1 become as large as 300, where 1 is wanted: ns-coeffs eval says more" ]
    plan -r record-61 -s "optimizer.coeffs=3.4445 -4.7750 2.0315"
    [ -z "$(remarks)" ]
    plan -r record-61 -s "stages.0=131072 3 100000 1 0,0>0" -s "stages.2=131072 3 200000 0 1"   # a line a kind
    [ "$(remarks)" = "remark: stages.0, 2: a sequence of up to 200000 tokens, and a micro-batch has 16384: no piece of a document is so long
remark: stages.0: all losses have weight 0: its steps train nothing
remark: stages.2: the learning rate is 0: its steps train nothing" ]
    plan -r record-61 -s schedule.lr_floor=0
    [[ $(remarks) = "remark: stages.3: the learning rate is 0: "* ]]
    plan -r record-61 -s schedule.lr_floor=0 -s schedule.extension=0
    [ -z "$(remarks)" ]
}

@test "rows of polar that rounding in bf16 makes diverge, of a rule or of the recipe" {
    local line='lr 0.02 | momentum 0.95 | polar paper | step'
    plan -r tiny -s "rules.mine=$line" -s parameters.mlp.rule=mine -s parameters.attn.rule=mine
    [ "$(remarks)" = "remark: rules.mine: these rows diverge from singular values of 1.000004 on, and bf16 moves them by 0.004: ns-coeffs polar makes rows with room, optimizer.polar=f32 needs none" ]
    plan -r tiny -s "rules.mine=$line" -s parameters.mlp.rule=mine -s optimizer.polar=f32
    [ -z "$(remarks)" ]
    plan -r tiny -s "rules.mine=${line/paper/jordan}" -s parameters.mlp.rule=mine
    [ -z "$(remarks)" ]
    "$GPT_BIN/ns-coeffs" show cans >"$BATS_TEST_TMPDIR/cans"
    plan -r tiny -s "optimizer.coeffs=$BATS_TEST_TMPDIR/cans"
    [[ $(remarks) = "remark: optimizer.coeffs: these rows diverge from singular values of 1.000008 on"* ]]
}

@test "a rule and a schedule of the rate that no parameter has" {
    plan -r tiny -s 'rules.mine=lr 0.02 | step' -s 'rules.both=mine then sgd at 0.9' -s 'schedules.late=warmup 10'
    [ "$(remarks)" = "remark: rules.both: no parameter has it: parameters.LABEL.rule=both gives it to one
remark: schedules.late: no parameter has it: parameters.LABEL.schedule=late gives it to one" ]
    plan -r tiny -s 'rules.mine=lr 0.02 | step' -s 'rules.both=mine then sgd at 0.9' -s 'schedules.late=warmup 10' \
        -s parameters.mlp.rule=both -s parameters.attn.schedule=late
    [ "$status" -eq 0 ]
    [ -z "$(remarks)" ]
}

@test "a run says the same on standard error, not with -q, and trains" {
    few_shards
    short=("${FEW[@]}" -s "stages.0=512 3 64 1 0" -s "stages.1=512 2 64 1 1" -s "stages.2=512 2 64 1 1"
           -s "stages.3=512 2 64 - 1")
    run --separate-stderr "$GPT_BIN/gpt-train" "${short[@]}"
    [ "$status" -eq 0 ]
    [ "$stderr" = "gpt-train: stages.0: windows of 96 tokens, and a micro-batch has 64: no token sees so far back in training
gpt-train: stages.0: all losses have weight 0: its steps train nothing" ]
    grep -q '^step:6/6 train_loss:' <<< "$output"
    run --separate-stderr "$GPT_BIN/gpt-train" "${short[@]}" -q
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    run --separate-stderr "$GPT_BIN/gpt-train" "${FEW[@]}" -s model.vocab=1024
    [ "$status" -eq 0 ]
    [ "${stderr_lines[-1]}" = "gpt-train: model.vocab is 1024, and the vocabulary of -d has 257 ids: other rows of embedding and head are of no token" ]
}
