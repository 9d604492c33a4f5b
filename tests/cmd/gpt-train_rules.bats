# The rules of gpt-train's optimizer and the forms of its model: 1, 3 and 4 ranks, and a resumed run.

bats_require_minimum_version 1.5.0
load tiny_runs
load few_steps

# 6 micro-batches, uneven shares of 4 ranks
SIX=(-s data.chunks=6)

# bats test_tags=long
@test "muon, sgd, normuon>adam and normuon+adam: 1, 3 and 4 ranks; a resume across the change" {
    set=("${SIX[@]}" -s optimizer.mixed_adam_lr=0.1 -s optimizer.change=12 -s optimizer.change_moments=8 -s "optimizer.blend=0>0.5"
         -s "optimizer.blend_span=4>14")
    for rule in "muon sharded - -" "sgd sharded - -" "normuon>adam sharded 0.9 0.95" "normuon+adam sharded 0.9 0.95"; do
        f32 "$rule" --ranks 1 "${set[@]}" -o one > 1.log
        f32 "$rule" --ranks 3 "${set[@]}" -o three > 3.log
        f32 "$rule" --ranks 4 "${set[@]}" > 4.log
        agree 1.log 3.log 20
        agree 1.log 4.log 20
        run diff <(losses 1.log) <(losses "${last:-/dev/null}")
        [ "$status" -eq 1 ] # another rule, another curve
        cp 1.log last.log && last=last.log
        resumes three 3.log
        "$GPT_BIN/gpt-ckpt" verify --full again/step-000020 > /dev/null
        rm -r one three again
    done
}

# bats test_tags=long
@test "tied_mix over the steps, untie at a step with and without state, data.repeat: 1, 3 and 4 ranks; a resume across them" {
    set=("${SIX[@]}" -s order.tied_mix="0.5>-1" -s schedule.untie=12 -s data.repeat=4)
    for state in zero carry; do
        f32 "normuon sharded - 0.95" --ranks 1 "${set[@]}" -s schedule.untie_state=$state > 1.log
        for n in 3 4; do
            f32 "normuon sharded - 0.95" --ranks $n "${set[@]}" -s schedule.untie_state=$state -o $state-$n > $n.log
            agree 1.log $n.log 20
        done
        resumes $state-3 3.log
        cp 1.log $state.log
    done
    # Until Adam's first step after the untie step, 13, they are the same run.
    diff <(losses zero.log | head -n 16) <(losses carry.log | head -n 16)
    run diff <(losses zero.log) <(losses carry.log)
    [ "$status" -eq 1 ]
    f32 "normuon sharded - 0.95" "${set[@]}" -s order.tied_mix=0.5 -s schedule.untie_state=carry > constant.log
    run diff <(losses constant.log | head -n 12) <(losses carry.log | head -n 12)
    [ "$status" -eq 1 ]
}

# bats test_tags=long
@test "order.tied_mix = 0 ignores the embedding's gradient, as a mix near 0 almost does" {
    last() { few -s order.tied_mix="$1" -s schedule.untie=2 | sed -n 's/^step:6.*val_loss:\([^ ]*\).*/\1/p'; }
    for mix in 0 1e-9 0.5 1 -1; do
        eval "m_${mix//[-.]/_}=$(last $mix)"
    done
    echo "$m_0 $m_1e_9 $m_0_5 $m_1 $m__1"
    [ "$m_0" = "$m_1e_9" ] # the product is below the rounding of the sum
    [ "$m_0" != "$m_0_5" ] && [ "$m_0_5" != "$m_1" ] && [ "$m__1" != "$m_0" ]
}

# bats test_tags=long
@test "a layer attends with a spare matrix of the MLP bank: 1, 3 and 4 ranks, early and late, resume, export" {
    set=(-s data.chunks=6 -s model.mlp_width=128 -s "layers.6=plain mlp:22 short no - - 9 6")
    early=(-s "parameters.mlp=24,f,d f32 uniform:0.5,zero normuon sharded - 0.95 1,2 1 yes" -s order.late="mlp attn" -s order.padding=no)
    f32 "normuon sharded - 0.95" --ranks 1 "${set[@]}" > 1.log
    f32 "normuon sharded - 0.95" --ranks 3 "${set[@]}" -o three > 3.log
    f32 "normuon sharded - 0.95" --ranks 4 "${set[@]}" "${early[@]}" > 4.log
    agree 1.log 3.log 20
    agree 1.log 4.log 20
    f32 "normuon sharded - 0.95" --ranks 1 -s data.chunks=6 -s model.mlp_width=128 > none.log
    run diff <(losses 1.log) <(losses none.log)
    [ "$status" -eq 1 ]
    resumes three 3.log
    "$GPT_BIN/gpt-ckpt" verify --full three/step-000020 > /dev/null
    "$GPT_BIN/gpt-ckpt" ls three/step-000020 > ls.txt
    grep -q "layers.6.attn.qkvo" ls.txt
    grep -q "mlp.padding.23" ls.txt
    run ! grep "mlp.padding.22" ls.txt
    # As many parameters as without.
    f32 "normuon sharded - 0.95" --plan "${set[@]}" > with.plan
    f32 "normuon sharded - 0.95" --plan -s data.chunks=6 -s model.mlp_width=128 > without.plan
    diff <(awk '/^(attn|mlp) /' with.plan) <(awk '/^(attn|mlp) /' without.plan)
}

