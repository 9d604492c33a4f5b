# The states of gpt-train's optimizer in each of their types: resumed, resharded, exported, imported.

bats_require_minimum_version 1.5.0
load tiny_runs
load ../check/masters

# bats test_tags=long
@test "Adam's moments in bf16: nearly the same losses, resumed to the same bits" {
    train -o "$BATS_TEST_TMPDIR/f32" > "$BATS_TEST_TMPDIR/f32.log"
    train -s precision.adam_states=bf16 --keep 0 -o "$BATS_TEST_TMPDIR/bf16" > "$BATS_TEST_TMPDIR/bf16.log"
    run worst_difference "$BATS_TEST_TMPDIR/f32.log" "$BATS_TEST_TMPDIR/bf16.log"
    [ "${output% *}" -eq 11 ]
    [ "${output#* }" -gt 0 ]
    [ "${output#* }" -le 100000 ]       # 1%: nine bits a store, over few updates
    resume --resume "$BATS_TEST_TMPDIR/bf16/step-000004" -o "$BATS_TEST_TMPDIR/again" > /dev/null
    same_checkpoint "$BATS_TEST_TMPDIR/bf16/step-000011" "$BATS_TEST_TMPDIR/again/step-000011"
    run --separate-stderr resume --resume "$BATS_TEST_TMPDIR/bf16/step-000008" -s precision.adam_states=f32
    [ "$status" -eq 3 ]
    [[ "$stderr" == *"exp_avg': expected f32, found bf16"* ]]
}

# bats test_tags=long
@test "Adam's f32 master and rounded low halves: the same losses, weights and moments over 200 steps, untied in the middle" {
    long=(-s data.cycle=yes -s schedule.steps=198 -s data.checkpoint_every=0 -s data.val_every=50
            -s "stages.0=256 3 128 1 1,0.5,0.25>0" -s "stages.1=256 7 128 1.52 1,0.5>0" -s "stages.2=256 11 128 1.73 1"
            -s "stages.3=256 13 128 - 1")
    for master in f32 nearest; do
        train "${long[@]}" -s precision.adam_master=$master -o $master > $master.log
    done
    [ "$(grep -c train_loss f32.log)" -eq 200 ]
    diff <(losses f32.log) <(losses nearest.log)
    same_masters step-000200
}

# bats test_tags=long
@test "each form of Adam's states: resumed, resharded 1, 4, 2, exported and imported to the same bits" {
    base=(-s precision.gradients=f32 --keep 0)
    forms=("nearest f16 e4m3 stochastic" "truncate e4m3 f16 nearest" "f16 bf16 e4m3 stochastic"
           "f32 e4m3 e4m3 nearest")
    for i in 0 1 2 3; do
        set -- ${forms[i]}
        train "${base[@]}" -s precision.adam_master=$1 -s precision.adam_rounding=$4 \
            -s precision.adam_scale="$([ $i -lt 2 ] && echo tensor || echo row)" -s "states.lm_head=$1 $2 $3 $4" -s "states.embed=$1 $2 $3 $4" -s "states.ve0=$1 $3 $2 $4" \
            -s "states.attn_gate_bank=$1 $2 $3 $4" -o run$i > run$i.log
        "$GPT_BIN/gpt-ckpt" verify --full run$i/step-000004
        resume --resume run$i/step-000004 -o again$i > /dev/null
        same_checkpoint run$i/step-000011 again$i/step-000011
        "$GPT_BIN/gpt-ckpt" reshard -q --ranks 4 run$i/step-000011 -o four$i
        "$GPT_BIN/gpt-ckpt" reshard -q --ranks 2 four$i -o two$i
        "$GPT_BIN/gpt-ckpt" reshard -q --ranks 1 two$i -o one$i
        diff -r -x MANIFEST run$i/step-000011 one$i/step-000011
        "$GPT_BIN/gpt-ckpt" export -q run$i/step-000011 --states --padding -o all.safetensors --force
        "$GPT_BIN/gpt-ckpt" import -q all.safetensors -o import$i
        diff -r -x MANIFEST run$i/step-000011 import$i/step-000011
        "$GPT_BIN/gpt-ckpt" diff run$i/step-000011 all.safetensors
        rm -rf run$i again$i four$i two$i one$i import$i
    done
}

