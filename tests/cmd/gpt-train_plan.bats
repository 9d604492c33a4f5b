# What gpt-train --plan says: parameters, ranks, memory, bytes sent; and what does not fit.

bats_require_minimum_version 1.5.0
load tiny_runs
load few_steps

@test "--plan prints record 61's plan and trains nothing" {
    run --separate-stderr "$GPT_BIN/gpt-train" --plan -r "$GPT_SHARE/recipes/record-61.recipe" --ranks 8
    [ "$status" -eq 0 ]
    # Volumes of record-61.md 4.9, in MB: 280.8 even, 821.6 odd tied, 956.8 odd untied.
    grep -q 'step without Adam  *280.8$' <<< "$output"
    grep -q 'step with Adam, tied  *821.6$' <<< "$output"
    grep -q 'step with Adam  *956.8$' <<< "$output"
    grep -q '^ *1152 .*head and embedding part' <<< "$output"
}

# Of 40 matrices of 768^2 at 9.06 GFLOP and 24 of 3072 x 768 at 29.45 (orthogonalisation.md 6, T = 5): each is some rank's,
# and the longest-processing-time rule leaves no rank more than the mean and a matrix. The middle ratio: cuts of one flat
# buffer of 64 matrices, each of which sends 2 bytes an element once more and has its matrix orthogonalised once more
# (optimizers.md 2.6).
@test "--plan at 3, 8, 24 and 64 ranks: matrices, imbalance, bytes and ratios" {
    for n in 3 8 24 64; do
        run --separate-stderr "$GPT_BIN/gpt-train" --plan -r "$GPT_SHARE/recipes/record-61.recipe" --ranks $n \
            -s data.chunks=$((n < 8 ? 8 : n)) -s "stages.0=196608 3 2048 1 1,0.5,0.25>0" -s "stages.1=196608 7 2048 1.52 1,0.5>0"
        [ "$status" -eq 0 ]
        awk -v n=$n '
            function near(a, b, by) { d = a - b; return (d < 0 ? -d : d) <= by }
            BEGIN { small = 768 * 768; large = 3072 * 768; one = 5 * 4 * 768 ^ 3 / 1e9; four = 5 * 13 * 768 ^ 3 / 1e9 }
            /^[0-9]+(-[0-9]+)? / && /attn/ {
                split($1, r, "-"); k = (r[2] == "" ? r[1] : r[2]) - r[1] + 1
                ranks += k; micro += k * $2; attn += k * $4; mlp += k * $6
                if (!near($7, $4 * one + $6 * four, 0.06)) { print "GFLOP", $0; bad = 1 }
                if ($7 > most) most = $7
                sent += k * $8
            }
            /^imbalance/ { imbalance = $4 }
            /^AdamW, ZeRO-1/ { adamw = $(NF - 2); none = $(NF - 1) + $NF }
            /^Muon, ZeRO-1/ { flat = $(NF - 2); twice = $(NF - 1); fullest = $NF }
            /^here: whole/ { here = $(NF - 2); once = $(NF - 1); ours = $NF }
            # matrices of which [from, to) of the flat buffer has a piece, of n of a size that begin at `at`
            function pieces(from, to, at, size, n,  first, last) {
                from = from > at ? from - at : 0; to = to < at + n * size ? to - at : n * size
                if (from >= to) return 0
                first = int(from / size); last = int(to / size); if (last * size < to) last++
                return last - first
            }
            END {
                mean = (40 * one + 24 * four) / n; whole = 40 * small + 24 * large
                for (c = 1; c < n; c++) { # a cut at `at` splits a matrix unless it lies between two
                    at = whole * c / n; rest = at <= 40 * small ? at % small : (at - 40 * small) % large
                    if (rest > 0) extra += 2 * (at < 40 * small ? small : large)
                }
                for (k = 0; k < n; k++) { # a rank orthogonalises what it has a piece of
                    a = pieces(whole * k / n, whole * (k + 1) / n, 0, small, 40) * one
                    a += pieces(whole * k / n, whole * (k + 1) / n, 40 * small, large, 24) * four
                    sum += a; if (a > top) top = a
                }
                if (!near(twice, sum, 0.06) || !near(fullest, top, 0.06) || !near(once, mean * n, 0.06) ||
                    !near(ours, most, 0.06) || none != 0 || twice < once) { print "flat", twice, sum, fullest, top, once, ours; bad = 1 }
                # and five tables of 50304 x 768, all in bf16; replicated ones are a few kB
                bytes = (whole + 5 * 50304 * 768) * 4 * (n - 1) / 1e6
                print n, ranks, micro, attn, mlp, imbalance, most / mean, adamw, flat, here, sent, bytes
                exit bad || ranks != n || micro != (n < 8 ? 8 : n) || attn != 40 || mlp != 24 || !near(imbalance, most / mean, 0.005) ||
                    most > mean + four + 0.1 || adamw != "1.000" || here != "1.000" || !near(sent, bytes, 0.001 * bytes) ||
                    !near(flat, 1 + extra / (whole * 4 * (n - 1)), 0.0006) }' <<< "$output"
    done
}

