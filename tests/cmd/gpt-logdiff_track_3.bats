#!/usr/bin/env bats
# gpt-logdiff under the rules of track 3: logs in the published form, the first passing step, the pairwise
# rule, the benchmark's table; and runs that are compared in pairs.

bats_require_minimum_version 1.5.0
load logdiff

# published FILE MORE LOSS...: trials of N = 3250 in one file, as the benchmark's programs write them: source, a
# rule, the environment, a rule, validations every 5 steps. A trial ends with LOSS; before that its curve lies as
# far above as result 36's mean does: 0.00065 at 3225, 0.00221 at 3200, 0.00425 at 3175. MORE is added to each.
published() {
    local file=$1 more=$2
    shift 2
    awk -v more="$more" -v losses="$*" 'BEGIN {
        for (i = 0; i < 100; i++) rule = rule "="
        print "import torch\nimport torch.nn as nn\nprint(f\"step:{step}/{steps} val_loss:{loss}\")\n"
        print rule "\nRunning PyTorch 2.10.0+cu128 compiled for CUDA 12.8 on NVIDIA H100 80GB HBM3 with world_size 8\n" rule
        n = split(losses, end, " ")
        at[0] = 3175; above[0] = 0.00425; at[1] = 3200; above[1] = 0.00221
        at[2] = 3225; above[2] = 0.00065; at[3] = 3250; above[3] = 0
        for (k = 1; k <= n; k++) for (s = 0; s <= 3250; s += 5) {
            x = s ? end[k] + 0.00425 + 0.0002 * (3175 - s) : 10.82584
            for (i = 0; i < 3; i++) if (s >= at[i] && s <= at[i + 1])
                x = end[k] + above[i] + (above[i + 1] - above[i]) * (s - at[i]) / 25
            printf "step:%d/3250 val_loss:%.5f train_time:%.3fs step_avg:%s lr_scale:%.3f\n", s,
                s ? x + more : x, s * 0.1549, s ? "154.90ms" : "nanms", 1 - s / 3250
        }
    }' > "$file"
}

setup_file() {
    mkdir -p "$LOGS/r36" "$LOGS/late"
    published "$LOGS/r36/a.txt" 0 3.27722 3.27941 3.27699 3.28091
    published "$LOGS/r36/b.txt" 0 3.27822 3.28034 3.27873
    published "$LOGS/r36/c.txt" 0 3.27932 3.27720 3.27825
    published "$LOGS/late/a.txt" 0.002 3.27722 3.27941 3.27699 3.28091
}

@test "result 36: ten trials of three files pass at 3250, not at 3225; the step is one for all" {
    sed -i 's|^step:[0-9]*[1-46-9]/.*$||' "$LOGS/r36/a.txt"      # blank lines between, and fewer steps
    run --separate-stderr logdiff --rules track-3 "$LOGS/r36"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    # (3.28 - 3.278658) sqrt(10) = 0.00424 of the specification; it falls by 0.00065 to 3250, so between by 0.00013
    # in 5 steps: at 3245 the mean 3.278788 gives 0.003833
    [[ "$output" == *"demonstrated: mean loss 3.27866, (3.28 - mean) sqrt(10) = 0.00424 >= 0.004"* ]]
    run --separate-stderr logdiff --rules track-3 --format tsv "$LOGS/r36"
    [ "$status" -eq 0 ]
    [ "$(cells groups runs steps <<< "$output")" = "10 3250" ]
    [ "$(cells runs gpu <<< "$output" | sort -u)" = "8 x NVIDIA H100 80GB HBM3" ]
    cells groups lead z z_p <<< "$output" | awk '{
        d = ($1 - 0.00424) ^ 2 < 25e-12; z = ($2 - 0.00424 / 0.0013) ^ 2 < 1e-4; exit !(d && z && $3 > 5e-4 && $3 < 6e-4) }'
    run --separate-stderr logdiff --rules track-3 --at-step 3225 "$LOGS/r36"
    [ "$status" -eq 1 ]
    # the specification has 0.00217, of unrounded losses; these give (3.28 - 3.279308) sqrt(10)
    [[ "$output" == *"loss not demonstrated: (3.28 - 3.27931) sqrt(10) = 0.0021"[789]" < 0.004"* ]]
}

