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
                floor * 1e-3 * rate * 1e12 > 512 * 11 * 6 * 64 * 2 * 256 && floor < 1e5 &&
                $(at["ratio"]) > 0.3 && $(at["ratio"]) < 1000)) exit 1 }' <<<"$output"
}
