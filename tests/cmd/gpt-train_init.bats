#!/usr/bin/env bats
# gpt-train --init: a new run with another run's weights.

bats_require_minimum_version 1.5.0
load ../check/needs

# The first text and another one: the words of each line in reverse. Tiny at half its width, four steps in each
# stage; head and embedding part after step 9. The last window is the last stage's, so that a run can begin with it.
setup_file() {
    export CK=$BATS_FILE_TMPDIR
    mkdir "$CK/text" "$CK/other"
    tests/inputs/text "$CK/text"
    for f in "$CK"/text/0[0-3]*; do
        awk '{ for (i = NF; i > 0; i--) printf "%s%s", $i, (i > 1 ? " " : "\n") }' "$f" >"$CK/other/${f##*/}"
    done
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 4096 -o "$CK/shards" "$CK"/text/*
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 4096 -o "$CK/others" "$CK"/other/*
    tiny -d "$CK/shards" --ranks 2 --keep 0 -o "$CK/run" >"$CK/run.log"
    tiny -d "$CK/shards" --ranks 1 --keep 0 -s precision.adam_master=f32 -o "$CK/f32" >"$CK/f32.log"
}

setup() { cd "$BATS_TEST_TMPDIR"; }

MODEL=(-s model.vocab=272 -s model.head_dim=16 -s model.mlp_width=64 -s data.val_tokens=2048 -s data.val_chunk=256
       -s schedule.final_window=13 -s precision.gradients=f32)
tiny() {
    "$GPT_BIN/gpt-train" -q -r tiny "${MODEL[@]}" -s schedule.steps=12 -s schedule.extension=2 -s data.val_every=7 \
        -s data.checkpoint_every=8 -s "stages.0=512 3 512 1 1,0.5,0.25>0" -s "stages.1=512 7 512 1.52 1,0.5>0" \
        -s "stages.2=1024 11 512 1.73 1" -s "stages.3=1024 13 512 - 1" "$@"
}
# Stages of the source's last window; steps and rates of little change.
LAST=(-s "stages.0=512 13 512 1 1" -s "stages.1=512 13 512 1 1" -s "stages.2=1024 13 512 1 1"
      -s "stages.3=1024 13 512 - 1" -s data.val_every=1 -s data.checkpoint_every=0)
ONE=(-s schedule.steps=1 -s schedule.extension=0)
STILL=(-s optimizer.adam_lr=0 -s optimizer.muon_lr=0)
init() { "$GPT_BIN/gpt-train" -q --init "$1" -d "$CK/shards" "${LAST[@]}" "${@:2}"; }
ckpt() { "$GPT_BIN/gpt-ckpt" "$@"; }
val() { sed -n "s|^step:$2/[0-9]* val_loss:\([0-9.]*\) .*|\1|p" "$1"; }
losses() { grep -o '^step:[0-9]*/[0-9]* [a-z_]*loss:[^ ]*' "$1"; }

# bats test_tags=long
@test "step 0 has the source's validation loss; log and checkpoints name the source, resumed ones too" {
    hash=$(sed -n 's/^end //p' "$CK/run/step-000014/MANIFEST")
    init "$CK/run" "${ONE[@]}" -o new >log
    [ "$(val log 0)" = "$(val "$CK/run.log" 14)" ]
    grep -qx "init: $hash step 14 of $CK/run/step-000014" log
    grep -qx 'rope_windows = 3 7 11 13' log
    grep -qx 'tied = -' log                             # they have parted
    run ! grep -q '^init_ids' log
    grep -qx "state init $hash step 14" new/step-000001/MANIFEST
    grep -qx 'state adam.embed.updates 0' new/step-000001/MANIFEST     # of a step in which Adam does not move
    ckpt verify --full new
    ckpt info new --format tsv | grep -qxF $'init\t'"$hash step 14"
    init "$CK/run" -s schedule.steps=7 -s schedule.extension=1 --keep 0 -s data.checkpoint_every=4 -o whole >whole.log
    "$GPT_BIN/gpt-train" -q --resume whole/step-000004 -d "$CK/shards" -o again >again.log
    grep -qx "init: $hash step 14" again.log
    diff -r whole/step-000008 again/step-000008
}

@test "a run resumed, resharded or read from a pipe begins another one with the same bits" {
    init "$CK/run" -s schedule.steps=2 -s schedule.extension=1 >want
    [ "$(losses want | wc -l)" -eq 7 ]
    ckpt reshard -q "$CK/run" --ranks 3 -o three
    init three -s schedule.steps=2 -s schedule.extension=1 | losses - | cmp <(losses want) -
    ckpt pack "$CK/run" | init - -s schedule.steps=2 -s schedule.extension=1 | losses - | cmp <(losses want) -
}

# bats test_tags=long
@test "1, 2 and 3 ranks begin with the same weights and agree" {
    for n in 1 2 3; do
        init "$CK/f32" -s schedule.steps=3 -s schedule.extension=1 --ranks $n -o r$n >$n.log
        init "$CK/f32" "${ONE[@]}" "${STILL[@]}" --ranks $n -o still$n >/dev/null
        ckpt diff "$CK/f32" still$n '*.weight'          # masters, to the bit
        [ "$(val $n.log 0)" = "$(val "$CK/f32.log" 14)" ]
        # sums of ranks are in another order, which turns last bits of bf16: 1e-4, and a digit of four
        paste <(losses 1.log) <(losses $n.log) | sed 's/[^\t]*://g' | awk '{ d = $1 - $2; n++ }
            !(d * d <= 4e-8) { bad = 1 } END { exit bad || n != 9 }'
    done
}

# bats test_tags=long
@test "every form of a weight takes the exact number" {
    for form in nearest truncate; do
        init "$CK/f32" "${ONE[@]}" "${STILL[@]}" -s precision.adam_master=$form -o $form >/dev/null
        ckpt diff "$CK/f32" $form '*.weight'
    done
    init "$CK/f32" "${ONE[@]}" "${STILL[@]}" -s precision.adam_master=f16 -o f16 >/dev/null
    run ckpt diff --tolerance 5e-4 "$CK/f32" f16 '*.weight'            # 2^-12 of the largest of a row at most
    [ "$status" -eq 0 ]
    init f16 "${ONE[@]}" "${STILL[@]}" -o again >log                 # and f16 keeps its own
    ckpt diff f16 again '*.weight' --tolerance 0
    [ "$(val log 0)" = "$(val log 1)" ]
    # without a master: what the forward pass reads
    init "$CK/f32" "${ONE[@]}" "${STILL[@]}" -s precision.adam_master=none -o none >log
    cmp <(ckpt cat --raw "$CK/f32" ve1.weight) <(ckpt cat --raw none ve1.weight)
    [ "$(val log 0)" = "$(val "$CK/f32.log" 14)" ]
}

# bats test_tags=long
@test "f16 and e4m3 weights begin with what the source's forward pass reads" {
    sed -e 's/^tied = .*/tied = -/; s/^\(ve0 .*\)bf16 /\1f16 /; s/^\(ve1 .*\)bf16 /\1e4m3 /' \
        "$GPT_SHARE/recipes/tiny.recipe" >types.recipe
    for master in none f32 f16; do
        tiny -r types.recipe -d "$CK/shards" -s precision.adam_master=$master -o $master >$master.log
        init $master "${ONE[@]}" "${STILL[@]}" --ranks 2 -o new-$master >log
        [ "$(val log 0)" = "$(val $master.log 14)" ]
        ckpt diff $master new-$master '*.weight'
        ckpt verify --full new-$master
    done
}

@test "tied and parted tables: taken, or refused by name" {
    init "$CK/run/step-000008" -s schedule.untie=2 -s schedule.steps=4 -s schedule.extension=0 -o tied >log
    grep -qx 'tied = lm_head embed' log
    ckpt cat tied lm_head.weight | awk '{ for (i = 1; i <= NF; i++) row[i] = row[i] (NR > 1 ? "\t" : "") $i }
        END { for (i = 1; i <= NF; i++) print row[i] }' | cmp - <(ckpt cat tied embed.weight)
    init "$CK/run/step-000008" "${ONE[@]}" -s order.tied=- >log
    [ "$(val log 0)" != "" ]
    run --separate-stderr init "$CK/run" "${ONE[@]}" -s "order.tied=lm_head embed" -o none
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-train: $CK/run/step-000014: 'lm_head' and 'embed' have parted there, and the recipe ties them; with -s order.tied=- they go on as two" ]
    [ -z "$output" ]
    [ ! -e none ]
}

# Rows of the tables, columns of the head: the common ones are the source's, new ones as the recipe draws them.
@test "another vocabulary: common ids are taken, new ones drawn" {
    init "$CK/run" "${ONE[@]}" "${STILL[@]}" -s model.vocab=300 --ranks 3 -o more >log
    grep -qx 'init_ids: the first 272 of 300' log
    init "$CK/run" "${ONE[@]}" "${STILL[@]}" -s model.vocab=257 -o less >log
    grep -qx 'init_ids: the first 257 of 257' log
    for name in embed ve0 ve1 ve2; do
        cmp <(ckpt cat "$CK/run" $name.weight) <(ckpt cat more "$name.weight[:272]")
        cmp <(ckpt cat "$CK/run" "$name.weight[:257]") <(ckpt cat less $name.weight)
    done
    cmp <(ckpt cat "$CK/run" lm_head.weight) <(ckpt cat more 'lm_head.weight[:,:272]')
    cmp <(ckpt cat "$CK/run" 'lm_head.weight[:,:257]') <(ckpt cat less lm_head.weight)
    tiny -d "$CK/shards" "${ONE[@]}" "${STILL[@]}" -s model.vocab=300 -o drawn >/dev/null
    cmp <(ckpt cat drawn 'lm_head.weight[:,272:]') <(ckpt cat more 'lm_head.weight[:,272:]')
    cmp <(ckpt cat drawn 'embed.weight[272:]') <(ckpt cat more 'embed.weight[272:]')
    [ "$(ckpt cat more 'embed.weight[272:]' | tr '\t' '\n' | grep -vc '^0$')" -gt 800 ]
    [ "$(ckpt cat more 've0.weight[272:]' | tr '\t' '\n' | grep -vc '^0$')" -eq 0 ]
}

@test "labels, shapes and tokens that do not fit are named, and nothing is left" {
    all="attn mlp scalars ve0 ve1 ve2 smear_gate skip_gate attn_gate_bank ve_gate_bank x0_lambdas lm_head embed"
    table=(-s model.gate_table=8 -s "parameters.gate_table=v,8 f32 normal:0.1 adam sharded 0.9 0.95 1 0 no"
           -s "parameters.attn_gate_bank=10,h,20 f32 zero adam replicated 0.9 0.99 1 1 no"
           -s "parameters.ve_gate_bank=5,h,20 f32 zero adam replicated 0.9 0.99 1 1 no"
           -s "order.scatter=$all gate_table" -s "order.work=$all gate_table")
    tiny -d "$CK/shards" "${ONE[@]}" "${table[@]}" -o table >/dev/null
    # bytes in reverse, as a rank file
    awk 'BEGIN { a = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
                 for (i = 255; i >= 0; i--) printf "%s%s== %d\n", substr(a, int(i / 4) + 1, 1), substr(a, i % 4 * 16 + 1, 1), 255 - i }' >reverse
    "$GPT_BIN/gpt-tokshard" -q --vocab reverse --val-tokens 4096 -o tokens "$CK"/other/*
    refused() { # WORDS ARGUMENT...
        run --separate-stderr "$GPT_BIN/gpt-train" -q -o none "${@:2}"
        echo "$stderr"
        [ "$status" -eq 3 ]
        [ -z "$output" ]
        # shellcheck disable=SC2053
        [[ $stderr == "gpt-train: --init "*": "$1 ]]
        [ ! -e none ]
    }
    refused "the recipe has 'gate_table', of which there are no weights there" \
        --init "$CK/run" -d "$CK/shards" "${LAST[@]}" "${table[@]}"
    refused "there are weights of 'gate_table', which the recipe does not have" \
        --init table -r "$CK/run/step-000014/recipe.txt" -d "$CK/shards" "${LAST[@]}" -s order.tied=-
    refused "'mlp.weight' is 24x64x32 there, 24x128x32 in the recipe" \
        --init "$CK/run" -d "$CK/shards" "${LAST[@]}" -s model.mlp_width=128
    refused "its tokens are those of 'bytes "*"', the shards' of 'other "*"'" --init "$CK/run" -d tokens "${LAST[@]}"
    run --separate-stderr init nowhere
    [ "$status" -eq 4 ]
    mkdir empty
    run --separate-stderr init empty
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-train: empty: no complete checkpoint" ]
    run --separate-stderr init "$CK/run" -o "$CK/run"
    [ "$status" -eq 3 ]
    [[ $stderr == *"holds step 14 of an earlier run"* ]]
    run --separate-stderr init "$CK/run" --resume "$CK/run"
    [ "$status" -eq 2 ]
    [[ $stderr == *"--init beside --resume"* ]]
}

@test "a recipe of another model is said to be one" {
    run --separate-stderr "$GPT_BIN/gpt-train" --plan --init "$CK/run" -s "model.softcap=15 0 7"
    [ "$status" -eq 0 ]
    [ "$stderr" = "gpt-train: --init $CK/run/step-000014: the models differ: 'softcap = 23 5 7.5' there, 'softcap = 15 0 7' in the recipe" ]
    run --separate-stderr "$GPT_BIN/gpt-train" --plan --init "$CK/run" -s optimizer.muon_lr=0.1 -s model.vocab=300
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
}

# bats test_tags=long
@test "on another text a run that begins with the weights is ahead of one from scratch at every validation" {
    more=(-d "$CK/others" -s schedule.steps=12 -s schedule.extension=0 -s data.val_every=3)
    "$GPT_BIN/gpt-train" -q --init "$CK/run" "${LAST[@]}" "${more[@]}" >tuned.log
    tiny "${LAST[@]}" "${more[@]}" >scratch.log
    paste <(losses tuned.log | sed -n 's/ val_loss:/ /p') <(losses scratch.log | sed -n 's/ val_loss:/ /p') >both
    cat both
    awk '!($2 + 0.05 < $4) || $1 != $3 { bad = 1 } END { exit bad || NR != 5 }' both
    awk 'NR == 1 { first = $2 } END { exit !($2 < first) }' both
}
