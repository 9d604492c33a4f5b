#!/usr/bin/env bats
# Runs of any kind: folders of runs, one run by itself, runs that continue others, other programs' logs,
# what launchers put before lines, and a target only where there is one.

bats_require_minimum_version 1.5.0
load logdiff

setup() {
    cd "$BATS_TEST_TMPDIR" || return
}

# ours LOSS [KEY=VALUE]...: a log of gpt-train's
ours() {
    local loss=$1
    shift
    made ours "loss=$loss" "$@"
}

@test "a folder with a log.txt is one run; in another folder each log and each such folder is one" {
    mkdir -p run sweep/a sweep/b sweep/empty
    ours 3.1 > run/log.txt
    echo "no log" > run/recipe.txt
    ours 3.2 seed=1 > sweep/a/log.txt
    ours 3.3 seed=2 > sweep/b/log.txt
    ours 3.4 seed=3 > sweep/c.log
    echo notes > sweep/README
    run --separate-stderr logdiff --format tsv run
    [ -z "$stderr" ]
    [ "$(cells runs group path loss <<< "$output")" = "run run/log.txt 3.1" ]
    run --separate-stderr logdiff --format tsv sweep
    [ -z "$stderr" ]
    [ "$(cells runs group path loss <<< "$output")" = $'sweep sweep/a/log.txt 3.2\nsweep sweep/b/log.txt 3.3\nsweep sweep/c.log 3.4' ]
    run --separate-stderr logdiff sweep/empty
    [ "$status" -eq 3 ]
    [[ "$stderr" == *"sweep/empty: no runs in this folder (log.txt; or *.txt, "* ]]
}

# 100 ms a step; the objective falls by 7/60 a step from 10, so its mean over steps 1 to 20 is 8.775.
@test "one run: its curve, its speed, where the time went; no target, nothing to judge, exit 0" {
    mkdir run
    ours 3.1 | sed '/^peak/i end: 9.50 s (start 0.50, steps 6.00, validation 2.00, checkpoints 0.75)' > run/log.txt
    grep -q ^end: run/log.txt
    run --separate-stderr logdiff run
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [[ "$output" != *3.28* && "$output" != *demonstrated* ]]
    grep -qE '^ *20 +2\.0 +8\.7750 +5\.[0-9]{4} +100\.00$' <<< "$output"
    grep -qE '^ *60 +6\.0 +4\.1083 +3\.1000 +100\.00$' <<< "$output"
    grep -qE '^start +0\.50 +5\.3$' <<< "$output"
    grep -qE '^steps +6\.00 +63\.2$' <<< "$output"
    grep -qE '^validation +2\.00 +21\.1$' <<< "$output"
    grep -qE '^checkpoints +0\.75 +7\.9$' <<< "$output"
    grep -qE '^all +9\.50 +100\.0$' <<< "$output"
    run --separate-stderr logdiff --format tsv run
    [ "$(cells curve step seconds val <<< "$output" | tail -1)" = "60 6 3.1" ]
    [ "$(cells speed steps median_ms low_ms high_ms <<< "$output")" = "60 100 100 100" ]
    # with a target it is judged
    run --separate-stderr logdiff --target 3.2 run
    [ "$status" -eq 1 ]
    [[ "$output" == *"loss not demonstrated: one run has no deviation"* ]]
}

@test "a run without a validation is shown by its steps" {
    ours 3.1 | grep -v val_loss > run.log
    run --separate-stderr logdiff run.log
    [ "$status" -eq 0 ]
    grep -qE '^ *60 +6\.0 +[0-9.]+ +– +100\.00$' <<< "$output"
    [ "$(grep -cE '^ *[0-9]+ +[0-9.]+ +[0-9.]+ +– ' <<< "$output")" -eq 20 ]
}

