# gpt-ckpt spectrum by what a parameter's rule says: AOL or the norm, and whose coefficients.

bats_require_minimum_version 1.5.0
load tiny_runs

# Singular values on stdin through the rows of a published table, largest first, in awk.
through() { # TABLE
    awk 'NR == FNR { if ($0 !~ /^#/) { a[++n] = $1; b[n] = $2; c[n] = $3 } next }
         /^#/ { next }
         { x = $1; for (t = 1; t <= n; t++) { y = x * x; x *= a[t] + y * (b[t] + y * c[t]) }
           printf "%.9g\n", x < 0 ? -x : x }' <("$GPT_BIN/ns-coeffs" show "$1") - | sort -gr
}
values() { "$GPT_BIN/gpt-ckpt" spectrum -q a/step-000002 "$@" | grep -v '^#' | sort -gr; }
close() { paste "$1" "$2" | awk '{ d = $1 - $2; if (!(d <= 1e-5 && -d <= 1e-5)) exit 1; n++ } END { exit !n }'; }

@test "spectrum --of update: each parameter by its own rule, AOL with its own rows; a rule without is refused" {
    train -s schedule.steps=2 -s schedule.extension=0 -s data.val_tokens=0 -o a --keep 0 \
        -s "rules.mine=lr 0.02 | momentum 0.95 nesterov | polar turbo-muon aol | step" \
        -s parameters.mlp.rule=mine > /dev/null
    values --of aol --bank mlp > aol
    values --of update --bank mlp > update
    through turbo-muon < aol > want
    close update want
    # the attention's rule scales by the norm: its update is that of record-61's rows on X / (1.02 |X| + 1e-6)
    name=$("$GPT_BIN/gpt-ckpt" spectrum -q a/step-000002 --summary --bank attn | sed -n 2p | cut -f1)
    values "$name" | awk '{ x[NR] = $1; s += $1 * $1 } END { for (i = 1; i <= NR; i++) printf "%.12g\n", x[i] / (1.02 * sqrt(s) + 1e-6) }' |
        through record-61 > want
    values --of update "$name" > update
    close update want
    # what a rule without orthogonalisation makes is no such update
    train -s schedule.steps=2 -s schedule.extension=0 -s data.val_tokens=0 -o b --keep 0 -s parameters.mlp.rule=sgd > /dev/null
    run --separate-stderr "$GPT_BIN/gpt-ckpt" spectrum -q b --of update --bank mlp
    [ "$status" -eq 3 ]
    [ -z "$output" ]
    [[ $stderr = *"its rule, sgd, orthogonalises nothing (--of momentum)"* ]]
    # a file of weights alone: AOL of the weights
    "$GPT_BIN/gpt-ckpt" export -q a/step-000002 -o w.safetensors
    run --separate-stderr "$GPT_BIN/gpt-ckpt" spectrum -q w.safetensors --of aol --summary 'layers.0.mlp.fc.weight'
    [ "$status" -eq 0 ]
    awk -F'\t' 'NR == 2 { exit !($4 > 0.3 && $4 <= 1.000001) }' <<<"$output"
}