# bats test_tags=long
@test "a narrow embedding as further inputs of the gates: 1, 3 and 4 ranks, a resume" {
    all=$(sed -n 's/^scatter = //p' "$GPT_SHARE/recipes/tiny.recipe")
    set=(-s data.chunks=6 -s model.gate_table=8 -s "parameters.gate_table=v,8 f32 normal:0.1 adam sharded 0.9 0.95 1 0 no"
         -s "parameters.attn_gate_bank=10,h,20 f32 zero adam replicated 0.9 0.99 1 1 no"
         -s "parameters.ve_gate_bank=5,h,20 f32 zero adam replicated 0.9 0.99 1 1 no" -s "order.scatter=$all gate_table"
         -s "order.work=$all gate_table" -s order.late=gate_table)
    f32 "normuon sharded - 0.95" --ranks 1 "${set[@]}" > 1.log
    for n in 3 4; do
        f32 "normuon sharded - 0.95" --ranks $n "${set[@]}" -o out$n > $n.log
        agree 1.log $n.log 20
    done
    f32 "normuon sharded - 0.95" --ranks 1 -s data.chunks=6 > none.log
    run diff <(losses 1.log) <(losses none.log)
    [ "$status" -eq 1 ]
    resumes out3 3.log
    "$GPT_BIN/gpt-ckpt" verify --full out3/step-000020 > /dev/null
    "$GPT_BIN/gpt-ckpt" ls out3/step-000020 | grep -q "gate_table"
}

# bats test_tags=long
@test "data.repeat: all steps on one batch bring its loss down as no new batches do" {
    # a model large enough to learn 256 tokens by heart
    last() {
        f32 "normuon sharded - 0.95" -s model.head_dim=32 -s model.mlp_width=256 -s "stages.0=256 3 256 1 1" \
            -s "stages.1=256 7 256 1.52 1" -s "stages.2=256 7 256 1.73 1" -s "stages.3=256 7 256 - 1" \
            -s data.checkpoint_every=0 -s schedule.steps=60 -s data.repeat=$1 | losses /dev/stdin | tail -1 | sed 's/.*://'
    }
    one=$(last 62) new=$(last 1)
    echo "last loss on one batch $one, on new ones $new"
    awk -v a="$one" -v b="$new" 'BEGIN { exit !(a < b - 0.5) }'
}

# bats test_tags=long
@test "AOL in place of the norm, the Gram form: 1, 2 and 3 ranks; AOL only with rows that are made for it" {
    aol=(-s data.chunks=6 -s optimizer.aol=yes -s optimizer.coeffs="$GPT_SHARE/coeffs/aol-4.coeffs")
    f32 "normuon sharded - 0.95" --ranks 1 "${aol[@]}" > 1.log
    for n in 2 3; do
        f32 "normuon sharded - 0.95" --ranks $n "${aol[@]}" > $n.log
        agree 1.log $n.log 20
    done
    rounded() { awk '/^coeffs = / { for (i = 4; i <= NF; i++) if ($i != "/") printf "%.9g\n", $i }' "$1"; }
    diff <(rounded 1.log) <(rounded "$GPT_SHARE/recipes/turbo-muon.recipe") # whose table is the file
    [ "$(rounded 1.log | wc -l)" -eq 12 ]
    run --separate-stderr train -s optimizer.aol=yes
    [ "$status" -eq 2 ]
    [[ $stderr = *'optimizer.coeffs'*'scaled by its norm, and aol = yes'* ]]
    run --separate-stderr train -s optimizer.coeffs="$GPT_SHARE/coeffs/aol-4.coeffs"
    [ "$status" -eq 2 ]
    [[ $stderr = *'optimizer.coeffs'*'parameters.attn: the rows are for input that AOL scales: expected aol behind them'* ]]
    run --separate-stderr train -s "rules.mine=lr 0.02 | momentum 0.95 | polar turbo-muon | step"
    [ "$status" -eq 2 ]
    [[ $stderr = *'rules.mine=lr'*'the rows are for input that AOL scales'* ]]
    train --plan -s optimizer.coeffs="$GPT_SHARE/coeffs/aol-4.coeffs" \
        -s "rules.mine=lr 0.02 | momentum 0.95 | polar \$coeffs aol | step" -s parameters.attn.rule=mine -s parameters.mlp.rule=mine > /dev/null
    # The Gram form is the same but for rounding, in f32 and with AOL, too.
    f32 "normuon sharded - 0.95" --ranks 1 "${aol[@]}" -s optimizer.polar_form=gram > gram.log
    agree 1.log gram.log 20
    f32 "normuon sharded - 0.95" --ranks 3 "${aol[@]}" -s optimizer.polar_form=gram > gram3.log
    agree gram.log gram3.log 20
    run --separate-stderr train -s optimizer.polar_form=gram -s optimizer.restart=2,5
    [[ $stderr = *'optimizer.restart'*'the table has 5 rows'* ]]
    # The recipe is record 61's but for these lines.
    run diff <(grep -v '^#' "$GPT_SHARE/recipes/record-61.recipe") <(grep -v '^#' "$GPT_SHARE/recipes/turbo-muon.recipe")
    [ "$(grep -c '^[<>]' <<<"$output")" -eq 5 ]
}

