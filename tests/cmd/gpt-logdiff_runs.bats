# Which logs gpt-logdiff takes for runs, which of them count, and what it says of the others.

bats_require_minimum_version 1.5.0
load logdiff

setup_file() {
    export LOGS=$BATS_FILE_TMPDIR
    for i in 1 2 3; do
        "$GPT_TESTS/make_runlog" today loss=3.275 time_ms=720$i seed=$i >"$LOGS/run$i.txt"
    done
}

setup() { cd "$BATS_TEST_TMPDIR"; }

tool() { run --separate-stderr "$GPT_BIN/$1" "${@:2}"; }

@test "a log and an excerpt of it are one run, in any order" {
    mkdir x
    cp "$LOGS/run1.txt" x/stdout.txt
    for excerpt in 'step:60/60 val' '/60 val_loss' 'step:5[0-9]*/60\|step:60'; do
        grep "$excerpt" "$LOGS/run1.txt" >x/final_val_loss.txt
        for order in "x=x/stdout.txt x=x/final_val_loss.txt" "x=x/final_val_loss.txt x=x/stdout.txt" x; do
            # shellcheck disable=SC2086
            tool gpt-logdiff --format tsv -c $order
            [ "$status" -eq 1 ]
            [ "$(cells groups runs p <<<"$output")" = '1 ' ]
            [ "$(cells runs ended <<<"$output" | wc -l)" -eq 1 ]
            [[ $stderr = *"the same run as in x/"*": it counts once"* ]]
        done
    done
    tool gpt-logdiff -q x # without the remark, too, the report says why n is 1
    [ -z "$stderr" ]
    [[ $output = *"(n = 1; 1 further log of a counted run)"* ]]
    tool gpt-logdiff --format tsv x y="$LOGS/run2.txt" y="$LOGS/run3.txt" -c -s
    [ "$(cells curves base_sd <<<"$output" | sort -u)" = '' ] # one run at each step
}

@test "equal losses and equal times show nothing" {
    tool gpt-logdiff x="$LOGS/run1.txt" x="$LOGS/run2.txt" x="$LOGS/run3.txt"
    [ "$status" -eq 1 ]
    [[ $output = *"loss not demonstrated: 3 equal losses have no deviation"* ]]
    run ! grep -qE 'NaN|nan| 0\.0000  0\.0000' <<<"$output"
    for i in 1 2; do
        "$GPT_TESTS/make_runlog" today loss=3.27$i time_ms=7200 seed=$i >same$i.txt
        "$GPT_TESTS/make_runlog" today loss=3.27$i time_ms=7100 seed=$i >less$i.txt
    done
    tool gpt-logdiff --mixed x=same1.txt x=same2.txt y=less1.txt y=less2.txt
    [ "$status" -eq 1 ]
    [[ $output = *"not demonstrated to be faster: -0.1000 s, but equal values have no deviation"* ]]
}

@test "--at-step judges runs that were ended early at a step that all have" {
    step=$(sed -n 's/^step:\([1-9][0-9]*\)\/60 val.*/\1/p' "$LOGS/run1.txt" | head -1)
    [ "$step" -lt 60 ]
    for i in 1 2 3; do sed "/^step:$step.60 val/q" "$LOGS/run$i.txt" >cut$i.txt; done
    tool gpt-logdiff x=cut1.txt x=cut2.txt x=cut3.txt
    [[ $status -eq 1 && $output = *"no run reached its end"* ]]
    tool gpt-logdiff -q --format tsv --at-step "$step" cut=cut1.txt cut=cut2.txt cut=cut3.txt whole="$LOGS/run3.txt"
    [ "$(cells groups runs steps <<<"$output")" = "3 $step"$'\n'"1 $step" ]
    [ "$(cells runs ended loss time_s <<<"$output")" = "$(for i in 1 2 3 3; do
        sed -n "s/^step:$step.60 val_loss:\([0-9.]*\) train_time:\([0-9]*\)ms.*/1 \1 \2/p" "$LOGS/run$i.txt" |
            awk '{ print $1, $2 + 0, $3 / 1000 }'
    done)" ]
    tool gpt-logdiff --at-step 59 "$LOGS/run1.txt"
    [ "$status" -eq 1 ]
    [[ $stderr = *"no validation of the step of --at-step"* ]]
    tool gpt-logdiff --at-step 10 --follow "$LOGS/run1.txt" -
    [[ $status -eq 2 && $stderr = *"--at-step beside --follow"* ]]
}