# f16 and e4m3 weights of sharded and replicated parameters, of a head whose codes fp8 products read as they are,
# without a master and with one.
# bats test_tags=long
@test "weights in f16 and e4m3: ranks agree; resumed, resharded, exported and imported to the same bits" {
    sed -e 's/^tied = .*/tied = -/; s/^\(ve0 .*\)bf16 /\1f16 /; s/^\(ve1 .*\)bf16 /\1e4m3 /; s/^\(lm_head .*\)bf16 /\1e4m3 /' \
        -e 's/^\(embed .*\)bf16 .*transpose:lm_head/\1e4m3 normal:0.05/; s/^\(attn_gate_bank .*\)bf16 /\1f16 /' \
        -e 's/^head_fp8 = .*/head_fp8 = yes/; s/^head_scales = .*/head_scales = 100\/448 1.6\/448 0.75\/448/' \
        "$GPT_SHARE/recipes/tiny.recipe" > types.recipe
    [ "$(grep -c '^[a-z_0-9]* .* \(f16\|e4m3\) ' types.recipe)" -eq 5 ]
    declare -A scale=([none]=row [f32]=1/64 [f16]=delayed)
    for master in none f32 f16; do
        train -r types.recipe -s precision.adam_master=$master -s precision.check_weights=yes --keep 0 -o run \
            -s precision.weight_scale=${scale[$master]} -s precision.amax_history=8 > log
        "$GPT_BIN/gpt-ckpt" verify --full run/step-000004
        resume --resume run/step-000004 -o again > /dev/null
        same_checkpoint run/step-000011 again/step-000011
        "$GPT_BIN/gpt-ckpt" reshard -q --ranks 4 run/step-000011 -o four
        "$GPT_BIN/gpt-ckpt" reshard -q --ranks 2 four -o two
        "$GPT_BIN/gpt-ckpt" reshard -q --ranks 1 two -o one
        diff -r -x MANIFEST run/step-000011 one/step-000011
        "$GPT_BIN/gpt-ckpt" export -q run/step-000011 --states --padding -o all.safetensors --force
        "$GPT_BIN/gpt-ckpt" import -q all.safetensors -o import
        diff -r -x MANIFEST run/step-000011 import/step-000011
        "$GPT_BIN/gpt-ckpt" diff run/step-000011 all.safetensors
        [ "$("$GPT_BIN/gpt-ckpt" cat --raw run/step-000011 ve1.weight | wc -c)" -eq $((272 * 32)) ]
        [ "$("$GPT_BIN/gpt-ckpt" cat --raw run/step-000011 ve0.weight | wc -c)" -eq $((272 * 32 * 2)) ]
        "$GPT_BIN/gpt-sample" -q -m run --score -d "$SHARDS" > score
        "$GPT_BIN/gpt-sample" -q -m all.safetensors --score -d "$SHARDS" | cmp score -
        val=$(sed -n 's/^step:11\/11 val_loss:\([^ ]*\) .*/\1/p' log)
        echo "$master: val_loss $val, score $(tail -1 score)"
        if [ "$master" = f16 ]; then    # a file without states: the history begins with the largest weight
            "$GPT_BIN/gpt-ckpt" export -q run/step-000004 -o bare.safetensors
            "$GPT_BIN/gpt-ckpt" import -q bare.safetensors -o bare
            resume --resume bare/step-000004 --ranks 3 -o on > /dev/null
            "$GPT_BIN/gpt-ckpt" cat on/step-000011 ve1.weight.amax > history
            [ "$(grep -vc '^0$' history)" -eq 4 ]      # and three updates
        fi
        [ "$master" != f32 ] || mv run kept
        rm -rf run again four two one import
    done
    run --separate-stderr resume --resume kept/step-000004 -s precision.weight_scale=1/32
    [ "$status" -eq 3 ]
    [[ $stderr == *"resume: ve1.weight.scale: expected 0.03125, the recipe's, found 0.015625"* ]]
    sed 's/ bf16 / f32  /' types.recipe > f32.recipe
    for n in 1 3; do
        train -r f32.recipe -s optimizer.polar=f32 -s precision.head_fp8=no -s precision.check_weights=yes \
            -s precision.adam_master=f32 -s precision.weight_scale=delayed -s precision.adam_states=f16 \
            -s precision.adam_scale=tensor --ranks $n > $n.log
    done
    run worst_difference 1.log 3.log
    echo "$output"
    [ "${lines[0]% *}" -eq 11 ]
    [ "${lines[0]#* }" -le 10000 ]             # 0.1%: an e4m3 weight moves by a sixteenth where a last bit turns it
}

# Checkpoints wait for steps 4 and 8, where each gradient has been applied.
# bats test_tags=long
@test "[states]: steps of its own for a parameter: ranks agree, a resumed run and a resharded one, too" {
    set -- -s "states.ve0=- - - - 4" -s "states.embed=- - - - 1" -s "states.lm_head=- - - - 1" \
        -s "states.scalars=- - - - 4" -s precision.check_weights=yes
    train "$@" --keep 0 -s data.checkpoint_every=2 -o run > log
    [ "$(ls run | tr '\n' ' ')" = "log.txt step-000004 step-000008 step-000011 " ]
    resume --resume run/step-000004 --keep 0 -o again > /dev/null
    same_checkpoint run/step-000011 again/step-000011
    "$GPT_BIN/gpt-ckpt" reshard -q --ranks 4 run/step-000008 -o four
    "$GPT_BIN/gpt-ckpt" reshard -q --ranks 2 four -o two
    "$GPT_BIN/gpt-ckpt" reshard -q --ranks 1 two -o one
    diff -r -x MANIFEST run/step-000008 one/step-000008
    [ "$("$GPT_BIN/gpt-ckpt" cat run/step-000008 ve0.weight | cksum)" != \
        "$("$GPT_BIN/gpt-ckpt" cat run/step-000004 ve0.weight | cksum)" ]
    grep -qx 'state adam.ve0.updates 2' run/step-000008/MANIFEST
    f32_recipe > f32.recipe
    for n in 1 3; do
        train -r f32.recipe -s optimizer.polar=f32 "$@" --ranks $n > $n.log
    done
    run worst_difference 1.log 3.log
    [ "${lines[0]% *}" -eq 11 ]
    [ "${lines[0]#* }" -le 100 ]
}