@test "tokens come from the recipe in the log: of each stage, and a second's" {
    "$GPT_BIN/gpt-train" -r tiny --plan > plan
    tokens=$(awk '$2 ~ /^[0-9]+$/ && $1 == 0 && NF > 8 { print $2; exit }' plan)
    {
        printf '%s\n' 'tool: gpt-train 0.1.0' 'recipe: tiny 0' 'data: 0' "$(printf '=%.0s' {1..100})"
        sed 's/#.*//' "$GPT_SHARE/recipes/tiny.recipe"
        printf '%s\n' "$(printf '=%.0s' {1..100})"
        for i in 1 2 3 4; do echo "step:$i/368 train_loss:9.0 next_loss:$((9 - i)).5 grad_norm:0.5 train_time:${i}00ms step_avg:100.00ms"; done
    } > run.log
    run --separate-stderr logdiff --format tsv run.log
    [ "$(cells curve step tokens next <<< "$output" | tail -1)" = "4 $((4 * tokens)) 5.5" ]
    [ "$(cells speed tokens_s <<< "$output")" = "$((tokens * 3 * 10 / 4))" ] ||
        [ "$(cells curve tokens_s <<< "$output" | tail -1)" = "$((tokens * 10))" ]
    [[ "$(logdiff run.log 2> /dev/null)" == *"Train is the objective, Next the next token's"* ]]
}

@test "several: without a target their curves side by side, and which loss is lower" {
    mkdir a b
    for i in 1 2 3; do
        ours 3.30$i seed=$i > a/$i.log
        ours 3.10$i seed=$i > b/$i.log
    done
    run --separate-stderr logdiff a b
    [ "$status" -eq 0 ]
    [[ "$output" == *"b: better: mean loss lower by 0.20000 (p <0.0001 < 0.01, Welch, two-sided)"* ]] ||
        [[ "$output" == *"b: better: mean loss lower by 0.20000 (p <0.0001"* ]]
    grep -qE '^Step +a +b$' <<< "$output"
    grep -qE '^ *60 +3\.3020 +3\.1020$' <<< "$output"
    [[ "$output" != *"p from"* ]]
    # what is against a target is not known
    logdiff -q --format tsv a b > several
    [ -z "$(cells groups p p_low p_high < several | tr -d ' \n')" ]
    run --separate-stderr logdiff -q --rules track-1 a b
    [ "$status" -eq 1 ]
    [[ "$output" == *"against 3.28"* && "$output" == *"p from"* ]]
    run --separate-stderr logdiff --target 3.28 a b
    [[ "$output" == *"p from"* ]]
    # a record's recipe brings the target along, as a published layout does
    sed -i 's/^recipe: tiny/recipe: record-61/' a/*.log b/*.log
    run --separate-stderr logdiff a b
    [[ "$output" == *"against 3.28"* && "$output" == *"p from"* ]]
}

@test "--curves of one group is its mean curve" {
    mkdir a
    for i in 1 2 3; do ours 3.30$i seed=$i > a/$i.log; done
    run --separate-stderr logdiff --curves --format tsv a
    [ "$(cells curve step runs <<< "$output" | tr '\n' ' ')" = "0 3 20 3 40 3 60 3 " ]
    [ "$(cells curve mean sd <<< "$output" | tail -1)" = "3.302 0.001" ]
    run --separate-stderr logdiff --curves a
    grep -qE '^ *a +60 +3 +3\.30200 +0\.00100 +6\.000$' <<< "$output"
}

# part FILE FROM TO: a log of gpt-train's from a step on, its clock from 0
part() {
    awk -v from="$2" -v to="$3" '
        !/^step:/ { if (/^tool/ || !/^peak/) print; if (/^ranks/ && from) print "resumed: step " from " of run/step-" from; next }
        { split($1, n, "[:/]"); k = n[2] + 0
          if (k < from || k > to || (from && k == from && /train_loss/)) next
          t = (k - from) * 100
          sub(/train_time:.*/, "train_time:" t "ms step_avg:" (k > from ? "100.00" : "0.00") "ms"); print }' "$1"
}

