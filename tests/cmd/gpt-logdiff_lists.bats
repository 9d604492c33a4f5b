#!/usr/bin/env bats
# Published lists of losses and times: the reach of rounding, sets in one text, what is given twice.

bats_require_minimum_version 1.5.0
load logdiff

setup() {
    cd "$BATS_TEST_TMPDIR" || return
}

# The extremes over all 2^9 corners of the box of half a unit of the fourth digit are 0.0044 and 0.0074:
# t of 8 degrees of freedom in closed form, in Python's floats.
@test "Python drops zeros at the end: p from, p to are those of four digits" {
    echo 'losses = [3.2794, 3.2777, 3.2793, 3.2799, 3.2784, 3.277, 3.2778, 3.2803, 3.2793]' > l.txt
    run --separate-stderr logdiff l.txt
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [[ "${lines[1]}" =~ 0\.0044\ +0\.0074$ ]]
    [[ "$output" != *"may be anything"* ]]
    [[ "$output" == *"3.2784, 3.2770, 3.2778"* ]]
    [ "$(logdiff --format tsv l.txt | cells runs loss_digits | sort -u)" = 4 ]
    # most have fewer digits than the one with six: that is no dropped zero, and each counts as it stands
    echo 'losses = [3.2794, 3.2777, 3.279312, 3.2799]' > m.txt
    [ "$(logdiff --format tsv m.txt | cells runs loss_digits | tr '\n' ' ')" = "4 4 6 4 " ]
}

@test "the published p values, from lists as pull requests have them" {
    cat > cwd.md <<'END'
This PR:

```
import scipy.stats
import torch

losses = [3.2784, 3.2771, 3.2777, 3.2790, 3.2794, 3.2813, 3.2772, 3.2772, 3.2785, 3.2783]
times = [137.582, 137.753, 137.636, 137.507, 137.639, 137.708, 137.722, 137.677, 137.456, 137.705]

print("p=%.4f" % scipy.stats.ttest_1samp(losses, 3.28, alternative="less").pvalue)
# p=0.0018

print("losses:", torch.std_mean(torch.tensor(losses)))
# losses: (std=0.0013, mean=3.2784)
# time: (std=0.0970, mean=137.6385)
```

Previous PR (timed on same machine):

```
times = [139.813, 139.832, 139.877, 139.839, 139.939]
```
END
    run --separate-stderr logdiff --format tsv cwd.md
    [ "$status" -eq 0 ]
    [ "$stderr" = "gpt-logdiff: cwd.md: times without losses: not used" ]
    rounded() { cells groups runs loss_mean loss_sd p time_mean time_sd | xargs printf '%d %.4f %.4f %.4f %.4f %.4f\n'; }
    [ "$(rounded <<< "$output")" = "10 3.2784 0.0013 0.0018 137.6385 0.0970" ]
    # accs over several lines; p=0.0053, 0.0010, 3.2786; times 0.1897, 159.3333
    cat > accs.md <<'END'
Validation:
```
accs = [3.2779, 3.2779, 3.2789, 3.2778,
        3.2789, 3.2785, 3.2806]
times = [159.447, 158.998, 159.467, 159.191, 159.503, 159.259, 159.468]
```
END
    [ "$(logdiff --format tsv accs.md | rounded)" = "7 3.2786 0.0010 0.0053 159.3333 0.1897" ]
}

@test "several sets in one text are groups, by their names or the line above; their order is the text's" {
    cat > two.txt <<'END'
exp_losses = [3.2787, 3.2796, 3.2775, 3.2796]
exp_times = [91.487, 91.421, 91.517, 91.443]
# Baseline: runs 3 and 4 are not there
baseline_losses = [3.2789, 3.2789, 3.2793]
baseline_times = [92.170, 92.370, 92.276]
train_losses = [9.1, 9.2]
END
    run --separate-stderr logdiff --format tsv two.txt
    [ "$(cells groups group runs time_mean <<< "$output" | cut -c 1-14)" = $'exp 4 91.467\nbaseline 3 92.' ]
    printf '%s\n' '**Current WR:**' '```' 'losses = [3.2791, 3.2794, 3.2795]' '```' \
        '## This PR (fused):' 'losses = [3.2790, 3.2798, 3.2776]' 'losses = [3.2790, 3.2798, 3.2771]' > three.md
    [ "$(logdiff --format tsv three.md | cells groups group runs | tr '\n' ' ')" = "Current WR 3 2 3 3 3 " ]
    # behind a baseline of its own the sets stand where their operand stands
    echo 'losses = [3.2801, 3.2802]' > first.txt
    [ "$(logdiff --format tsv first.txt two.txt | cells groups group | tr '\n' ' ')" = "first.txt exp baseline " ]
}

@test "its own report is read again, to the same numbers" {
    group base "3.2777 3.2785 3.2790 3.2785" "105369 105595 105414 105552" steps=120 source=1
    group new "3.2781 3.2803 3.2767" "104649 104442 104243" steps=110 source=2
    logdiff "$LOGS/base" "$LOGS/new" > report.txt || true
    logdiff --format tsv "$LOGS/base" "$LOGS/new" | cells groups group runs time_mean loss_mean p > a || true
    logdiff --format tsv report.txt | cells groups group runs time_mean loss_mean p > b || true
    [ "$(wc -l < a)" -eq 2 ]
    diff a b
    # and the lists are runs that the logs are, too
    run --separate-stderr logdiff --format tsv -q base="$LOGS/base" base=<(sed -n '/^base/,/n = /p' report.txt)
    [ "$(cells groups runs <<< "$output")" = 4 ]
}

