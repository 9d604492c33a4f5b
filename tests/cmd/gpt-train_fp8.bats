# gpt-train with products in fp8: of the head, of the MLPs.

bats_require_minimum_version 1.5.0
load tiny_runs

# Without it, more micro-batches a rank push small gradients below what e5m2 can hold.
# bats test_tags=long
@test "head_scale_micro: the fp8 head rounds the same on any number of ranks" {
    f32_recipe > "$BATS_TEST_TMPDIR/f32.recipe"
    fp8() { train -r "$BATS_TEST_TMPDIR/f32.recipe" -s optimizer.polar=f32 -s precision.head_fp8=yes \
        -s "precision.head_scales=100/448 1.6/448 50" -s precision.head_scale_micro="$1" --ranks "$2"; }
    fp8 yes 1 > "$BATS_TEST_TMPDIR/1.log"
    fp8 yes 8 > "$BATS_TEST_TMPDIR/8.log"
    fp8 no 1 > "$BATS_TEST_TMPDIR/no.log"
    fp8 no 8 > "$BATS_TEST_TMPDIR/no8.log"
    diff <(losses "$BATS_TEST_TMPDIR/8.log") <(losses "$BATS_TEST_TMPDIR/no8.log")
    run worst_difference "$BATS_TEST_TMPDIR/1.log" "$BATS_TEST_TMPDIR/8.log"
    same=${output#* }
    run worst_difference "$BATS_TEST_TMPDIR/no.log" "$BATS_TEST_TMPDIR/no8.log"
    echo "differences of 1 and 8 ranks in 1e-7: $same with it, ${output#* } without"
    # Ranks add in other orders, and a last bit may move a number to the next code of e5m2, an eighth
    # away: a few such flips pass 1e-5, but stay far below what numbers that vanish do.
    [ "$same" -lt $((${output#* } / 100)) ]
}

# files of two checkpoints but for what names the recipe
same_states() { diff -r -x MANIFEST -x recipe.txt -x log.txt "$1" "$2"; }

# bats test_tags=long
@test "head_weight=fp8: Adam's copy of the head gives the bits of a head that rounds its weight" {
    fp8=(-s precision.head_fp8=yes -s precision.check_weights=yes --keep 0)
    late=()
    for n in 1 2 4; do
        train "${fp8[@]}" "${late[@]}" --ranks $n -o bf16.$n > bf16.$n.log
        train "${fp8[@]}" "${late[@]}" -s precision.head_weight=fp8 --ranks $n -o fp8.$n > fp8.$n.log
        diff <(losses bf16.$n.log) <(losses fp8.$n.log)
        [ "$(losses fp8.$n.log | grep -c train_loss)" -eq 11 ]
        same_states bf16.$n fp8.$n
        grep -q '^head: largest weight 0[.][0-9]*, fp8 ends at 1[.]6$' fp8.$n.log
        [ "$(grep -c '^head: ' bf16.$n.log)" -eq 0 ]
        late=(-s "order.late=lm_head mlp")      # from two ranks on
    done
    for weight in bf16 fp8; do                  # a head that follows the embedding while they are tied
        train "${fp8[@]}" -s "order.tied=embed lm_head" -s precision.head_weight=$weight --ranks 2 \
            -o $weight.tied > $weight.tied.log
    done
    diff <(losses bf16.tied.log) <(losses fp8.tied.log)
    same_states bf16.tied fp8.tied
    for step in 4 8; do                         # before and after head and embedding part
        resume --ranks 2 --resume fp8.2/step-00000$step -o again.$step > /dev/null
        same_checkpoint fp8.2/step-000011 again.$step/step-000011
    done
    run --separate-stderr train -s precision.head_weight=fp8
    [ "$status" -eq 2 ]
    [[ "${stderr_lines[0]}" == *"parameters.lm_head: a copy in e4m3 is for lm_head, with head_fp8 = yes"* ]]
    # A chain writes the copy as Adam does.
    chain=("${fp8[@]}" -s order.tied=- -s "rules.mine=lr 0.01 | momentum 0.9 | step"
           -s "parameters.lm_head=d,v bf16 normal:0.005 mine sharded - - 1 1 no")
    train "${chain[@]}" --ranks 2 -o bf16.chain > bf16.chain.log
    train "${chain[@]}" --ranks 2 -s precision.head_weight=fp8 -o fp8.chain > fp8.chain.log
    diff <(losses bf16.chain.log) <(losses fp8.chain.log)
    [ "$(losses fp8.chain.log | grep -c train_loss)" -eq 11 ]
    same_states bf16.chain fp8.chain
}

# Codes have 3 bits behind the point: products of 64 numbers are off by 2^-4 / sqrt(3) of a number at most,
# 1% of a sum, and losses by a part of that. No bits are shared with bf16, or nothing was quantised.
# bats test_tags=long
@test "mlp=fp8: ranks agree, resume is exact, losses are within 1% of bf16's, validation is in bf16" {
    train --keep 0 -o bf16 > bf16.log
    for n in 1 2; do
        train -s precision.mlp=fp8 -s precision.check_weights=yes -s "order.late=lm_head mlp" --ranks $n --keep 0 -o fp8.$n > fp8.$n.log
        run paste <(losses bf16.log | grep train_loss) <(losses fp8.$n.log | grep train_loss)
        echo "$output"
        awk '{ split($2, a, ":"); split($4, b, ":"); d = a[2] - b[2]; if (d < 0) d = -d; if (d > 0) other++;
               if (!(d <= 0.01 * a[2])) exit 1; n++ } END { exit !(n == 11 && other > 5) }' <<< "$output"
    done
    resume --ranks 2 --resume fp8.2/step-000004 -o again > /dev/null
    same_checkpoint fp8.2/step-000011 again/step-000011
    diff <(losses bf16.log | grep -m 1 val_loss) <(losses fp8.1.log | grep -m 1 val_loss)   # of the initial weights
    # the second product as well, and the backward
    for more in "-s precision.mlp_down=fp8" "-s precision.mlp_backward=fp8" "-s precision.mlp_down=fp8 -s precision.mlp_backward=fp8 -s precision.mlp_grads=both"; do
        for n in 1 2; do
            # shellcheck disable=SC2086
            train -s precision.mlp=fp8 $more -s precision.check_weights=yes -s "order.late=lm_head mlp" \
                --ranks $n --keep 0 -o "more.$n" > more.$n.log
            run paste <(losses fp8.$n.log | grep train_loss) <(losses more.$n.log | grep train_loss)
            echo "$output"
            awk '{ split($2, a, ":"); split($4, b, ":"); d = a[2] - b[2]; if (d < 0) d = -d; if (d > 0) other++;
                   if (!(d <= 0.01 * a[2])) exit 1; n++ } END { exit !(n == 11 && other > 5) }' <<< "$output"
        done
        resume --ranks 2 --resume more.2/step-000004 -o more.again > /dev/null
        same_checkpoint more.2/step-000011 more.again/step-000011
        diff <(losses bf16.log | grep -m 1 val_loss) <(losses more.1.log | grep -m 1 val_loss)
        rm -r more.*
    done
    run --separate-stderr train -s precision.mlp=e4m3
    [ "$status" -eq 2 ]
    run --separate-stderr train -s precision.mlp_down=fp8
    [ "$status" -eq 2 ]
    [[ "${stderr_lines[0]}" == *"the MLPs' other products are in fp8 where the first is: mlp = fp8"* ]]
}

# The gradients' scale follows the number of micro-batches, so ranks differ by the order of sums alone.
# bats test_tags=long
@test "attn=fp8, attn_backward=fp8: ranks agree, resume is exact, losses are within 1% of bf16's, validation is in bf16" {
    train > bf16.log
    train -s precision.attn=fp8 > forward.log
    for n in 1 2; do
        train -s precision.attn=fp8 -s precision.attn_backward=fp8 -s precision.check_weights=yes \
            -s "order.late=lm_head mlp attn" --ranks $n --keep 0 -o both.$n > both.$n.log
    done
    for what in forward both.1; do
        paste <(losses bf16.log | grep train_loss) <(losses $what.log | grep train_loss) |
            awk '{ split($2, a, ":"); split($4, b, ":"); d = a[2] - b[2]; if (d < 0) d = -d; if (d > 0) other++;
                   if (!(d <= 0.01 * a[2])) exit 1; n++ } END { exit !(n == 11 && other > 5) }'
        diff <(losses bf16.log | grep -m 1 val_loss) <(losses $what.log | grep -m 1 val_loss)
    done
    train -s precision.attn=fp8 -s precision.attn_out=fp8 > out.log
    paste <(losses forward.log | grep train_loss) <(losses out.log | grep train_loss) |
        awk '{ split($2, a, ":"); split($4, b, ":"); d = a[2] - b[2]; if (d < 0) d = -d; if (d > 0) other++;
               if (!(d <= 0.01 * a[2])) exit 1; n++ } END { exit !(n == 11 && other > 5) }'
    diff <(losses bf16.log | grep -m 1 val_loss) <(losses out.log | grep -m 1 val_loss)
    run ! diff <(losses forward.log) <(losses both.1.log)
    run worst_difference both.1.log both.2.log
    [ "${output% *}" -eq 11 ]
    [ "${output#* }" -lt 3000 ]
    resume --ranks 2 --resume both.2/step-000004 -o again > /dev/null
    same_checkpoint both.2/step-000011 again/step-000011
}
