# What gpt-train --bench measures.

bats_require_minimum_version 1.5.0
load tiny_runs
load few_steps

@test "--bench takes a checkpoint's recipe, and writes nothing" {
    train -s schedule.steps=2 -s schedule.extension=1 -o "$BATS_TEST_TMPDIR/run" > /dev/null
    small=(-s "stages.0=256 3 128 1 1,0.5,0.25>0" -s "stages.1=256 3 128 1 1,0.5>0" -s "stages.2=256 3 128 1 1"
           -s "stages.3=256 3 128 - 1")     # the extension has no row
    run --separate-stderr "$GPT_BIN/gpt-train" --resume "$BATS_TEST_TMPDIR/run" "${small[@]}" --bench 1 \
        -o "$BATS_TEST_TMPDIR/none"
    echo "$status $stderr $output"
    [ "$status" -eq 0 ]
    [ "$(grep -c '^[0-2]' <<< "$output")" -eq 3 ]
    # one pair has no error
    [ "$(awk -F '\t' 'NR > 1 && $8 == "" && $10 == "" && $9 != ""' <<< "$output" | wc -l)" -eq 3 ]
    [ ! -e "$BATS_TEST_TMPDIR/none" ]
}

# bats test_tags=long
@test "--bench: as many figures as names, and errors of what is compared" {
    run --separate-stderr train --ranks 2 --bench 3
    echo "$status $stderr $output"
    [ "$status" -eq 0 ]
    [ "$(awk -F '\t' '{ print NF }' <<< "$output" | sort -u | wc -l)" -eq 1 ]
    awk -F '\t' '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        { if ($at["min_ms"] > $at["step_ms"] || $at["fwd_bwd_ms"] <= 0 || $at["optim_se"] <= 0 ||
              $at["exposed_se"] <= 0) exit 1 }' <<< "$output"
}

@test "--estimate: the run's time on the ranks at hand is its steps times theirs, on others with what it assumes" {
    small=(-s "stages.0=256 3 128 1 1,0.5,0.25>0" -s "stages.1=256 3 128 1 1,0.5>0" -s "stages.2=256 3 128 1 1"
           -s "stages.3=256 3 128 - 1" -s data.chunks=4 --threads 1 --bench 1)
    run --separate-stderr train "${small[@]}" --estimate 1
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    awk -F'\t' '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        /^[0-2]\t/ { step[$1] = $(at["step_ms"]) }
        /^#estimate/ { for (i = 1; i <= NF; i++) at[$i] = i }
        $1 == "estimate" && $2 != "run" {
            if ($(at["least_ms"]) != step[$2] || $(at["most_ms"]) != step[$2]) bad = 1
            sum += step[$2] * $(at["steps"]) / 1e3; steps += $(at["steps"]) }
        $1 == "estimate" && $2 == "run" { d = $(at["least_s"]) - sum; all = steps == $(at["steps"]) }
        $1 == "assumes" { lines++ }
        END { exit !(all && !bad && d <= 1e-6 * sum && -d <= 1e-6 * sum && lines == 1) }' <<< "$output"
    run --separate-stderr train "${small[@]}" --estimate 4 --bandwidth 2
    [ "$status" -eq 0 ]
    [ "$(grep -c '^assumes' <<< "$output")" -eq 4 ]
    grep -q '^assumes.* 1 a rank at most for 4;' <<< "$output"
    grep -q '^assumes.*at 2 GB/s (--bandwidth)$' <<< "$output"
    # all that a rank sends, in MB, at 2 GB/s: as many half ms
    awk -F'\t' '/^#estimate/ { for (i = 1; i <= NF; i++) at[$i] = i; next }
        $1 == "estimate" && $2 != "run" { n++; d = $(at["most_ms"]) - $(at["least_ms"]) - $(at["sent_MB"]) / 2
            if (!(d <= 1e-3 && -d <= 1e-3)) bad = 1 } END { exit bad || n != 3 }' <<< "$output"
    for args in "--estimate 2" "--bench 1 --bandwidth 2" "--bench 1 --estimate 9" "--bench 1 --estimate 0"; do
        # shellcheck disable=SC2086
        run --separate-stderr "$GPT_BIN/gpt-train" -r tiny $args
        [ "$status" -eq 2 ]
        [ -z "$output" ]
        [[ $stderr == "gpt-train: --estimate"* || $stderr == "gpt-train: --bandwidth needs --estimate"* ]]
    done
}

# The floor has 6 D 2 F of each token's products at least, at the rate that the table names, which no
# processor that runs this exceeds.
# bats test_tags=long
@test "--bench on a CPU has that CPU's floor, and says from which rates" {
    tool gpt-train "${FEW[@]}" --bench 1
    [ "$status" -eq 0 ]
    [ "$(cut -f1 <<<"$output" | grep -c '^[0-9]')" -eq 3 ]
    awk -F'\t' 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        { rate = $(at["product_TFLOP_s"]); floor = $(at["floor_ms"])
          if (!(rate > 1e-4 && rate < 20 && $(at["copy_GB_s"]) > 0.1 && $(at["copy_GB_s"]) < 2000 &&
                floor * 1e-3 * rate * 1e12 > 512 * 11 * 6 * 32 * 2 * 64 && floor < 1e5 &&
                $(at["ratio"]) > 0.3 && $(at["ratio"]) < 1000)) exit 1 }' <<<"$output"
}