@test "a run that was resumed is one run, in one file or several, in any order; its clock goes on" {
    ours 3.1 > whole.log
    part whole.log 0 33 > one.log
    part whole.log 20 60 > two.log
    cat one.log two.log > appended.log
    logdiff --format tsv x=whole.log 2> /dev/null | grep -v '^runs' > want
    for args in "x=appended.log" "x=one.log x=two.log" "x=two.log x=one.log"; do
        # shellcheck disable=SC2086
        run --separate-stderr logdiff --format tsv $args
        [ "$status" -eq 0 ]
        [ "$(cells runs ended loss time_s resumed_from <<< "$output")" = "1 3.1 6 " ]
        diff want <(grep -v '^runs' <<< "$output" | grep -v '^notes')
        [[ "$stderr" != *"its clock is not the whole run's"* ]]
    done
    # three parts: the second was killed before its end and began again
    part whole.log 20 50 > b.log
    part whole.log 40 60 > c.log
    run --separate-stderr logdiff --format tsv x=one.log x=b.log x=c.log
    [ "$(cells runs ended loss time_s <<< "$output")" = "1 3.1 6" ]
}

@test "a continuation without its beginning, or of another seed or recipe, is a run by itself without a time" {
    ours 3.1 > whole.log
    part whole.log 0 33 > one.log
    part whole.log 20 60 > two.log
    run --separate-stderr logdiff --format tsv two.log
    [ "$(cells runs ended loss time_s resumed_from <<< "$output")" = "1 3.1  20" ]
    [[ "$stderr" == *"two.log:"*": continues a run from step 20: its clock is not the whole run's"* ]]
    sed -i 's/^recipe: tiny d/recipe: tiny e/' two.log
    run --separate-stderr logdiff --format tsv x=one.log x=two.log
    [ "$(cells groups runs <<< "$output")" = 1 ]
    [ "$(cells runs ended <<< "$output" | tr '\n' ' ')" = "0 1 " ]
    # a beginning that ends before the continuation begins is not continued by it
    part whole.log 0 19 > short.log
    part whole.log 20 60 > two.log
    run --separate-stderr logdiff --format tsv x=short.log x=two.log
    [ "$(cells runs ended <<< "$output" | wc -l)" -eq 2 ]
}

@test "times that one side or both lack: which" {
    mkdir a b
    for i in 1 2 3; do
        made today loss=3.27$i time_ms=10000$i seed=$i > a/$i.log
        made llmc loss=3.26$i seed=$i > b/$i.log
    done
    run --separate-stderr logdiff -q a b
    [[ "$output" == *"not faster: the logs of 'b' have no times"* ]]
    run --separate-stderr logdiff -q b a
    [[ "$output" == *"not faster: the logs of 'b' have no times"* ]]
    mkdir c
    for i in 1 2 3; do made llmc loss=3.25$i seed=$i > c/$i.log; done
    run --separate-stderr logdiff -q c b
    [[ "$output" == *"not faster: neither group's logs have times"* ]]
}

@test "what launchers and loggers put before lines is passed over, also before the header's" {
    made ours loss=3.1 > plain.log
    logdiff --format tsv x=plain.log | sed 's/plain.log//' > want
    put() { sed "s/^/$1/" plain.log > x.log; }
    esc=$(printf '\033')
    for prefix in '[default0]:' '[rank0]: ' '0: ' ' 3: ' '[1,0]<stdout>:' '2026-11-26 11:35:33,041 - INFO - ' \
        '[2026-11-26 11:35:33] ' "${esc}[32m" '   '; do
        echo "$prefix"
        sed "s/^/$prefix/" plain.log > x.log
        logdiff --format tsv x=x.log | sed 's/x.log//' > got
        if [ "$prefix" = '   ' ]; then # of blanks alone the header is not known, as it is no header then
            [ "$(cells runs ended loss time_s < got)" = "1 3.1 6" ]
        else
            diff want got
        fi
    done
    sed "s/step:\([0-9]*\)/${esc}[1mstep:\1${esc}[0m/; s/val_loss:[0-9.]*/${esc}[32m&${esc}[0m/" plain.log > x.log
    diff want <(logdiff --format tsv x=x.log | sed 's/x.log//')
}

