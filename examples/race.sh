#!/bin/sh
# Optimizers raced on share/recipes/bench-small.recipe: each line's rate chosen with some seeds, then judged with fresh ones.
#   examples/race.sh ['NAME RATE,RATE... SETTING[ ; SETTING]...']...    a setting is KEY=VALUE with @ for the rate
# The first line is the baseline; without lines: Muon, NorMuon, AdamW. As it stands some steps of a few tokens, 15 s,
# which answer nothing; in earnest, 54 runs of a minute on two cores, after share/get-brown and gpt-tokshard as the
# recipe says:   SHARDS=shards JOBS=8 examples/race.sh
# CHOOSE and FRESH are the seeds, THREADS those of a run, STEPS and RECIPE others than the recipe's. It goes on where
# it was stopped.
set -eu
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
sweep=$(dirname "$0")/sweep.sh
export SHARDS="${SHARDS:-}" GPT_BIN="$bin" THREADS="${THREADS:-2}"
recipe=${RECIPE:-share/recipes/bench-small.recipe}
if [ -n "$SHARDS" ]; then
    short=
    runs=$dir/race
    choose=${CHOOSE:-1 2} fresh=${FRESH:-11 12 13 14 15 16 17 18}
else
    SHARDS=$dir/shards
    [ -d "$SHARDS" ] || { echo "no $SHARDS: run examples/train-on-text.sh first" >&2; exit 1; }
    short="stages.0=256 4 128 1 1	stages.1=256 4 128 - 1	schedule.final_window=4	data.val_tokens=1024	data.val_chunk=1024	data.expect=-"
    runs=$dir/race-short
    STEPS=${STEPS:-3}
    choose=${CHOOSE:-1} fresh=${FRESH:-11 12}
