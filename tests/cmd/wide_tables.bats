#!/usr/bin/env bats
# Tables on a terminal: none is wider than it, nothing of one is lost, and --wide and pipes have them whole.

bats_require_minimum_version 1.5.0
load few_steps
load ../check/needs

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return
    few_shards
    "$GPT_BIN/gpt-train" "${FEW[@]}" -q -o run > run.log
    mkdir logs
    for i in 1 2 3; do "$GPT_TESTS/make_runlog" today "loss=3.27$i" "time_ms=10440$i" "seed=$i" > logs/$i.txt; done
}

setup() { cd "$BATS_FILE_TMPDIR" || return; }

# What a program prints on a terminal of so many columns.
on_terminal() { # COLUMNS PROGRAM ARGUMENT...
    script -qec "stty cols $1; $(printf '%q ' "$GPT_BIN/$2" "${@:3}")" /dev/null < /dev/null | tr -d '\r'
}

# The width of the widest line, in characters.
widest() {
    LC_ALL=C awk '{ gsub(/[\200-\277]/, ""); if (length > most) most = length } END { print most }'
}

words() { tr -s ' \n' '\n\n' | sort; }

# The commands whose tables are wider than a terminal of 80.
wide() {
    printf '%s\n' "gpt-train --plan -r record-61 --ranks 8" "gpt-logdiff -cs --mixed logs both=logs" "gpt-ckpt stat run" \
        "gpt-ckpt spectrum -q run layers.0.*" "gpt-ckpt ls run" "gpt-ckpt diff --all run run" "ns-coeffs eval record-61 you"
}

@test "no table is wider than the terminal, of any width that is usual" {
    needs script
    wide > commands
    while read -r command; do
        for columns in 80 100 120; do
            # shellcheck disable=SC2086
            w=$(on_terminal $columns $command | widest)
            echo "$command: $w of $columns"
            [ "$w" -gt 20 ]
            [ "$w" -le $columns ]
        done
    done < commands
}

# Broken between values, a list is still one that gpt-logdiff reads.
@test "lists of values are as wide as the terminal, and whole" {
    needs script
    mkdir -p many
    for i in $(seq 12); do "$GPT_TESTS/make_runlog" today "loss=3.2$i" "time_ms=10440$i" "seed=$i" > many/$i.txt; done
    on_terminal 80 gpt-logdiff many > lists || true
    [ "$(widest < lists)" -le 80 ]
    grep -qE '^            [0-9]' lists
    sed -n '/^many$/,/n = 12/p' lists > published.txt
    "$GPT_BIN/gpt-logdiff" --format tsv published.txt | cut -f 1,8 | grep ^runs > from-list
    "$GPT_BIN/gpt-logdiff" --format tsv many | cut -f 1,8 | grep ^runs | diff - from-list
    [ "$(wc -l < from-list)" -eq 12 ]
    on_terminal 80 gpt-logdiff --wide many | grep -qE '^  losses = .*, .{80}'
}

@test "with --wide, and in a pipe, a table has its own width" {
    needs script
    whole=$("$GPT_BIN/gpt-train" --plan -r record-61 --ranks 8 | widest)
    [ "$whole" -gt 120 ]
    [ "$(on_terminal 80 gpt-train --plan -r record-61 --ranks 8 --wide | widest)" -eq "$whole" ]
    whole=$("$GPT_BIN/gpt-ckpt" stat --format table run | widest)
    [ "$whole" -gt 100 ]
    [ "$(on_terminal 80 gpt-ckpt stat --wide run | widest)" -eq "$whole" ]
    whole=$("$GPT_BIN/gpt-logdiff" logs | widest)
    [ "$whole" -gt 90 ]
    [ "$(on_terminal 80 gpt-logdiff --wide logs | widest)" -eq "$whole" ]
}

# In blocks the first column is repeated, and nothing else is different.
@test "nothing of a table is lost in its blocks" {
    needs script
    on_terminal 200 gpt-ckpt stat run | words > whole
    on_terminal 80 gpt-ckpt stat run | words > blocks
    [ "$(comm -23 whole blocks | wc -l)" -eq 0 ]
    [ "$(wc -l < blocks)" -gt "$(wc -l < whole)" ]
    # rows that the first column does not tell apart have the second in each block
    on_terminal 60 gpt-logdiff -c --mixed logs both=logs > curves || true
    grep -qE '^both +60 ' curves
    [ "$(grep -cE '^both +60 ' curves)" -ge 2 ]
}

@test "--wide where there is no table is refused" {
    refused 2 "--wide needs --plan, --bench or --stats" gpt-train --wide -r tiny -d shards
    refused 2 "--wide" gpt-ckpt cat --wide run embed.weight
}
