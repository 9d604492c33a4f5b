#!/usr/bin/env bats
# Exact weights: what export writes, import keeps and diff compares where Adam's masters are f32, f16 or low halves.

bats_require_minimum_version 1.5.0
load ../check/needs

# A few steps of the tiny recipe on bytes, at half its width; head and embedding part after step 7.
setup_file() {
    export CK=$BATS_FILE_TMPDIR SHARDS=$BATS_FILE_TMPDIR/shards
    mkdir "$CK/text"
    tests/inputs/text "$CK/text"
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 16384 -o "$SHARDS" "$CK"/text/*
    for master in f32 f16 nearest truncate; do
        for ranks in 1 3; do
            "$GPT_BIN/gpt-train" -q -r tiny -d "$SHARDS" -s model.vocab=272 -s model.head_dim=16 -s model.mlp_width=64 \
                -s schedule.steps=9 -s schedule.extension=2 -s data.val_tokens=2048 -s data.val_chunk=256 \
                -s data.val_every=5 -s data.checkpoint_every=4 -s "stages.0=512 3 512 1 1,0.5,0.25>0" \
                -s "stages.1=512 7 512 1.52 1,0.5>0" -s "stages.2=1024 11 512 1.73 1" -s "stages.3=1024 13 512 - 1" \
                -s precision.adam_master=$master --ranks $ranks --keep 0 -o "$CK/$master.$ranks" > "$CK/$master.$ranks.log"
        done
    done
}

setup() { cd "$BATS_TEST_TMPDIR"; }

ckpt() { run --separate-stderr "$GPT_BIN/gpt-ckpt" "$@"; }
raw() { "$GPT_BIN/gpt-ckpt" cat --raw "$@"; }
numbers() { od -An -v -w"$1" -t"$2" | tr -d ' '; }

# The f32 bits of a weight's master, one a line, from the stored bits of a run by the formulas of
# gpt-checkpoint(5): RUN KIND NAME.
master_bits() {
    case $2 in
    f32) raw "$1" "$3.master" | numbers 4 u4 ;;
    nearest) paste <(raw "$1" "$3.weight" | numbers 2 u2) <(raw "$1" "$3.remainder" | numbers 2 d2) |
        awk '{ printf "%.0f\n", $1 * 65536 + $2 }' ;;
    truncate) paste <(raw "$1" "$3.weight" | numbers 2 u2) <(raw "$1" "$3.mantissa" | numbers 2 u2) |
        awk '{ printf "%.0f\n", $1 * 65536 + $2 }' ;;
    esac
}

# Of f16 times the scale of its row, as numbers: RUN NAME COLUMNS.
master_values() {
    raw "$1" "$2.master" | numbers 2 u2 | awk -v cols="$3" '
        NR == FNR { scale[NR - 1] = 2 ^ ($1 / 8388608 - 127); next }     # powers of two
        { e = int($1 / 1024) % 32; m = $1 % 1024
          x = e ? (1 + m / 1024) * 2 ^ (e - 15) : m / 1024 * 2 ^ -14
          printf "%.9g\n", ($1 < 32768 ? x : -x) * scale[int((FNR - 1) / cols)] }' \
        <(raw "$1" "$2.master.scale" | numbers 4 u4) -
}

# bats test_tags=long
@test "export writes the master, before and after head and embedding part" {
    for step in 4 11; do
        for kind in f32 nearest truncate; do
            from=$CK/$kind.1/$(printf 'step-%06d' $step)
            ckpt export "$from" -o e.safetensors --force
            [ "$status" -eq 0 ]
            [ -z "$stderr" ]
            for name in lm_head embed ve1; do
                master_bits "$from" $kind $name >want
                [ "$(wc -l <want)" -eq 8704 ]
                cmp want <(raw e.safetensors $name.weight | numbers 4 u4)
                run ! cmp -s want <(raw "$from" $name.weight | numbers 2 u2 | awk '{ printf "%.0f\n", $1 * 65536 }')
            done
        done
        from=$CK/f16.1/$(printf 'step-%06d' $step)
        ckpt export "$from" -o e.safetensors --force
        for name in lm_head:272 embed:32 ve1:32; do
            master_values "$from" "${name%:*}" "${name#*:}" >want
            [ "$(wc -l <want)" -eq 8704 ]
            cmp want <("$GPT_BIN/gpt-ckpt" cat e.safetensors "${name%:*}.weight" | tr '\t' '\n')
        done
    done
}

@test "while tied the embedding's master is the head's, on any number of ranks" {
    for kind in f32 f16 nearest truncate; do
        for ranks in 1 3; do
            "$GPT_BIN/gpt-ckpt" cat "$CK/$kind.$ranks/step-000004" lm_head.weight |
                awk '{ for (i = 1; i <= NF; i++) row[i] = row[i] (NR > 1 ? "\t" : "") $i }
                     END { for (i = 1; i <= NF; i++) print row[i] }' >want
            [ "$(wc -l <want)" -eq 272 ]
            cmp want <("$GPT_BIN/gpt-ckpt" cat "$CK/$kind.$ranks/step-000004" embed.weight)
            ckpt verify --full "$CK/$kind.$ranks/step-000004"
            [ "$status" -eq 0 ]
        done
    done
}

# bats test_tags=long
@test "import keeps every master; with states the checkpoint is the same" {
    for kind in f32 f16 nearest truncate; do
        for step in step-000004 step-000011; do
            from=$CK/$kind.1/$step
            "$GPT_BIN/gpt-ckpt" export -q "$from" -o bare.safetensors --padding --force
            "$GPT_BIN/gpt-ckpt" export -q "$from" -o all.safetensors --padding --states --force
            ckpt import bare.safetensors -o bare --force
            [ "$status" -eq 0 ]
            [[ $stderr = *"weights only"* ]]
            ckpt import all.safetensors -o all --force
            [ "$status" -eq 0 ]
            [ -z "$stderr" ]
            for file in bare/$step bare.safetensors all.safetensors; do
                ckpt diff "$from" "$file" '*.weight'
                [ "$status" -eq 0 ]
                [ "${#lines[@]}" -eq 1 ]
            done
            for name in lm_head embed ve0 ve1 attn_gate_bank; do
                cmp <(raw "$from" $name.weight) <(raw bare/$step $name.weight)
                [ $kind = f16 ] || cmp <(master_bits "$from" $kind $name) <(master_bits bare/$step $kind $name)
            done
            diff -r -x MANIFEST "$from" all/$step
        done
    done
}

# bats test_tags=long
@test "import into a recipe with another kind of master keeps the number" {
    for from in f32 f16 nearest truncate; do
        "$GPT_BIN/gpt-ckpt" export -q "$CK/$from.1" -o e.safetensors --padding --force
        for to in f32 nearest truncate; do
            ckpt import -q e.safetensors --recipe "$CK/$to.1/step-000011/recipe.txt" -o to --force
            [ "$status" -eq 0 ]
            ckpt diff "$CK/$from.1" to '*.weight'
            [ "$status" -eq 0 ]
            [ "${#lines[@]}" -eq 1 ]
            ckpt verify to
            [ "$status" -eq 0 ]
        done
    done
}

# Adam's bf16 weight beside a master in f16 is not the master rounded once more: the file has both.
@test "gpt-sample reads of an exported file what it reads of the checkpoint" {
    for kind in f32 f16 nearest truncate; do
        "$GPT_BIN/gpt-ckpt" export -q "$CK/$kind.1" -o e.safetensors --force
        "$GPT_BIN/gpt-sample" -q -m "$CK/$kind.1" --score -d "$SHARDS" >want
        [ -s want ]
        "$GPT_BIN/gpt-sample" -q -m e.safetensors --score -d "$SHARDS" | cmp want -
        ckpt ls e.safetensors '*.rounded'
        [ "$status" -eq "$([ $kind = f16 ] && echo 0 || echo 3)" ]
        "$GPT_BIN/gpt-ckpt" export -q "$CK/$kind.1" -o b.safetensors --dtype bf16 --force
        cmp <(raw "$CK/$kind.1" lm_head.weight) <(raw b.safetensors lm_head.weight)
        ckpt ls b.safetensors '*.rounded'
        [ "$status" -eq 3 ]
    done
}

@test "diff of runs with f32 masters and rounded low halves lists no tensor" {
    for step in step-000004 step-000008 step-000011; do
        ckpt diff "$CK/f32.1/$step" "$CK/nearest.1/$step"
        [ "$status" -eq 1 ]              # the recipes differ
        [ "$stderr" = "gpt-ckpt: recipe: (text) in A, (other text) in B" ]
        [ "${#lines[@]}" -eq 1 ]
        ckpt diff --all "$CK/f32.1/$step" "$CK/nearest.1/$step" embed.weight
        [ "$status" -eq 0 ]
        [[ ${lines[1]} = $'embed.weight\tequal\t8704\t'* ]]
    done
    ckpt diff "$CK/f32.1/step-000011" "$CK/truncate.1/step-000011" lm_head.weight
    [ "$status" -eq 1 ]
}