# Record 74's by record-74.md 5: l0 in[i], lanes 0 and 1 of layer 7 on; record 84's by record-84.md 5; 89's
# by record-89.md 6.
@test "--plan prints the residual stream as lists, in 80 columns" {
    plan() { run --separate-stderr "$GPT_BIN/gpt-train" --plan -r "$1"; [ "$status" -eq 0 ] && [ -z "$stderr" ]; }
    lines() { while IFS= read -r line; do grep -qxF -- "$line" <<<"$output" || { echo "missing: $line"; return 1; }; done; }
    plan record-61
    lines <<'END'
begin in = x0
layer 3 mixed = residual[3] in + x0[3] x0 | norm y
layer 3 attended = mixed + attention, by the product
layer 3 attended = attended | norm y2
layer 3 in[4] = attended + MLP, by the product
layer 6 in = in + skip gate(x0) in[4]
end z = in - backout in[8] | norm head
END
    plan record-74
    lines <<'END'
begin in = x0 + bigram[0] bigram | norm y
layer 0 attended = residual[0] in + o + x0[0] x0 | norm y2
layer 3 attended = residual[3] in + o + x0[3] x0 + bigram[3] bigram | norm y2
layer 3 in[4] = residual_mlp[3] attended + mlp_lane0[3] m | norm y[4]
layer 6 in = in + skip gate(x0) attended[3]
layer 7 attended1 = residual[7] in + attn_lane1[7] o | norm y2
layer 8 attended1 = residual[8] in1 + attn_lane1[8] o | norm y2
layer 8 in1[9] = residual_mlp[8] attended1 + mlp_lane1[8] m
end z = 1/2 in + 1/2 in1 - backout in[8] | norm head
END
    plan record-84
    lines <<'END'
begin x0 = x0 + bigram[0] bigram | norm y
layer 10 mixed = (1 + token[5]) in + token[3] x0 + token[4] in[8]
layer 10 v = v + token[0] x0 + token[1] in[8] + token[2] in
    + token[6] rows[0:384] + token[6.1] rows[384:768]
layer 10 in[11] = token[11] attended + token[12] m
END
    plan record-89
    lines <<'END'
begin in = x0 + token[22] bigram | norm y
layer 0 attended = residual[0] in + attn_lane0[0] o + token[21] x0 | norm y2
layer 4 token = MLP 3 of in
layer 6 in = in + sigmoid(skip) token[42] in[4]
layer 10 mixed = (1 + token[5]) in + token[3] in[0] + token[4] in[8]
layer 10 v = v + token[0] in[0] + token[1] in[8] + token[2] in
    + token[6] rows[0:384] + token[6.1] rows[384:768]
layer 10 attended = token[7] mixed + token[8] o + token[9] in[0]
    + token[10] bigram | norm y2
END
    run awk '/^(begin|layer|end|   ) / { n++; if (length > 80) print } END { exit n < 30 }' <<<"$output"
    [ "$status" -eq 0 ] && [ -z "$output" ]
}