@test "losses and times as they are published are runs" {
    # of the table published with record 61: mean, deviation and p are printed beside them there
    printf '%s\n' 'import torch' 'losses = [3.2777, 3.2785, 3.2790, 3.2785,' \
        '          3.2788, 3.2791, 3.2766, 3.2784] # eight' \
        'times  = [105.369, 105.595, 105.414, 105.552, 105.561, 105.582, 105.609, 105.607]' >list.txt
    tool gpt-logdiff list.txt
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [[ $output = *" 105.5361  0.0923 "*" 3.2783  0.0008 "*" 0.0003 "* ]]
    printf '%s\n' "$output" >report.txt # what it prints, it reads
    tool gpt-logdiff --format tsv report.txt
    [ "$(cells runs loss time_s <<<"$output" | tail -1)" = '3.2784 105.607' ]
    while IFS='|' read -r text why; do
        printf "$text" >bad.txt
        tool gpt-logdiff bad.txt
        [ "$status" -eq 3 ]
        [[ $stderr = *"$why"* ]]
    done <<'END'
losses = [3.1, x]\n|a list of other than numbers
losses = [3.1, 3.2\n|a list that is not closed
losses = [3.1, 3.2]\ntimes = [1]\n|2 losses and 1 times
losses = []\n|no step lines
END
    { echo 'losses = [1.0, 2.0]'; cat "$LOGS/run1.txt"; } >log.txt # a log's own text is not a list
    tool gpt-logdiff --format tsv log.txt
    [ "$(cells runs loss <<<"$output")" = 3.275 ]
}

@test "runs on a CPU differ in their device" {
    for ranks in 1 2; do
        printf 'tool: gpt-train 0.1.0\ndevice: cpu\nranks: %d\n%s\n' $ranks "$(printf '=%.0s' {1..80})" >$ranks.log
        printf 'step:2/2 val_loss:3.2%d00 train_time:10%dms step_avg:50.50ms\n' $ranks $ranks >>$ranks.log
    done
    tool gpt-logdiff --target 3.28 1.log 2.log
    [[ $output = *"unequal device: 1 x cpu and 2 x cpu"* ]]
    mkdir both && mv [12].log both
    tool gpt-logdiff --target 3.28 both
    [[ $output = *"unequal device: 'both' mixes 2"* ]]
}

@test "runs that validate on other shards have unequal data" {
    for val in '' 'validation data: 01\n' 'validation data: 02\n'; do
        printf "tool: gpt-train 0.1.0\ndata: 03\n${val}device: cpu\n%s\n" "$(printf '=%.0s' {1..80})" >"v${val:18:1}.log"
        echo "step:2/2 val_loss:3.2${val:18:1}00 train_time:100ms step_avg:50.00ms" >>"v${val:18:1}.log"
    done
    for other in v.log v2.log; do
        tool gpt-logdiff --target 3.28 v1.log $other
        [[ $output = *": unequal data; "* ]]
    done
    sed 's/ 02$/ 01/' v2.log >same.log
    tool gpt-logdiff --target 3.28 v1.log same.log
    [[ $output != *unequal* ]]
}

@test "of the warnings about a file the first three of a kind are said, and how many more" {
    "$GPT_TESTS/make_runlog" today loss=3.27 time_ms=7200 seed=1 >good.txt
    "$GPT_TESTS/make_runlog" today loss=3.26 time_ms=7300 seed=2 >>good.txt
    awk '{ print } /^step:[1-9][0-9]*.* train_time/ && !/val/ { print "step:9/60 val_loss:x"; print }' good.txt >bad.txt
    bad=$(grep -c 'loss:x' bad.txt)
    [ "$bad" -ge 100 ]
    tool gpt-logdiff bad.txt
    [ "$(grep -c 'not read: ' <<<"$stderr")" -eq 3 ]
    [ "$(grep -c 'a second line of step' <<<"$stderr")" -eq 3 ]
    first=$(grep -n -m1 'loss:x' bad.txt | cut -d: -f1)
    [[ $stderr = *"gpt-logdiff: bad.txt: and $((bad - 3)) more like line $first"* ]]
    [[ $stderr = *"gpt-logdiff: bad.txt: and $((bad - 3)) more like line $((first + 1))"* ]]
    for i in 1 2 3 4 5; do cat good.txt; done >many.txt
    tool gpt-logdiff many.txt
    [ "$(grep -c 'the same run as in' <<<"$stderr")" -eq 3 ]
    [[ $stderr = *"many.txt: and 5 more like line "* ]]
}