# RULES of the environment: the lines that run; all: every one.
# bats test_tags=long
@test "published lines by name: 1, 3 and 4 ranks; resumed to the bit, resharded; a zero start is refused" {
    rules=${RULES:-skylight muown}
    [ "$rules" != all ] || rules=$("$GPT_BIN/gpt-train" --rules | sed -n 's/^\([^# ]*\) = .*/\1/p')
    # none begins at zero
    set=(-s data.chunks=6 -s schedules.s="warmup 5 cooldown 0.5" -s parameters.mlp.init=uniform:0.5
         -s parameters.attn.init=uniform:1 -s parameters.mlp.schedule=s)
    for rule in $rules; do
        echo "$rule"
        for n in 1 3 4; do
            f32 "$rule sharded - -" --ranks $n "${set[@]}" -o out$n > $n.log
            agree 1.log $n.log 20
        done
        grep -q "^$rule = lr" 1.log # the log has the line
        run diff <(losses 1.log) <(losses "${last:-/dev/null}")
        [ "$status" -eq 1 ]
        cp 1.log last.log && last=last.log
        resumes out3 3.log
        "$GPT_BIN/gpt-ckpt" verify --full again/step-000020 > /dev/null
        "$GPT_BIN/gpt-ckpt" stat again/step-000020 > /dev/null
        # written for 2 ranks, and back: the same weights and states
        "$GPT_BIN/gpt-ckpt" reshard -q out3/step-000010 -o two --ranks 2
        "$GPT_BIN/gpt-train" --resume two/step-000010 -d "$SHARDS" -q --threads 1 --ranks 3 -o back > back.log
        diff <(losses resumed.log) <(losses back.log)
        diff -r again/step-000020 back/step-000020
        rm -r out1 out3 out4 again two back
    done
    run --separate-stderr train -s parameters.mlp.rule=muonh
    [ "$status" -eq 2 ]
    [[ $stderr = *"hyperball of muonh keeps the norm that the weight starts with"* ]]
    run --separate-stderr "$GPT_BIN/gpt-train" --rules
    [ "$status" -eq 0 ] && [ -z "$stderr" ]
    [[ $output = *$'\nskylight = lr 0.0375 | momentum'* ]]
}