@test "a list that is given twice counts once, and is said; equal losses of one list are runs of their own" {
    echo 'losses = [3.2785, 3.2785, 3.279, 3.2779]' > a.txt
    sed 's/^/the same /; s/the same //' a.txt > b.txt
    run --separate-stderr logdiff --format tsv x=a.txt x=b.txt
    [ "$(cells groups runs <<< "$output")" = 4 ]
    [[ "$stderr" == *"b.txt:1: the same run as in a.txt: it counts once"* ]]
    # whole seconds do not tell runs apart
    printf '%s\n' 'losses = [3.2785, 3.2785, 3.279]' 'times = [105, 105, 106]' > c.txt
    [ "$(logdiff --format tsv c.txt | cells groups runs)" = 3 ]
}

@test "what a list may not be is said with its line: words, a negative number, other numbers of times" {
    printf '%s\n' 'one:' 'losses = [3.2785, x]' 'two:' 'losses = [3.2785, -3.2]' 'three:' \
        'losses = [3.2, 3.3]' 'times = [1.0]' 'four:' 'losses = [3.2785, 3.2786]' > l.txt
    run --separate-stderr logdiff --format tsv l.txt
    [ "$(cells groups group runs <<< "$output")" = "four 2" ]
    [[ "$stderr" == *"l.txt:2: not used: a list of other than numbers"* ]]
    [[ "$stderr" == *"l.txt:4: not used: a list with a negative number"* ]]
    [[ "$stderr" == *"l.txt:6: 2 losses and 1 times: expected as many"* ]]
    echo 'losses = [3.2785, 3.27' > open.txt
    run --separate-stderr logdiff open.txt
    [ "$status" -eq 3 ]
    [[ "$stderr" == *"open.txt: a list that is not closed by ']'"* ]]
}

@test "a run in both groups, and clocks that begin anew in one run of a group, are no record" {
    group base "3.2777 3.2785 3.2790 3.2785" "105369 105595 105414 105552" steps=120 source=1
    group new "3.2770 3.2771 3.2767 3.2772" "104649 104442 104243 104300" steps=120 source=1
    run --separate-stderr logdiff "$LOGS/base" "$LOGS/new"
    [ "$status" -eq 0 ]
    cp "$LOGS/base/run0.txt" "$LOGS/new/run9.txt"
    run --separate-stderr logdiff "$LOGS/base" "$LOGS/new"
    [ "$status" -eq 1 ]
    [[ "$output" == *"new: the same run in both groups: "*"/new/run9.txt"* ]]
    rm "$LOGS/new/run9.txt"
    # its first ten steps have a clock that ends at 30 s
    awk '/^step:[0-9]+\/120/ { split($1, n, "[:/]"); if (n[2] <= 10 && n[2] > 0) sub(/train_time:[0-9]+ms step_avg:[0-9.]+ms/,
         "train_time:" 3000 * n[2] "ms step_avg:3000.00ms") } { print }' "$LOGS/new/run0.txt" > x
    mv x "$LOGS/new/run0.txt"
    run --separate-stderr logdiff "$LOGS/base" "$LOGS/new"
    [ "$status" -eq 1 ]
    [[ "$output" == *"new: unequal clocks: 'new' mixes runs whose clock begins with step 1 and with step 11"* ]]
}

@test "a loss below 0 is no loss, and its line is named" {
    group neg "3.2777 3.2785 3.2790 3.2785" "105369 105595 105414 105552" steps=120 source=1
    sed -i 's/val_loss:3.2790/val_loss:-3.2790/' "$LOGS/neg/run2.txt"
    run --separate-stderr logdiff --format tsv "$LOGS/neg"
    [ "$(cells groups runs <<< "$output")" = 3 ]
    [[ "$stderr" == *"neg/run2.txt:"*": not read: a loss below 0"* ]]
}

@test "a recipe's numbers are compared as numbers" {
    mkdir a b
    for i in 1 2; do
        made ours seed=$i loss=3.27$i | sed 's/^vocab = .*/lr = .03\nrows = 2 3\/100 1,0.5,.25>0 4k/' > a/$i.log
        made ours seed=$i loss=3.27$i | sed 's/^vocab = .*/lr = 0.030\nrows = 2 0.03 1,.5,0.25>0.0 4000/' > b/$i.log
    done
    run --separate-stderr logdiff --why a b
    [[ "$output" == *"recipe: the same in all runs"* ]]
    sed -i 's/^lr = .*/lr = 0.0301/' b/2.log
    run --separate-stderr logdiff --why a b
    [[ "$output" == *"recipe: 'b' mixes 2"* ]]
    # what a name is made of is no number
    sed -i 's/^lr = .*/lr = 3e/' b/2.log
    sed -i 's/^lr = .*/lr = 3/' b/1.log
    run --separate-stderr logdiff --why a b
    [[ "$output" == *"recipe: 'b' mixes 2"* ]]
}
