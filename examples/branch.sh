#!/bin/sh
# What acts late, tried from one state: runs of some seeds, and from a checkpoint of each its end with other settings.
#   run examples/train-on-text.sh first, for its shards, or name some: SHARDS=dir
#   examples/branch.sh ['KEY=VALUE[ ; KEY=VALUE]...']...    a branch each; default: no floor of the learning rate
# AT is the step of the state, of STEPS, even for tiny, whose Adam moves every second; SEEDS, RECIPE; options of
# gpt-train in OPTIONS. Branch and run of a seed differ by what follows AT alone, so the error of their difference
# is that of pairs. A few steps by default, 10 s.
set -eu
# shellcheck source=examples/keep.sh
. "$(dirname "$0")/keep.sh"
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
shards=${SHARDS:-$dir/shards}
[ -d "$shards" ] || { echo "no $shards: run examples/train-on-text.sh first" >&2; exit 1; }
steps=${STEPS:-12}
at=${AT:-$((steps / 2))}
runs=$dir/branch-$steps-$at
short='-s model.vocab=272 -s data.val_tokens=4096 -s data.val_chunk=1024'
[ -z "${SHARDS:-}" ] || short=                      # of the example's bytes alone
[ $# -gt 0 ] || set -- schedule.lr_floor=0
keep_asked "$runs" "$shards" "${RECIPE:-}" "${OPTIONS:-}"

# shellcheck disable=SC2086
for seed in ${SEEDS:-1 2 3}; do
    run=$runs/run/seed-$seed
    grep -qs '^step:\([0-9]*\)/\1 val_loss:' "$run/log.txt" ||
        "$bin/gpt-train" -q --continue --keep 0 -r "${RECIPE:-share/recipes/tiny.recipe}" -d "$shards" -o "$run" \
            -s schedule.steps="$steps" -s schedule.extension=0 -s data.checkpoint_every="$at" -s data.val_every=0 \
            -s seed="$seed" $short ${OPTIONS:-} >/dev/null
    n=0
    for branch in "$@"; do
        n=$((n + 1))
        log=$runs/branch-$n/seed-$seed.log
        mkdir -p "${log%/*}"
        printf '%s\n' "$branch" | sed 's/ *; */\n/g' >"${log%/*}/set.part"
        keep "${log%/*}/set"
        [ ! -e "$log" ] || continue                 # of this script, stopped
        echo "$log: $branch" >&2
        (
            set --
            while IFS= read -r setting; do set -- "$@" -s "$setting"; done <"${log%/*}/set"
            exec "$bin/gpt-train" -q --resume "$(printf '%s/step-%06d' "$run" "$at")" -d "$shards" "$@" \
                ${OPTIONS:-} >"$log.part"
        )
        mv "$log.part" "$log"
    done
done
n=0
for branch in "$@"; do
    n=$((n + 1))
    echo "branch-$n: $branch"
done
# 1 is an answer, too: not demonstrated to be better
"$bin/gpt-logdiff" -q --rules loss --paired "$runs/run" "$runs"/branch-* || [ $? = 1 ]
