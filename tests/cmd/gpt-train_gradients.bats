# gpt-train --gradients: the gradients of one batch as a file, on any number of ranks, before and after steps on it;
# gpt-ckpt diff of two such files.

bats_require_minimum_version 1.5.0
load tiny_runs
setup_file() {
    make_shards
    export RUN=$BATS_FILE_TMPDIR/run PLAIN=$BATS_FILE_TMPDIR/plain
    train -o "$RUN" --keep 0 > "$BATS_FILE_TMPDIR/run.log"
    # All in f32 by the gradient alone, nothing tied.
    awk '/^\[/ { on = $1 == "[parameters]" }
         on && NF == 11 && $1 !~ /^#/ { $3 = "f32"; $5 = "plain"; $7 = $8 = "-"; $9 = 1; $10 = 0 }
         { print } END { print "\n[rules]\nplain = lr 1/1024 | step" }' "$GPT_SHARE/recipes/tiny.recipe" > "$PLAIN.recipe"
    "$GPT_BIN/gpt-train" -q -r "$PLAIN.recipe" -d "$SHARDS" "${SMALL[@]}" -s data.val_tokens=0 -s order.tied=- \
        -s optimizer.adam_every=1 -s precision.rope=f32 -s data.checkpoint_every=1 --keep 0 -o "$PLAIN" > "$PLAIN.log"
}

ckpt() { run --separate-stderr "$GPT_BIN/gpt-ckpt" "$@"; }
gradients() { resume --resume "$RUN/step-000004" --gradients "$@"; }
note() { "$GPT_BIN/gpt-ckpt" info --format=tsv "$1" | sed -n "s/^gpt\\.$2\t//p"; }
# A number of the last line of gpt-ckpt diff --total, by its column.
total() { # COLUMN A B [PATTERN]
    ! "$GPT_BIN/gpt-ckpt" diff --format=tsv --total "${@:2}" > diff.tsv || [ "$1" = cosine ]
    awk -F'\t' -v column="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == column) c = i }
                               END { if (!c || $1 != "total") exit 1; print $c }' diff.tsv
}
within() { awk -v x="$1" -v y="$2" -v by="$3" 'BEGIN { d = (x - y) / y; exit !(d <= by && -d <= by) }'; }
refused() { # STATUS MESSAGE ARGUMENT...
    run --separate-stderr "$GPT_BIN/gpt-train" -d "$SHARDS" "${@:3}"
    echo "$status $stderr"
    [ "$status" -eq "$1" ] && [[ $stderr = *"$2"* ]] && [ -z "$output" ]
}

@test "a file of every parameter's gradient by the names of a checkpoint, with what made it; the run's folder stays as it is" {
    find "$RUN" -type f -exec sha256sum {} + | sort > before
    run --separate-stderr "$GPT_BIN/gpt-train" --resume "$RUN/step-000004" -d "$SHARDS" --gradients g
    [ "$status" -eq 0 ]
    [ -z "$output" ]
    [[ $stderr = *'gpt-train: g: gradients at step 4, batch 0, after 0: loss '* ]]
    find "$RUN" -type f -exec sha256sum {} + | sort > after
    cmp before after
    ckpt verify --full g
    [ "$status" -eq 0 ]
    "$GPT_BIN/gpt-ckpt" ls --format=tsv "$RUN/step-000004" | cut -f1 | sed -n 's/\.weight$//p' | sort > weights
    "$GPT_BIN/gpt-ckpt" ls --format=tsv g | cut -f1 | sed -n 's/\.gradient$//p' | sort > names
    [ "$(wc -l < names)" -ge 50 ]
    cmp weights names
    # the loss is that of the step which comes next, in the run's log
    log=$(losses "$RUN/log.txt" | sed -n 's/^step:5.*train_loss://p')
    within "$(note g loss)" "$log" 1e-6
    [ "$(note g step) $(note g batch) $(note g after)" = "4 0 0" ]
    [ "$(note g checkpoint)" = "$RUN/step-000004" ]
    # no tensor but what no layer reads is zero
    "$GPT_BIN/gpt-ckpt" stat --format=tsv g | awk -F'\t' 'NR > 1 && $1 !~ /padding/ && !($7 > 0) { print; bad = 1 } END { exit bad || NR < 50 }'
    gradients - | cat > piped
    "$GPT_BIN/gpt-ckpt" diff g piped
    # at the start, too
    train --gradients start
    [ "$(note start step)" = 0 ]
    [ -z "$(note start checkpoint)" ]
}

