#!/usr/bin/env bats
# gpt-logdiff --follow of a run: its log as it grows, lines in a pipe and a picture on a terminal.

bats_require_minimum_version 1.5.0
load few_steps
load ../check/needs

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return
    few_shards
    "$GPT_BIN/gpt-train" "${FEW[@]}" -q -s data.val_every=2 -o run > /dev/null
    mkdir base
    for i in 1 2; do "$GPT_TESTS/make_runlog" today loss=3.27$i time_ms=10000$i seed=$i > base/$i.txt; done
    "$GPT_TESTS/make_runlog" bare loss=6 time_ms=160000 > slow.txt
}

setup() { cd "$BATS_FILE_TMPDIR" || return; }

# What a program writes to a terminal of so many columns and rows, and what is left on it.
on_terminal() { # COLUMNS ROWS ARGUMENT...
    script -qec "stty cols $1 rows $2; $(printf '%q ' "$GPT_BIN/gpt-logdiff" "${@:3}")" /dev/null < /dev/null | tr -d '\r'
}
last_picture() { awk '/^\033\[[0-9]+A/ { n = 0 } { line[++n] = $0 } END { for (i = 1; i <= n; i++) print line[i] }' | sed 's/^\x1b\[[0-9]*A\x1b\[J//'; }
characters() { LC_ALL=C sed 's/[\x80-\xbf]//g' | awk '{ if (length > most) most = length } END { print most }'; }

@test "a log that another program writes: a line a validation, at once, and the report at its end" {
    mkdir -p grows
    sed '/^step:2\/6 val_loss/q' run/log.txt > grows/log.txt
    "$GPT_BIN/gpt-logdiff" --follow grows > out 2> err &
    pid=$!
    for _ in $(seq 100); do
        grep -q '^step 2/6' out && break
        sleep 0.1
    done
    [ "$(grep -c '^step ' out)" -eq 2 ]
    kill -0 $pid                        # it waits for more
    sed '1,/^step:2\/6 val_loss/d' run/log.txt >> grows/log.txt
    wait $pid
    [ ! -s err ]
    [ "$(grep -c '^step ' out)" -eq 4 ]
    grep -q '^step 6/6: loss ' out
    # the report, as of the whole log
    sed '/^step /d' out | diff - <("$GPT_BIN/gpt-logdiff" grows)
}

@test "on a terminal: the curve, its validations, speed, passes and what is left, no line too wide" {
    needs script
    on_terminal 80 24 --follow run > all
    last_picture < all > picture
    cat picture
    grep -qE '^run: step 6/6, train [0-9.]+, val [0-9.]+ at 6$' picture
    [ "$(grep -c '|' picture)" -eq 14 ]
    [ "$(grep '|' picture | tr -cd o | wc -c)" -eq 4 ]  # validations at 0, 2, 4, 6
    LC_ALL=C grep -q $'|.*\xe2[\xa0-\xa3]' picture    # dots: U+2800 to U+28FF
    grep -qE '^0:00 left, [0-9]+ tokens/s, [0-9.]+ ms/step, 0\.0[0-9] passes$' picture
    grep -q 'Where the time went' picture
    run ! grep -q '^step ' all
    [ "$(characters < picture)" -le 80 ]
    on_terminal 44 14 --follow run | last_picture > narrow
    grep -q '^run: step 6/6' narrow
    [ "$(sed '/^0:00 left/q' narrow | characters)" -le 44 ]
    [ "$(sed '/^0:00 left/q' narrow | wc -l)" -le 13 ]
}

@test "on a terminal: the baseline's means, and what is said of the run stands above the picture" {
    needs script
    on_terminal 80 24 --follow base=base new=slow.txt > all
    last_picture < all > picture
    cat picture
    [ "$(grep '|' picture | tr -cd + | wc -c)" -ge 1 ]
    grep -q 'can no longer become a record: its clock' all
    run ! grep -q 'can no longer become' <(grep '|' all)
}

@test "on a terminal: a loss of hundreds of digits leaves the picture as it is" {
    needs script
    printf 'step:%s train_time:%s0ms\n' '0/4 val_loss:10.8' 0 '1/4 train_loss:1e300' 1 '2/4 train_loss:1e300' 2 \
        '2/4 val_loss:1e300' 2 '3/4 train_loss:5' 3 '4/4 train_loss:1e300' 4 '4/4 val_loss:1e300' 4 > huge.txt
    on_terminal 80 24 --follow huge.txt > all
    last_picture < all > picture
    cat picture
    [[ $(head -n 1 picture) == "huge.txt: step 4/4, train 1"* ]]
    [ "$(grep -c '|' picture)" -eq 14 ]
    [ "$(grep -cE '\|[^ ]' picture)" -eq 1 ] # but for the first validation nothing is before step 1
}

@test "a terminal that is too small, or cannot move its cursor, has lines" {
    needs script
    on_terminal 39 24 --follow run > small
    grep -q '^step 6/6: loss' small
    TERM=dumb on_terminal 80 24 --follow run > dumb
    grep -q '^step 6/6: loss' dumb
    run ! grep -q '|' dumb
}

@test "what cannot be followed is refused" {
    mkdir -p empty
    refused 3 "empty: no run to follow" gpt-logdiff --follow empty
    refused 4 "cannot open 'none'" gpt-logdiff --follow none
    zstd -qf run/log.txt -o log.zst
    refused 3 "'log.zst' is compressed" gpt-logdiff --follow log.zst
    refused 2 "--follow needs '-', or a run, alone or behind a baseline" gpt-logdiff --follow a=- b=run
}
