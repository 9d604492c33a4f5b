#!/bin/sh
# How well an optimizer of matrices fits one batch from a checkpoint's weights, with and without attention's value
# projections frozen: a table of losses over learning rates, and a picture.
#   run examples/train-on-text.sh first, for its shards and its run, or name some: SHARDS=dir RUN=dir/step-N
#   examples/one-batch.sh ['NAME RATE,RATE... STAGES']...    lines of gpt-rules(5) without rate; default: the four below
# STEPS (8) steps at a constant rate on one batch, from momenta of zero; attn and mlp move, all else stands. The recipe
# has these two banks, as tiny. The loss is that of the next token after the last step, the mean of BATCHES (1), each
# fitted alone; errors are over batches, that of the difference of pairs. JOBS (1) fits at a time; OPTIONS of gpt-train,
# as --gpus 1. 3 min.
set -eu
# shellcheck source=examples/checkpoint.sh
. "$(dirname "$0")/checkpoint.sh"
steps=${STEPS:-8}

# --fit WORK NAME RATE STAGES MULTIPLIERS BATCH, by xargs: a line with the loss on the batch; nan where it is no number.
# Rate 0 is without a step.
if [ "${1:-}" = --fit ]; then
    file=$2/gradients-$SLOT
    after=
    [ "$4" = 0 ] || after="--after $steps"
    rm -f "$file"
    # the first of three stages is long enough, and what comes after is not run
    # shellcheck disable=SC2086
    "$bin/gpt-train" -q --init "$run" -d "$shards" -s schedule.steps=$((3 * steps + 3)) -s optimizer.adam_lr=0 \
        -s "rules.fit=lr $4 | $5" -s parameters.attn.rule=fit -s parameters.mlp.rule=fit -s parameters.attn.beta2=- \
        -s parameters.mlp.beta2=- -s parameters.attn.lr="$6" -s parameters.mlp.lr=1 --gradients "$file" \
        --batch "$7" $after ${OPTIONS:-} 2>"$file.err" ||
        { [ $? = 5 ] && echo "$3 $4 $6 $7 nan" && exit; cat "$file.err" >&2; exit 255; }
    "$bin/gpt-ckpt" info --format=tsv "$file" | awk -F'\t' -v fit="$3 $4 $6 $7" '
        $1 ~ /^gpt\.(next_)?loss$/ { loss = $2 } END { printf "%s %.6f\n", fit, loss }'
    exit
fi

export GPT_BIN="$bin" SHARDS="$shards" RUN="$run" STEPS="$steps"
[ $# -gt 0 ] || set -- \
    'muon 0.02,0.04,0.08,0.16,0.32,0.64,1.28 momentum 0.95 nesterov | polar polar-express | shape | step' \
    'normuon 0.02,0.04,0.08,0.16,0.32,0.64,1.28 momentum 0.95 nesterov | polar polar-express | shape | variance 0.95 | step' \
    'adam 0.001,0.002,0.004,0.008,0.016,0.032,0.064 momentum 0.9 corrected | second 0.95 1e-10 corrected | step' \
    'sgd 0.008,0.016,0.032,0.064,0.128,0.256,0.512 momentum 0.95 nesterov | step'

batch=0
while [ "$batch" -lt "${BATCHES:-1}" ]; do
    printf '%s\0' "$work" before 0 step 1 "$batch"
    for line in "$@"; do
        rest=${line#* }
        for rate in $(echo "${rest%% *}" | tr , ' '); do
            for lr in 1 1,1,0,1; do printf '%s\0' "$work" "${line%% *}" "$rate" "${rest#* }" "$lr" "$batch"; done
        done
    done
    batch=$((batch + 1))
done | xargs -0 -n 6 -P "${JOBS:-1}" --process-slot-var=SLOT "$0" --fit >"$work/fits"

# Means over batches, in the order of the lines, and lists of what is drawn, which leaves out losses far above the one before.
printf '%s\n' "$@" | awk -v fits="$work/fits" -v lists="$work/lists" '
    function mean(k) { return bad[k] ? "nan" : sprintf("%.4f", sum[k] / n[k]) }
    function error(k) { return bad[k] || n[k] < 2 ? "-" : sprintf("%.4f", sqrt((sq[k] - sum[k] ^ 2 / n[k]) / (n[k] - 1) / n[k])) }
    function take(k, x) { n[k]++; if (x !~ /^-?[0-9]/) bad[k] = 1; sum[k] += x; sq[k] += x * x }
    function list(k, name,    t, i) {
        if (bad[k] || sum[k] / n[k] > 1.1 * sum["before 0 1"] / n["before 0 1"]) return ""
        for (i = 0; i < batches; i++) t = t (i ? ", " : "") loss[k, i]
        return "# " name "\nlosses = [" t "]\n"
    }
    BEGIN {
        while ((getline row <fits) > 0) {
            split(row, f, " ")
            take(f[1] " " f[2] " " f[3], f[5]); loss[f[1] " " f[2] " " f[3], f[4]] = f[5]; if (f[4] >= batches) batches = f[4] + 1
        }
        print "# before: " mean("before 0 1")
        print "rule rate batches loss error loss_v_frozen error difference error"
    }
    {
        rates = split($2, rate, ",")
        for (i = 1; i <= rates; i++) {
            a = $1 " " rate[i] " 1"; b = $1 " " rate[i] " 1,1,0,1"; d = $1 " " rate[i] " -"
            for (k = 0; k < batches; k++) take(d, bad[a] || bad[b] ? "nan" : loss[b, k] - loss[a, k])
            print $1, rate[i], n[a], mean(a), error(a), mean(b), error(b), mean(d), error(d)
            plain = plain list(a, $1 "@" rate[i]); frozen = frozen list(b, $1 ", V frozen@" rate[i])
        }
    }
    END { printf "%s%s", plain, frozen >lists }'
mkdir -p "$dir"
"$bin/gpt-logdiff" -q -f --rules loss --plot "$dir/one-batch.svg" - <"$work/lists" >/dev/null || [ $? = 1 ]
echo "picture: $dir/one-batch.svg" >&2
