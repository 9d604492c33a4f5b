#!/usr/bin/env bats
# gpt-logdiff --format csv and jsonl: a row a step, whose values are the log's and the recipe's.

bats_require_minimum_version 1.5.0
load few_steps
load ../check/needs

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return
    few_shards
    "$GPT_BIN/gpt-train" "${FEW[@]}" -q -s data.val_every=2 -s optimizer.clip=1 -o run > run.log
    "$GPT_TESTS/make_runlog" today loss=3.275 > today.txt
}

setup() { cd "$BATS_FILE_TMPDIR" || return; }

HEAD=group,run,trial,step,train/loss,train/next_loss,val/loss,train/grad_norm,lr,tokens,seconds,epoch

# The values of a log's lines as awk reads them: step, train, next, val, norm.
by_awk() {
    sed -nE 's/^step:([0-9]+)\/[0-9]+ (.*)/\1 \2/p' "$1" | awk '
        { s = $1; for (i = 2; i <= NF; i++) { split($i, p, ":"); v[s, p[1]] = p[2] + 0; has[s, p[1]] = 1 } if (s > last) last = s }
        function of(s, name) { return (s, name) in has ? v[s, name] "" : "" }
        END { OFMT = CONVFMT = "%.10g"
              for (s = 0; s <= last; s++) print s "," of(s, "train_loss") "," of(s, "next_loss") "," of(s, "val_loss") "," of(s, "grad_norm") }'
}

@test "csv: a row a step, of the values that the log has" {
    tool gpt-logdiff --format csv mine=run
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [ "${lines[0]}" = "$HEAD" ]
    tail -n +2 <<< "$output" | cut -d , -f 4-8 | diff - <(by_awk run.log)
    [ "${#lines[@]}" -eq 8 ]            # names, steps 0 to 6
    [[ ${lines[1]} = "mine,run/log.txt,1,0,,,"*",,,0,0,0" ]]
}

# 512 tokens a step. The factor is the stage's, 1.52 from step 3 on, less what the second half's fall to
# the floor of 0.1 takes of it.
@test "csv: tokens and rate are the recipe's, seconds the clock's, epochs those that the log ends with" {
    "$GPT_BIN/gpt-logdiff" --format csv run | tail -n +2 > rows
    [ "$(cut -d , -f 10 rows | tr '\n' ' ')" = "0 512 1024 1536 2048 2560 3072 " ]
    [ "$(cut -d , -f 9 rows | tr '\n' ' ')" = " 1 1 1.52 1.236 0.752 0.1 " ]
    awk -F , 'NR > 1 && $11 + 0 < last { bad = 1 } { last = $11 + 0 } END { exit bad }' rows
    ms=$(sed -nE 's/^step:6\/6 train_loss.*train_time:([0-9]+)ms.*/\1/p' run.log)
    [ "$(awk -F , '$4 == 6 { print $11 * 1000 }' rows)" = "$ms" ]
    passes=$(sed -n 's/^passes: //p' run.log)
    awk -F , -v passes="$passes" '$4 == 6 { d = $12 - passes; ok = d < 0.006 && d > -0.006 } END { exit !ok }' rows
}

@test "jsonl: the same values, what is not known left out" {
    needs jq
    tool gpt-logdiff --format jsonl mine=run
    [ "$status" -eq 0 ]
    keys=$(tr , '\n' <<< "$HEAD" | jq -R . | jq -s .)
    jq -r --argjson keys "$keys" '[.[$keys[]]] | map(if . == null then "" else tostring end) | join(",")' <<< "$output" > from-json
    "$GPT_BIN/gpt-logdiff" --format csv mine=run | tail -n +2 | diff from-json -
    jq -se '.[0] | .step == 0 and (has("train/loss") | not)' <<< "$output"
}

@test "rows of several groups and published logs, of names that must be quoted" {
    cp today.txt 'a, "b".txt'
    tool gpt-logdiff -q --format csv run 'x,"y"=a, "b".txt'
    [ "$status" -eq 0 ]
    [ "$(grep -c '^run,' <<< "$output")" -eq 7 ]
    [ "$(grep -c '^"x,""y""","a, ""b"".txt",1,' <<< "$output")" -eq 61 ]
    # such a log has neither training losses nor a recipe
    grep -qE '^"x,""y""","a, ""b"".txt",1,60,,,3\.275,,,,[0-9.]+,$' <<< "$output"
}

@test "--follow: rows of a run as it grows, which are those of the whole log" {
    mkfifo p
    "$GPT_BIN/gpt-logdiff" --follow --format jsonl run=- < p > grown 2> err &
    pid=$!
    exec 7> p
    sed '/^step:3\//q' run/log.txt >&7
    for _ in $(seq 100); do
        [ "$(wc -l < grown)" -ge 3 ] && break
        sleep 0.1
    done
    [ "$(wc -l < grown)" -eq 3 ]        # step 3 may have a validation, too
    sed '1,/^step:3\//d' run/log.txt >&7
    exec 7>&-
    wait $pid
    [ ! -s err ]
    "$GPT_BIN/gpt-logdiff" --format jsonl run=- < run/log.txt | diff grown -
}