@test "3 ranks have the gradients of one, to the order of f32 sums" {
    for n in 1 3; do resume --resume "$PLAIN/step-000003" --ranks $n --gradients g$n; done
    # sums of 1024 products, 2^-24 each, at worst; measured 1e-6
    ckpt diff g1 g3 --tolerance 1e-4
    [ "$status" -eq 0 ]
    # a bigram table, whose touched rows alone are exchanged
    for n in 1 3; do
        "$GPT_BIN/gpt-train" -q -r "$GPT_SHARE/recipes/record-74.recipe" -d "$SHARDS" "${SMALL[@]}" -s model.heads=2 \
            -s model.block=32 -s model.bigram_rows=512 -s data.bos=-1 -s data.cycle=yes -s data.val_tokens=0 \
            -s precision.head_fp8=no -s precision.gradients=f32 --ranks $n --gradients b$n
    done
    "$GPT_BIN/gpt-ckpt" ls b1 bigram_embed.gradient
    # a sum over ranks of what is rounded to bf16 before: 2^-9 of an element
    ckpt diff b1 b3 --tolerance 1e-2
    [ "$status" -eq 0 ]
}

@test "a step by the gradient alone moves each weight by its rate times the gradient" {
    resume --resume "$PLAIN/step-000003" --gradients g
    for t in layers.3.attn.v layers.1.mlp.fc layers.1.mlp.proj lm_head embed ve1 x0_lambdas layers.0.attn_gate; do
        for s in 3 4; do "$GPT_BIN/gpt-ckpt" cat "$PLAIN/step-00000$s" $t.weight | tr -s ' \t' '\n' > w$s; done
        "$GPT_BIN/gpt-ckpt" cat g $t.gradient | tr -s ' \t' '\n' > dw
        # the new weight is rounded to 2^-24 of itself
        paste w3 w4 dw | awk -v t=$t 'function abs(x) { return x < 0 ? -x : x }
            { d = abs($1 - $2 - $3 / 1024); s += $3 != 0; bad += !(d <= abs($1) * 1.3e-7 + abs($3) / 1024 * 1e-6) }
            END { print t, NR, s, bad + 0; exit !(NR > 10 && s > 10 && !bad) }'
    done
}

@test "the loss after a small step along the gradient falls by the gradient's square" {
    set=(--resume "$PLAIN/step-000003" -s 'rules.plain=lr 1e-5 | step')
    resume "${set[@]}" --gradients g
    resume "${set[@]}" --after 1 --gradients moved
    # of a gradient of the tokens' sum over 8 micro-batches; 512 tokens. The loss is known to 1e-6 of 5e-4.
    want=$("$GPT_BIN/gpt-ckpt" stat --format=tsv g | awk -F'\t' 'NR > 1 { s += $3 * $7 * $7 } END { print 1e-5 * s * 8 / 512 }')
    within "$(awk -v a="$(note g loss)" -v b="$(note moved loss)" 'BEGIN { print a - b }')" "$want" 0.02
}

@test "after a step that moves nothing the gradients are the same bits; after one that moves attention, others" {
    still=(-s optimizer.adam_lr=0 -s parameters.mlp.lr=0)
    gradients g
    gradients frozen "${still[@]}" -s parameters.attn.lr=0 --after 1
    "$GPT_BIN/gpt-ckpt" diff g frozen
    gradients moved "${still[@]}" --after 1
    gradients other --batch 1
    c=$(total cosine g moved 'layers.*.mlp.*')
    o=$(total cosine g other 'layers.*.mlp.*')
    echo "cosines $c $o"
    awk -v c="$c" -v o="$o" 'BEGIN { exit !(c < 0.9999 && c > 0.2 && o < 0.9999 && o > 0.2) }'
    [ "$(note moved after) $(note other batch)" = "1 1" ]
}

@test "what cannot be is refused in a sentence, and leaves no file" {
    from=(--resume "$RUN/step-000004")
    refused 2 "--gradients beside -o" "${from[@]}" --gradients g -o new
    refused 2 "--gradients beside --bench" "${from[@]}" --gradients g --bench 1
    refused 2 "--gradients beside --plan" "${from[@]}" --gradients g --plan
    refused 2 "--batch needs --gradients FILE or --stats" "${from[@]}" --batch 1
    refused 2 "--after needs --gradients FILE or --stats" "${from[@]}" --after 1
    refused 2 "--batch: from step 4 to 6 the batch's shape, or what is tied, changes" -q "${from[@]}" --gradients g --batch 2
    refused 2 "--after: from step 4 to 6 the batch's shape, or what is tied, changes" -q "${from[@]}" --gradients g --after 3
    refused 2 "--batch: step 10 of 11 has no 1 after it" -q --resume "$PLAIN/step-000010" --gradients g --batch 1
    refused 3 "step 11 is the last" -q --resume "$RUN" --gradients g
    [ ! -e g ] && [ ! -e new ]
    echo > g
    refused 4 "cannot write 'g': it exists" -q "${from[@]}" --gradients g
    refused 4 "No such file or directory" -q "${from[@]}" --gradients nowhere/g
}