# MB and MiB of the lines that tell sums, one a line.
plan_sums() {
    "$GPT_BIN/gpt-train" --plan -r "$GPT_SHARE/recipes/record-61.recipe" --ranks 8 "$@" |
        awk '/^weights and|^step with/ { print $NF }'
}

# 768 x 50304 bytes: 36.8 MiB kept, and 7/8 of them, 33.8 MB, sent in steps with Adam.
@test "--plan counts the head's fp8 copy" {
    run paste <(plan_sums) <(plan_sums -s precision.head_weight=fp8)
    echo "$output"
    awk '{ d[NR] = $2 - $1 } END { exit !(NR == 4 && d[1] > 36.7 && d[1] < 36.9 && d[2] == 0 &&
        d[3] > 33.7 && d[3] < 33.9 && d[4] > 33.7 && d[4] < 34) }' <<< "$output"
}

# 12 x 3072 x 768 bytes: 27 MiB kept; each rank makes its own, nothing is sent. The second product's are
# kept transposed as well; the codes of its input lie in the memory of gradients that come later.
@test "--plan counts the MLPs' fp8 copies" {
    run paste <(plan_sums) <(plan_sums -s precision.mlp=fp8)
    echo "$output"
    awk '{ d[NR] = $2 - $1 } END { exit !(NR == 4 && d[1] > 26.9 && d[1] < 27.1 && d[2] == 0 && d[3] == 0 &&
        d[4] == 0) }' <<< "$output"
    run paste <(plan_sums) <(plan_sums -s precision.mlp=fp8 -s precision.mlp_down=fp8)
    echo "$output"
    awk '{ d[NR] = $2 - $1 } END { exit !(NR == 4 && d[1] > 80.9 && d[1] < 81.1 && d[2] == 0 && d[3] == 0 &&
        d[4] == 0) }' <<< "$output"
    run paste <(plan_sums) <(plan_sums -s precision.mlp=fp8 -s precision.mlp_down=fp8 -s precision.mlp_backward=fp8)
    echo "$output"
    awk '{ d[NR] = $2 - $1 } END { exit !(NR == 4 && d[1] > 107.9 && d[1] < 108.1 && d[2] == 0 && d[3] == 0 &&
        d[4] == 0) }' <<< "$output"
}

# record-61.md 4: attention's bank is gathered within the step, the MLPs' at the start of the next; a tied head is
# gathered and copied. The lists are what runs: plan_test.
@test "--plan prints the actions of each kind of step" {
    run --separate-stderr "$GPT_BIN/gpt-train" --plan -r record-61 --ranks 8
    [ "$status" -eq 0 ]
    kinds=$(sed -n '/kinds of step/,/^remark/p' <<< "$output")
    [ "$(grep -c '^[0-9]* steps from step ' <<< "$kinds")" -eq 4 ]
    grep -qx '    wait, update, gather   attn' <<< "$kinds"
    grep -qx '    wait, update           mlp' <<< "$kinds"
    grep -qx '    gather                 mlp  (late: updated in the step before)' <<< "$kinds"
    [ "$(grep -c '^    wait, update, gather   lm_head  (tied: copied below)$' <<< "$kinds")" -eq 1 ]
    [ "$(grep -c '^    copy                   embed  (tied)$' <<< "$kinds")" -eq 1 ]
    awk 'length > 80 { print; bad = 1 } END { exit bad }' <<< "$kinds"
    # 12 phases, tied and not. Of one stage three of them differ in what they queue (after a step of Adam's, any, Adam's), and
    # with the two sets of batches four; stage 2 begins two steps before the untie step: 4 x 4 + 2.
    run --separate-stderr "$GPT_BIN/gpt-train" --plan -r record-61 -s "optimizer.adam_every=12"
    grep -qx '24 kinds of step, 18 graphs where steps are captured' <<< "$output"
}