@test "nanoGPT's and llm.c's output" {
    made nanogpt loss=3.1 > nano.log
    run --separate-stderr logdiff --format tsv nano.log
    [ "$(cells runs ended last_step loss time_s <<< "$output")" = "1 60 3.1 " ]
    [ "$(cells curve step val step_ms <<< "$output" | tail -1)" = "60 3.1 " ]
    [ "$(cells speed median_ms <<< "$output")" = 100 ]
    [[ "$stderr" == *"the log does not tell the number of steps: step 60 is taken for the end"* ]]
    made llmc-output loss=3.1 > llmc.log
    run --separate-stderr logdiff --format tsv llmc.log
    [ -z "$stderr" ]
    [ "$(cells runs ended last_step steps loss time_s <<< "$output")" = "1 60 60 3.1 6" ]
    # neither is of the speed-run
    [[ "$(logdiff llmc.log)" != *3.28* ]]
    # a step is missing: the sum of the others is not the run's time
    sed -i '/^step   30/d' llmc.log
    run --separate-stderr logdiff --format tsv llmc.log
    [ "$(cells runs ended loss time_s <<< "$output")" = "1 3.1 " ]
    [[ "$stderr" == *"step lines missing: 1"* ]]
}

@test "--follow without a baseline: each validation, and the run's report at the end" {
    run --separate-stderr logdiff --follow - < <(ours 3.1)
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [[ "${lines[0]}" =~ ^step\ 0/60:\ loss\ [0-9.]+,\ 0\.000\ s$ ]]
    [ "${lines[3]}" = "step 60/60: loss 3.1000, 6.000 s" ]
    [[ "$output" == *"Where the time went"* ]]
    run --separate-stderr logdiff --follow - < <(ours nan)
    [[ "$output" == *"; the loss is not finite"* ]]
}

@test "worth: cushion in steps, differences at equal steps and times, in text and tsv" {
    group base "3.2777 3.2785 3.2790 3.2785" "105369 105595 105414 105552" steps=120 source=1
    group new "3.2781 3.2803 3.2767 3.2779" "94649 94442 94243 94454" steps=100 source=2
    run --separate-stderr logdiff --format tsv "$LOGS/base" "$LOGS/new"
    # The last common steps are 80, 100, 120 of a curve 7.5 left^3, left being 1/3, 1/6, 0, which wobbles by
    # 0.002 at most: the parabola through them rises at its end by 0.00347 a step, and there is no cushion.
    cells worth group slope step time_s <<< "$output" > w
    awk 'NR == 1 { d = $2 - 7.5 * (4 * -1 / 216 + 1 / 27) / 40; ok = d < 4e-4 && d > -4e-4 && NF == 2 }
         NR == 2 { ok = ok && $3 == 100 && $4 == 94.243 } END { exit !(ok && NR == 2) }' w || { cat w; false; }
    [ -z "$(cells worth cushion <<< "$output" | tr -d '\n')" ]
    # linear over the last two intervals: 0.0010 below 3.28, the mean of the losses, at 0.0002 a step
    mkdir lin
    for i in 1 2 3; do
        awk -v at="3.2790$i" 'BEGIN { for (s = 0; s <= 60; s += 20) printf "step:%d/60 val_loss:%.5f train_time:%dms step_avg:%sms\n",
            s, at - 0.00002 + 0.0002 * (60 - s), 10 * s + i, s ? sprintf("%.2f", (10 * s + i) / s) : "nan" }' > lin/$i.log
    done
    run --separate-stderr logdiff --format tsv lin
    [ "$(cells worth slope cushion <<< "$output" | xargs printf '%.6f %.3f')" = "-0.000200 5.000" ]
    run --separate-stderr logdiff "$LOGS/base" "$LOGS/new"
    [[ "$output" == *"Cushion: steps by which the mean is ahead of the target"* ]]
}