@test "a run that was cut off counts: the step is one that all validated" {
    mkdir -p "$LOGS/cut"
    published "$LOGS/cut/a.txt" 0 3.27722 3.27699
    published "$LOGS/cut/b.txt" 0 3.27722
    sed -i '/^step:3205/,$d' "$LOGS/cut/b.txt"
    run --separate-stderr logdiff -q --rules track-3 "$LOGS/cut"
    [ "$status" -eq 1 ]
    [[ "$output" == *"so at each step that all runs validated, of which 3200 is the last"* ]]
    # 3.276 is enough for one run alone, and is between 3215 (3.275992) and 3210 of this one
    published "$LOGS/cut/one.txt" -0.00272 3.27744
    run --separate-stderr logdiff --rules track-3 --format tsv "$LOGS/cut/one.txt"
    [ "$status" -eq 0 ]
    [ "$(cells groups runs steps loss_mean <<< "$output")" = "1 3215 3.27599" ]
}

@test "two groups: fewer steps make a record, the pairwise rule is said; a list has losses alone" {
    run --separate-stderr logdiff --rules track-3 old="$LOGS/r36" new="$LOGS/late"
    [ "$status" -eq 1 ]
    [[ "$output" == *"new: loss not demonstrated: mean 3.28063 is not below 3.28"*"not fewer steps: 3250 against 3250"* ]]
    [[ "$output" == *"by the pairwise rule not shown to be better: -0.00333"[0-9]" < 0.004, p 0.99"* ]]
    mkdir -p "$LOGS/early"
    published "$LOGS/early/a.txt" -0.003 3.27722 3.27941 3.27699 3.28091
    run --separate-stderr logdiff --rules track-3 old="$LOGS/r36" new="$LOGS/early"
    [ "$status" -eq 0 ]
    [[ "$output" == *"new: record: mean loss 3.27"*"steps fewer; by the pairwise rule "* ]]
    echo 'losses = [3.27722, 3.27941, 3.27699, 3.28091, 3.27822, 3.28034, 3.27873, 3.27932, 3.27720, 3.27825]' > "$LOGS/list.txt"
    run --separate-stderr logdiff --rules track-3 "$LOGS/list.txt"
    [ "$status" -eq 0 ]
    [[ "$output" == *"demonstrated: mean loss 3.27866, (3.28 - mean) sqrt(10) = 0.00424 >= 0.004"* ]]
    run --separate-stderr logdiff --rules track-3 "$LOGS/list.txt" new="$LOGS/early"
    [ "$status" -eq 1 ]
    [[ "$output" == *"new: not fewer steps: published lists have none"* ]]
}

@test "--against N: the pairwise rule against a published result" {
    # ((3.2790 - 3.278659) + 0.0045 (3325 - 3250) / 100) / sqrt(1/20 + 1/10) = 0.009595
    run --separate-stderr logdiff --rules track-3 --against 12 "$LOGS/r36"
    [ "$status" -eq 0 ]
    [[ "$output" == *"(3.28 - mean) sqrt(10) = 0.00424 >= 0.004; by the pairwise rule better than result 12: 0.009595 >= 0.004, p 7.9e-14"* ]]
    # ((3.2783 - 3.278659) + 0.0045 (2690 - 3250) / 100) / sqrt(1/8 + 1/10) < 0
    run --separate-stderr logdiff --rules track-3 --against 46 "$LOGS/r36"
    [ "$status" -eq 0 ]
    [[ "$output" == *"by the pairwise rule not shown to be better than result 46: -0.0538"* ]]
    run --separate-stderr logdiff --rules track-3 --against 15 "$LOGS/r36"
    [ "$status" -eq 2 ]
    [[ "$stderr" == "gpt-logdiff: track-3 has no result 15 here"* ]]
}