@test "--plan counts masters and moments" {
    plan() { "$GPT_BIN/gpt-train" --plan -r "$GPT_SHARE/recipes/record-61.recipe" -s order.tied=- --ranks 1 "$@" |
        awk '$1 == "ve0" { print $(NF - 1), $NF }'; }
    # 50304 x 768: 147.38 MiB in f32; a scale a row is 0.19.
    [ "$(plan)" = "0.00 294.75" ]
    [ "$(plan -s precision.adam_master=f32)" = "147.38 294.75" ]
    [ "$(plan -s precision.adam_master=nearest -s precision.adam_states=bf16)" = "73.69 147.38" ]
    [ "$(plan -s "states.ve0=f16 e4m3 f16 -")" = "73.88 110.92" ]
    # the weight in e4m3 beside its bf16 copy, with 4 bytes a row; in f16 one byte more an element
    types() { plan -s "parameters.ve0=v,d $1 zero adam sharded 0.75 0.95 75 5 no" ; }
    weights() { "$GPT_BIN/gpt-train" --plan -r record-61 -s order.tied=- --ranks 1 \
        -s "parameters.ve0=v,d $1 zero adam sharded 0.75 0.95 75 5 no" | awk '$1 == "ve0" { print $7, $(NF - 3), $(NF - 2) }'; }
    [ "$(types e4m3)" = "0.00 294.75" ]
    [ "$(types f16)" = "0.00 294.75" ]
    [ "$(weights bf16)" = "bf16 73.69 73.69" ]
    [ "$(weights e4m3)" = "e4m3 110.72 73.69" ]
    [ "$(weights f16)" = "f16 147.38 73.69" ]
}

@test "--plan counts gradients in the type that they have" {
    run --separate-stderr "$GPT_BIN/gpt-train" --plan -r "$GPT_SHARE/recipes/tiny.recipe" --ranks 2
    [ "$status" -eq 0 ]
    # 50,304 x 64 elements of 2 bytes as weight and 4 as gradient
    grep -q '^ve0 .* 6.14 *12.28  ' <<< "$output"
    run --separate-stderr "$GPT_BIN/gpt-train" --plan -r "$GPT_SHARE/recipes/tiny.recipe" --ranks 2 -s precision.gradients=weight
    grep -q '^ve0 .* 6.14 *6.14  ' <<< "$output"
}

# Attention's and the MLP's banks of tiny end in matrices that no layer reads.
@test "--plan counts what is sent without padding" {
    sent() { "$GPT_BIN/gpt-train" --plan -r record-74 --ranks 8 "$@" | awk '/^step without Adam/ { print $NF }'; }
    awk -v all="$(sent -s order.padding=yes)" -v used="$(sent -s order.padding=no)" \
        'BEGIN { exit !(used > 0.8 * all && used < 0.99 * all) }'
}

# Taken: the last line of the log, in whole MiB. Kinds of memory: of one rank and two, with padding and
# without, rows that are exchanged sparsely, fp8 head, states of other types, threads.
@test "--plan's sum is what a run takes, within 3%" {
    held() {
        set -- -s model.vocab=12288 "$@" # enough that a MiB is no 3%
        few "$@" >log
        tool gpt-train "${FEW[@]}" --plan "$@"
        [ "$status" -eq 0 ]
        taken=$(sed -n 's/^peak memory allocated: \([0-9]*\) .*/\1/p' log)
        sum=$(awk '$1 == "sum" { print $2 }' <<<"$output")
        echo "$*: taken $taken, plan $sum"
        awk -v a="$taken" -v b="$sum" 'BEGIN { exit !(a > 34 && b / a < 1.03 && b / a > 0.97) }'
    }
    held --threads 1
    held --ranks 2 --threads 3 -s order.padding=no
    held -s precision.head_fp8=yes -s precision.head_weight=fp8 -s precision.adam_states=bf16
    held -r record-74 --ranks 2 -s model.bigram_rows=496 -s model.heads=2 -s model.head_dim=32 \
        -s model.mlp_width=64 -s model.block=32 -s data.bos=-1
    held --ranks 2 -s data.val_tokens=0
}