# bats test_tags=long
@test "an average beside the weights, schedule-free: validation and gpt-sample read it; 1 and 3 ranks; a resume" {
    set=(-s data.chunks=6 -s order.tied=- -s optimizer.adam_every=1 -s data.val_tokens=2048 -s data.val_chunk=256 -s data.val_every=5
         -s "stages.0=1344 3 512 1 1,0.5,0.25>0" -s "stages.1=1344 7 512 1.52 1,0.5>0" -s "stages.2=2688 11 512 1.73 1"
         -s "stages.3=2688 13 512 - 1") # more tokens, less noise
    f32 "normuon sharded - 0.95" "${set[@]}" > none.log
    for around in "average tail 4 from 4 blend 0.6 except embed" "free 0.9"; do
        for n in 1 3; do
            f32 "normuon sharded - 0.95" --ranks $n "${set[@]}" -s rules.around="$around" -o out$n > $n.log
            agree 1.log $n.log 20
        done
        resumes out3 3.log
        cp 3.log out3.log
        samples_as_validated out3 20
        "$GPT_BIN/gpt-ckpt" verify --full out3/step-000020 > /dev/null
        f32 "normuon sharded - 0.95" --plan "${set[@]}" -s rules.around="$around" > plan
        grep -qx "around = $around" plan
        grep -qE "^ *(wait, )?update, around" plan
        # An average changes no step, and the validations behind its first.
        [ "${around%% *}" = free ] || diff <(losses 1.log | grep train) <(losses none.log | grep train)
        diff <(losses 1.log | grep -m 1 val) <(losses none.log | grep -m 1 val)
        run diff <(losses 1.log | grep val | tail -n 1) <(losses none.log | grep val | tail -n 1)
        [ "$status" -eq 1 ]
        rm -r out* again
    done
    # Weights that the model reads in bf16, far enough from the average.
    "$GPT_BIN/gpt-train" -q -r bench-small -d "$SHARDS" --ranks 2 -s rules.around="free 0.9" -s data.val_tokens=2048 \
        -s data.val_chunk=1024 -s data.val_every=0 -s data.cycle=yes -s "stages.0=512 8 256 1 1" -s "stages.1=512 8 256 - 1" \
        -s schedule.steps=20 -s parameters.mlp.dtype=f32/bf16 -s model.head_dim=32 -s model.mlp_width=128 -o two > two.log
    samples_as_validated two 20
    refused 2 "lm_head and embed are tied" gpt-train -r tiny --plan -s optimizer.adam_every=1 -s precision.adam_master=none -s rules.around="free 0.9"
}

@test "a line of one's own on a bank, tables in f16 and e4m3, a vector and the tied head: 1 and 3 ranks, a resume" {
    row() { echo "$1 $2 $3 mine $4 - - 1 1 no"; }
    set=(-s data.chunks=6 -s "rules.mine=lr 0.05 | momentum 0.8>0.95@0-9 nesterov | scale 2 | step | decay 0.1 strict"
         -s "parameters.ve0=$(row v,d e4m3 normal:0.1 sharded)" -s "parameters.ve1=$(row v,d f16 normal:0.1 sharded)"
         -s "parameters.smear_gate=$(row 1,12 f32 zero replicated)" -s "parameters.lm_head=$(row d,v f32 normal:0.005 sharded)"
         -s "parameters.embed=$(row v,d f32 transpose:lm_head sharded)" -s schedule.untie=12)
    f32 "mine sharded - -" --ranks 1 "${set[@]}" > 1.log
    f32 "mine sharded - -" --ranks 3 "${set[@]}" -o three > 3.log
    agree 1.log 3.log 20
    resumes three 3.log
    "$GPT_BIN/gpt-ckpt" verify --full three/step-000020 > /dev/null
    "$GPT_BIN/gpt-ckpt" ls three/step-000020 > ls.txt
    for kind in ve0.master ve1.master ve0.momentum smear_gate.momentum embed.momentum; do grep -q "$kind" ls.txt; done
    run ! grep -q "ve0.exp_avg" ls.txt
    # A chain of stages moves a table only where none needs a whole matrix.
    run --separate-stderr train -s "parameters.ve0=v,d bf16 zero normuon sharded - 0.95 1 1 no"
    [ "$status" -eq 2 ]
    [[ $stderr = *"normuon is for banks, by its stage polar"* ]]
    run --separate-stderr train -s "parameters.embed=v,d bf16 transpose:lm_head sgd sharded - - 1 150 no"
    [ "$status" -eq 2 ]
    [[ $stderr = *"expected both of one type, rule and comms"* ]]
}

@test "the rule of a parameter set alone: columns that it has not go; what is no parameter or column is named" {
    run --separate-stderr "$GPT_BIN/gpt-train" --plan -r record-61 -s parameters.mlp.rule=skylight
    [ "$status" -eq 0 ]
    [[ $output = *"rule skylight = lr 0.0375"* ]]
    refused 2 "--set parameters.mlx.rule: the recipe has no parameter 'mlx'" gpt-train --plan -r record-61 -s parameters.mlx.rule=muon
    refused 2 "--set parameters.mlp.rull: expected a column of [parameters]: shape," gpt-train --plan -r record-61 -s parameters.mlp.rull=muon
    refused 2 "expected a beta in [0, 1), found '-'" gpt-train --plan -r record-61 -s parameters.mlp.rule=adam
    # The log's recipe has the row as it is then.
    few -s parameters.mlp.rule=muon > run.log
    grep -qE '^mlp .* muon sharded - - ' run.log
    "$GPT_BIN/gpt-train" --plan -r run.log > /dev/null
}
