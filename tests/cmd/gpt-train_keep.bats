# gpt-train --keep: which checkpoints a run removes, and that it says so.

bats_require_minimum_version 1.5.0
load tiny_runs

steps() { ls "$1" | sed -n 's/^step-0*//p' | tr '\n' ' '; }
often=(-s data.checkpoint_every=2 -s data.val_tokens=0)

@test "a run keeps its newest two, or as many as --keep says, and the log says which went" {
    train "${often[@]}" -o run > run.log
    [ "$(steps run)" = "10 11 " ]
    [ "$(grep '^checkpoint: ' run.log)" = "checkpoint: step 2
checkpoint: step 4
checkpoint: step 6; removed: step 2
checkpoint: step 8; removed: step 4
checkpoint: step 10; removed: step 6
checkpoint: step 11; removed: step 8" ]
    train "${often[@]}" --keep 1 -o one > /dev/null
    [ "$(steps one)" = "11 " ]
    train "${often[@]}" --keep 0 -o all > all.log
    [ "$(steps all)" = "2 4 6 8 10 11 " ]
    run ! grep removed all.log
}

@test "what --keep 0 kept stays when the run is resumed without it" {
    train "${often[@]}" --keep 0 -s schedule.steps=6 -o run > /dev/null
    [ "$(steps run)" = "2 4 6 8 " ]
    resume --resume run -s schedule.steps=14 -o run > more.log
    [ "$(steps run)" = "2 4 6 8 14 16 " ]
    grep -q '^checkpoint: step 16; removed: step 12$' more.log
    # a number on the command line is the folder's
    resume --resume run -s schedule.steps=16 --keep 3 -o run > more.log
    [ "$(steps run)" = "14 16 18 " ]
    grep -q '^checkpoint: step 18; removed: step 2 4 6 8$' more.log
}

@test "a log with these lines is read as before" {
    train "${often[@]}" -s data.val_tokens=2048 -o run > /dev/null
    mkdir with without
    cp run/log.txt with/log.txt
    grep -v '^checkpoint: ' run/log.txt > without/log.txt
    for dir in with without; do (cd $dir && "$GPT_BIN/gpt-logdiff" --format=tsv log.txt > ../$dir.tsv) || [ $? -eq 1 ]; done
    cmp with.tsv without.tsv
}