# stderr says what is needed, what is there, and a number of micro-batches that takes no more than that.
would_fit() {
    [[ $stderr =~ needs\ ([0-9.]+)\ MiB,\ ([0-9.]+)\ available\;\ data\.chunks=(16|32)\ would\ need\ ([0-9.]+)\ \(--fit ]] &&
        awk -v a="${BASH_REMATCH[1]}" -v b="${BASH_REMATCH[2]}" -v c="${BASH_REMATCH[4]}" 'BEGIN { exit !(a > b && b >= c) }'
}

@test "a run that does not fit into memory is refused before it begins, with what would fit" {
    few_shards
    export OPENBLAS_NUM_THREADS=1 # its threads take memory before main(), and never end where there is none
    run --separate-stderr bash -c "ulimit -v 6000000; '$GPT_BIN/gpt-train' -d shards -r record-61 -s data.val_tokens=0"
    echo "$status $stderr"
    [ "$status" -eq 4 ]
    [ -z "$output" ]
    [[ $stderr =~ needs\ [0-9.]+\ GiB,\ [0-9.]+\ available\;\ no\ number\ of\ micro-batches\ would\ fit\;\ --gpus\ N\ computes\ on\ GPUs$ ]]
    # More micro-batches do; --fit takes them, and the log's recipe has them.
    wide=("${FEW[@]}" -s model.head_dim=32 -s model.mlp_width=256 -s schedule.steps=1 -s "stages.0=131072 3 512 1 1" -s data.val_tokens=0)
    base=50000 # KiB that the program takes by itself: 100 MB, or 2 GB of GPU libraries
    until (ulimit -v $base; timeout 20 "$GPT_BIN/gpt-train" -V >/dev/null 2>&1); do
        base=$((base + 50000))
        [ $base -lt 4000000 ]
    done
    most=$((base + 550000)) # of 8 chunks a step takes 668 MB
    run --separate-stderr bash -c "ulimit -v $most; '$GPT_BIN/gpt-train' --threads 1 $(printf '%q ' "${wide[@]}")"
    echo "$status $stderr"
    [ "$status" -eq 4 ]
    would_fit
    run --separate-stderr "$GPT_BIN/gpt-train" --threads 1 "${wide[@]}" --memory 500Mi
    echo "$status $stderr"
    [ "$status" -eq 4 ]
    [ -z "$output" ]
    would_fit
    [ "${BASH_REMATCH[2]}" = 500.0 ]
    run --separate-stderr "$GPT_BIN/gpt-train" --fit --memory 500Mi --threads 1 --bench 1 "${wide[@]}"
    echo "$status $stderr $output"
    [ "$status" -eq 0 ]
    [[ $stderr = *"(--fit takes it)"* ]]
}

# The backward goes from the head through the layers, the last first, the MLP of each before its attention.
@test "--plan: gradients become final in the order of the backward" {
    run --separate-stderr "$GPT_BIN/gpt-train" --plan -r record-61 --ranks 3
    [ "$status" -eq 0 ]
    order=$(sed -n '/^gradients become final/,/^$/p' <<<"$output" | tail -n +2 | tr -d '\n' | tr -s ' ' | sed 's/^ //; s/, /\n/g')
    [ "$(head -1 <<<"$order")" = lm_head ]
    # Four matrices of attention a layer, by the column bank of [layers]: 9 to 0.
    want=$(for k in 9 8 7 6 5 4 3 2 1 0; do echo "attn:$((4 * k))-$((4 * k + 3))"; done)
    diff <(grep '^attn:' <<<"$order") - <<<"$want"
    for label in mlp attn lm_head embed ve0 ve1 ve2 scalars smear_gate skip_gate attn_gate_bank ve_gate_bank x0_lambdas; do
        grep -q "^$label\(:\|$\)" <<<"$order"
    done
    # Value embeddings: the last layer that reads one is the first of [layers] that names it.
    awk '/^ve2$/ { v = NR } /^attn:4-7$/ { a = NR } /^attn:0-3$/ { b = NR } /^ve1$/ { w = NR } END { exit !(a < v && v < b && b < w) }' <<<"$order"
}
