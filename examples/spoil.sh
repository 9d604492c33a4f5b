#!/bin/sh
# How far a step of one part of a model turns the gradient of another: at a checkpoint, on one batch, the gradients
# before and after a step of that part alone, by its optimizer as it is.
#   run examples/train-on-text.sh first, for its shards and its run, or name some: SHARDS=dir RUN=dir/step-N
#   examples/spoil.sh [LABEL LABEL]          two banks of the recipe; default: attn mlp
# BATCHES (6) are those after the checkpoint, all at its weights. A line for each pair, over the batches: the mean and
# standard error of 1 - cosine of the second part's gradient before and after, and of how much of the gradient before
# is in the one after (gpt-ckpt(1), along). "neither" is the control: it must be 0 and 1. 40 s.
set -eu
# shellcheck source=examples/checkpoint.sh
. "$(dirname "$0")/checkpoint.sh"
batches=${BATCHES:-6}
one=${1:-attn}
two=${2:-mlp}

# gradients FILE OPTION...: of batch $batch
gradients() {
    file=$work/$1
    shift
    rm -f "$file"
    # shellcheck disable=SC2086
    "$bin/gpt-train" -q --resume "$run" -d "$shards" --batch "$batch" --gradients "$file" "$@" ${OPTIONS:-}
}

# compare MOVED: the gradients of both parts after a step of MOVED, with those before
compare() {
    for watched in "$one" "$two"; do
        "$bin/gpt-ckpt" diff --format=tsv --total --all "$work/before" "$work/after" --bank "$watched" >"$work/diff" ||
            [ $? = 1 ]                                  # they differ
        awk -F'\t' -v name="$1 $watched" '
            NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
            $1 == "total" { printf "%s %.10g %.10g\n", name, 1 - $at["cosine"], $at["along"] }' "$work/diff"
    done
}

batch=0
while [ "$batch" -lt "$batches" ]; do
    echo "batch $batch" >&2
    gradients before
    still="-s optimizer.adam_lr=0"
    # shellcheck disable=SC2086
    {
        gradients after --after 1 $still -s "parameters.$one.lr=0" -s "parameters.$two.lr=0"
        compare neither
        gradients after --after 1 $still -s "parameters.$two.lr=0"
        compare "$one"
        gradients after --after 1 $still -s "parameters.$one.lr=0"
        compare "$two"
        gradients after --after 1 $still
        compare both
    } >>"$work/numbers"
    batch=$((batch + 1))
done

echo "moved gradient_of batches 1-cos error along error"
awk '{
        key = $1 " " $2
        if (!(key in n)) order[++keys] = key
        n[key]++; s[key] += $3; ss[key] += $3 * $3; a[key] += $4; aa[key] += $4 * $4
    }
    # The standard error of a mean of n with sum and sum of squares.
    function error(n, sum, squares,    v) {
        v = n > 1 ? (squares - sum * sum / n) / (n - 1) : 0
        return v > 0 ? sqrt(v / n) : 0
    }
    END {
        for (i = 1; i <= keys; i++) {
            k = order[i]
            printf "%s %d %.4f %.4f %.4f %.4f\n", k, n[k], s[k] / n[k], error(n[k], s[k], ss[k]),
                a[k] / n[k], error(n[k], a[k], aa[k])
        }
    }' "$work/numbers" | sort -s -k2,2
