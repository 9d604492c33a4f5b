# gpt-train --stats: the activations of one batch, held against what is known of them before any training.

bats_require_minimum_version 1.5.0
load tiny_runs

stats() { "$GPT_BIN/gpt-train" -q -r tiny -d "$SHARDS" -s model.vocab=272 -s data.val_tokens=0 -s data.chunks=3 \
    -s stages.0="$1 3 256 1 1" -s stages.1="$1 3 256 1 1" -s stages.2="$1 3 256 1 1" -s stages.3="$1 3 256 - 1" --format=tsv --stats "${@:2}"; }
number() { awk -F'\t' -v layer="$2" -v site="$3" -v column="$4" 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
    NR > 1 && $1 == layer && $2 == site { print $at[column]; n++ } END { exit n != 1 }' "$1"; }
near() { awk -v x="$1" -v y="$2" -v by="$3" 'BEGIN { d = x - y; exit !(d <= by && -d <= by) }'; }

# Attention's and the MLP's last matrices are zero, and the stream's coefficients 1.1: a layer multiplies by 1.1.
@test "at the start of tiny each number is what its definition says" {
    stats 768 > s
    rms=$(number s '' embedding rms)
    for i in 0 1 2 3 4; do
        rms=$(awk -v x="$rms" 'BEGIN { print x * 1.1 }')
        near "$(number s $i stream rms)" "$rms" 1e-4
        near "$(number s $i attended rms)" "$rms" 1e-4
        near "$(number s $i stream top1)" "$(number s '' embedding top1)" 1e-5
        near "$(number s $i stream kurtosis)" "$(number s '' embedding kurtosis)" 1e-5
        [ "$(number s $i stream channel)" = "$(number s '' embedding channel)" ]
    done
    # the skip of layer 3's output into layer 6 has the weight sigmoid(-1.5)
    near "$(number s 5 stream rms)" "$(awk -v r="$rms" 'BEGIN { print r * (1.1 + 1 / (1 + exp(1.5)) / 1.1) }')" 1e-4
    # norms: of each head's q and k, of the head's input; their eps is 2^-23
    for i in 0 3 9; do near "$(number s $i q rms)" 1 1e-3; near "$(number s $i k rms)" 1 1e-3; done
    near "$(number s '' head rms)" 1 1e-3
    # logits are near 23 sigmoid(5 / 7.5)
    near "$(number s '' logits rms)" "$(awk 'BEGIN { print 23 / (1 + exp(-5 / 7.5)) }')" 0.02
    [ "$(number s '' logits width) $(number s 3 hidden width) $(number s 3 q width)" = "272 256 64" ]
    # nothing but a square is in the hidden layer, and half of it is zero: E h^4 / (E h^2)^2 alone is 35 / 3
    awk -F'\t' 'NR > 1 && $2 == "hidden" && !($6 > 10 && $6 < 60) { bad = 1 } END { exit bad }' s
    # layer 6 has no attention
    run ! number s 6 q rms
    [ "$(number s 6 hidden width)" = 256 ]
    awk -F'\t' 'NR > 1 { n++; bad += !($7 > 0 && $7 <= $8 && $8 <= 1 && $4 >= $5) } END { exit bad || n < 70 }' s
}

@test "any number of ranks prints the same table; after steps, of a checkpoint, and nothing else is written" {
    stats 768 > one
    stats 768 --ranks 3 > three
    paste one three | awk -F'\t' 'NR > 1 { for (i = 4; i <= 8; i++) { d = $i - $(i + 9); bad += !(d <= 1e-4 * $i && -d <= 1e-4 * $i) } n++ }
        END { exit bad || n < 70 }'
    stats 768 --after 2 > after
    run ! cmp -s one after
    # they have moved: attention's product is not zero any more
    run ! near "$(number after 4 stream rms)" "$(number one 4 stream rms)" 1e-4
    train -s schedule.steps=3 -s schedule.extension=0 -s data.val_every=0 -s data.checkpoint_every=2 --keep 0 -o run > run.log
    ls -R run > before
    resume --resume run/step-000002 --stats --format=json > stats.json
    [[ $(head -2 stats.json | tail -1) = '{"layer": null, "site": "embedding", "width": 32, '* ]]
    ls -R run | cmp - before
}

@test "what cannot be is refused in a sentence" {
    while IFS='|' read -r words message; do
        # shellcheck disable=SC2086
        run --separate-stderr "$GPT_BIN/gpt-train" -r tiny -d "$SHARDS" $words
        echo "$words: $status $stderr"
        [ "$status" -eq 2 ] && [[ $stderr = *"$message"* ]] && [ -z "$output" ]
    done <<'END'
--stats -o new|--stats beside -o
--stats --gradients g|--stats beside --gradients
--stats --bench 1|--stats beside --bench
--stats --plan|--stats beside --plan
--after 1|--after needs --gradients FILE or --stats
--format tsv|--format needs --stats or --bench
END
    [ ! -e new ]
}