fi
if [ $# -eq 0 ]; then
    bank='bf16 uniform:1,uniform:1,uniform:1,zero matrices sharded 0.9 0.95 1 1 no'
    set -- \
        'muon 0.02,0.04,0.08,0.16 rules.matrices=lr @ | momentum 0.95 nesterov | polar record-61 | shape | decay 0.05 | step' \
        'normuon 0.02,0.04,0.08,0.16 rules.matrices=lr @ | momentum 0.95 nesterov | polar record-61 | shape | variance 0.95 | decay 0.05 | step' \
        "adamw 0.001,0.002,0.004,0.008 rules.matrices=lr @ | adam ; parameters.attn=16,d,d $bank ; parameters.mlp=8,f,d bf16 uniform:1,zero matrices sharded 0.9 0.95 1 1 no"
fi

# plan NAME RATE SETTINGS SEEDS: a folder a run, whose path is printed.
plan() {
    for seed in $4; do
        run=$runs/$1/lr-$2/seed-$seed
        mkdir -p "$run"
        {
            printf '%s\n' "--recipe=$recipe" ${STEPS:+"--set=schedule.steps=$STEPS"} "--set=seed=$seed"
            printf '%s' "$short" | tr '\t' '\n' | sed 's/^/--set=/; $s/$/\n/'
            printf '%s\n' "$3" | sed "s/@/$2/g; s/ *; */\n/g" | sed 's/^/--set=/'
        } >"$run/args.part"
        if [ -e "$run/args" ] && ! cmp -s "$run/args" "$run/args.part"; then
            echo "$run/args: of another race; remove $runs, or name another OUT" >&2
            exit 2
        fi
        mv "$run/args.part" "$run/args"
        printf '%s\0' "$run"
    done
}
race() { xargs -0 -n 1 -P "${JOBS:-1}" --process-slot-var=SLOT "$sweep" --run; }
loss_of() { sed -n 's|^step:\([0-9]*\)/\1 val_loss:\([0-9.]*\).*|\2|p' "$1/log.txt" 2>/dev/null | tail -n 1; }

mkdir -p "$runs"
for line in "$@"; do
    rest=${line#* }
    for rate in $(echo "${rest%% *}" | tr , ' '); do plan "${line%% *}" "$rate" "${rest#* }" "$choose"; done
done >"$runs/list"
race <"$runs/list"

# The best rate of each line, of those that all seeds ended with; "!" where it is the grid's first or last.
for line in "$@"; do
    name=${line%% *} rest=${line#* }
    for rate in $(echo "${rest%% *}" | tr , ' '); do
        for seed in $choose; do echo "$rate $(loss_of "$runs/$name/lr-$rate/seed-$seed")"; done
    done | awk -v name="$name" '
        !($1 in sum) { order[++n] = $1; sum[$1] = 0 }
        { if (NF < 2) bad[$1] = 1; sum[$1] += $2; runs[$1]++ }
        END {
            for (i = 1; i <= n; i++) {
                r = order[i]
                printf "%-10s %8s %9s\n", name, r, r in bad ? "-" : sprintf("%.4f", sum[r] / runs[r]) >"/dev/stderr"
                if (!(r in bad) && (!best || sum[r] / runs[r] < sum[order[best]] / runs[order[best]])) best = i
            }
            if (best) print name, order[best], best == 1 || best == n ? "!" : "-"
        }'
done >"$runs/chosen"
while read -r name rate _; do
    for line in "$@"; do
        rest=${line#* }
        [ "${line%% *}" != "$name" ] || plan "$name" "$rate" "${rest#* }" "$fresh"
    done
done <"$runs/chosen" >"$runs/list"
race <"$runs/list"

set --
[ "$(wc -l <"$runs/chosen")" -lt 2 ] || set -- --paired
while read -r name rate _; do
    for seed in $fresh; do
        run=$runs/$name/lr-$rate/seed-$seed
        if [ -n "$(loss_of "$run")" ]; then set -- "$@" "$name=$run"; fi
    done
done <"$runs/chosen"
[ $# -gt 0 ] || { echo "no run has ended" >&2; exit 1; }
# 1 is an answer, too: not demonstrated to be better
"$bin/gpt-logdiff" -q --rules loss --alpha 0.05 --format tsv "$@" >"$runs/judged" || [ $? = 1 ]
awk -F '\t' -v chosen="$runs/chosen" '
    BEGIN { while ((getline row <chosen) > 0) { split(row, f, " "); rate[f[1]] = f[2] (f[3] == "!" ? "!" : "") } }
    sub(/^#/, "", $1) { for (i = 2; i <= NF; i++) at[$1, $i] = i; next }
    function is(name) { return $at[$1, name] }
    $1 == "groups" { g[++n] = is("group"); runs[n] = is("runs"); mean[n] = is("loss_mean"); sd[n] = is("loss_sd")
                     minutes[n] = is("time_mean") / 60; shows[n] = is("loss_shows") }
    $1 == "paired" { d[is("group")] = is("loss_diff"); e[is("group")] = is("error"); u[is("group")] = is("unpaired_error")
                     p[is("group")] = is("p"); if (is("p") != "") order[++m] = is("group") }
    function real(x, digits) { return x == "" ? "-" : sprintf("%.*f", digits, x) }
    END {
        for (i = 1; i <= m; i++) for (k = i + 1; k <= m; k++)       # by p, then Holm: p times those left, never falling
            if (p[order[k]] + 0 < p[order[i]] + 0) { t = order[i]; order[i] = order[k]; order[k] = t }
        for (i = 1; i <= m; i++) {
            q = p[order[i]] * (m - i + 1); q = q > 1 ? 1 : q
            most = q > most ? q : most; holm[order[i]] = most
        }
        printf "%-10s %8s %4s %8s %8s %9s %8s %8s %7s %7s %8s %7s\n", "line", "rate", "runs", "loss", "spread", "effect",
            "error", "unpaired", "p", "Holm p", "shows", "minutes"
        for (i = 1; i <= n; i++) {
            x = g[i]
            printf "%-10s %8s %4d %8.4f %8s %9s %8s %8s %7s %7s %8s %7.2f\n", x, rate[x], runs[i], mean[i], real(sd[i], 4),
                x in d ? sprintf("%+.4f", d[x]) : "-", real(e[x], 4), real(u[x], 4), real(p[x], 4), real(holm[x], 4),
                real(shows[i], 4), minutes[i]
        }
        print "effect: loss less the first line'"'"'s; error: of pairs by seed; shows: what these pairs show in 4 of 5 cases at p < 0.05"
        for (x in rate) if (rate[x] ~ /!/) print x ": the best rate is at the edge of its grid"
    }' "$runs/judged"