@test "--follow says when the baseline has passed" {
    run --separate-stderr logdiff -q --rules track-3 --follow old="$LOGS/r36" - < "$LOGS/late/a.txt"
    [ "$status" -eq 1 ]
    [ "$(grep -c '^step 3250/3250: .*; can no longer become a record: the baseline passes at step 3250$' <<< "$output")" -eq 4 ]
}

@test "--standings: the benchmark's seven columns, ours among them by their steps" {
    run --separate-stderr logdiff --rules track-3 --standings --format md mine="$LOGS/r36"
    [ "$status" -eq 0 ]
    output=$(tr -s ' ' <<< "$output")
    [ "$(head -n 1 <<< "$output")" = "| # | Steps to 3.28 | Evidence | Description | Date | Log | Contributors |" ]
    grep -qxF '| 36 | 3250 | 3.2787 (n=10)✓ | Muon, lr 0.025, wd 0.05: the baseline | 2026/06/11 | – | – |' <<< "$output"
    grep -qF '| 2 | 5625 | 3.2790 (n=1)⊗ | AdamW' <<< "$output"
    grep -qxF "| – | 3250 | 3.2787 (n=10)✓ | mine | – | [log]($LOGS/r36/a.txt) | – |" <<< "$output"
    [ "$(grep -cE '^\| ([0-9]+|–) \| [0-9]+ ' <<< "$output")" -eq 35 ]
    # fewest steps first
    grep -E '^\| ([0-9]+|–) \| [0-9]+ ' <<< "$output" | cut -d'|' -f3 | sort -n -c
    published "$LOGS/best.txt" -0.2 3.27722
    run --separate-stderr logdiff --rules track-3 --standings --format md "$LOGS/best.txt"
    tr -s ' ' <<< "$output" | grep -qE '^\| – \| [0-9]+ \(!\) \| '
    run --separate-stderr logdiff --standings "$LOGS/r36"
    [ "$status" -eq 2 ]
    [[ "$stderr" == "gpt-logdiff: --standings: of --rules track-3, found track-1"* ]]
}

@test "--paired: the error of pairs by seed beside the unpaired one, and in order where seeds are not told" {
    mkdir -p "$LOGS/base" "$LOGS/new"
    for seed in 1 2 3; do
        made ours loss=3.$((seed * 2)) seed=$seed > "$LOGS/base/$((4 - seed)).log"
        made ours loss=3.$((seed * 2 - 1))$seed seed=$seed > "$LOGS/new/$seed.log"
    done
    # differences -0.09, -0.08, -0.07
    run --separate-stderr logdiff -q --rules loss --paired "$LOGS/base" "$LOGS/new"
    [ "$status" -eq 0 ]
    [[ "$output" == *"new: better: mean loss lower by 0.08000 (p 0.0052 < 0.01, pairs, two-sided)"* ]]
    run --separate-stderr logdiff -q --rules loss --paired --format tsv "$LOGS/base" "$LOGS/new"
    [ "$(cells paired pairs by left_out <<< "$output")" = "3 seed 0" ]
    cells paired loss_diff error unpaired_error p <<< "$output" | awk '{
        exit !(($1 + 0.08) ^ 2 < 1e-16 && ($2 - 0.01 / sqrt(3)) ^ 2 < 1e-16 && $3 > 0.15 && ($4 - (1 - 12 / sqrt(145.5))) ^ 2 < 1e-10) }'
    run --separate-stderr logdiff -q --rules loss "$LOGS/base" "$LOGS/new"
    [ "$status" -eq 1 ]
    [[ "$output" == *"not demonstrated to be better: loss -0.08000"* ]]
    run --separate-stderr logdiff -q --rules loss --paired --format tsv "$LOGS/r36" "$LOGS/late"
    [ "$(cells paired pairs by left_out <<< "$output")" = "4 order 6" ]
    run --separate-stderr logdiff --paired "$LOGS/r36"
    [ "$status" -eq 2 ]
    [[ "$stderr" == "gpt-logdiff: --paired: expected a baseline and another group, found one"* ]]
}
