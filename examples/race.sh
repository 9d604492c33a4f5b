#!/bin/sh
# Optimizers raced on bench-small: each line's rate is chosen with some seeds, then judged with fresh ones.
#   examples/race.sh [FILE | 'NAME RATE,RATE... SETTING[ ; SETTING]...']...
# A setting is KEY=VALUE with RATE for the rate, or an option of gpt-train; FILE has such lines, as examples/race.lines,
# where one of the name * has settings of every line. A line of one rate is judged at it, one of the rate - has none. The
# first line is the baseline; without lines: Muon, NorMuon, AdamW. As it stands a few steps on the shards of
# examples/train-on-text.sh, 10 s, which answer nothing; in earnest 48 runs of a minute on two cores, on the shards that
# share/recipes/bench-small.recipe says how to make:
#   SHARDS=shards JOBS=8 examples/race.sh
# A grid whose best rate is at its edge is made longer there, MORE times (3). CHOOSE and FRESH are the seeds, THREADS
# those of a run (2), STEPS and RECIPE others than the recipe's. GPUS=1: on a GPU, which JOBS runs share, or on so many,
# in a folder of its own; on an H200 a run takes 0.8 s alone and 8 at once 5, since little but their starts overlaps. UNTIL
# and CHECKPOINTS are sweep.sh's. It goes on where it was stopped.
set -eu
# shellcheck source=examples/keep.sh
. "$(dirname "$0")/keep.sh"
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
sweep=$(dirname "$0")/sweep.sh
export SHARDS="${SHARDS:-}" GPT_BIN="$bin" THREADS="${THREADS:-2}"
recipe=${RECIPE:-share/recipes/bench-small.recipe}
export GPUS="${GPUS:-0}"
where=
[ "$GPUS" -eq 0 ] || where=-gpu
if [ -n "$SHARDS" ]; then
    short=
    runs=$dir/race$where
    more=${MORE:-3}
    choose=${CHOOSE:-1 2} fresh=${FRESH:-11 12 13 14 15 16 17 18}
else
    SHARDS=$dir/shards
    [ -d "$SHARDS" ] || { echo "no $SHARDS: run examples/train-on-text.sh first" >&2; exit 1; }
    short="stages.0=256 4 128 1 1	stages.1=256 4 128 - 1	schedule.final_window=4"
    short="$short	data.val_tokens=1024	data.val_chunk=1024	data.expect=-"
    runs=$dir/race-short$where
    STEPS=${STEPS:-3}
    more=${MORE:-0}
    choose=${CHOOSE:-1} fresh=${FRESH:-11 12}
fi
if [ $# -eq 0 ]; then
    polar='rules.matrices=lr RATE | momentum 0.95 nesterov | polar record-61 | shape'
    betas='matrices sharded 0.9 0.95 1 1 no'        # columns that a rule with adam has
    set -- "muon 0.02,0.04,0.08,0.16 $polar | decay 0.05 | step" \
        "normuon 0.02,0.04,0.08,0.16 $polar | variance 0.95 | decay 0.05 | step" \
        "adamw 0.002,0.004,0.008,0.016 rules.matrices=lr RATE | adam ;\
            parameters.attn=16,d,d bf16 uniform:1,uniform:1,uniform:1,zero $betas ;\
            parameters.mlp=8,f,d bf16 uniform:1,zero $betas"
fi

# The lines of a file, whose "#" begins a comment and whose "\" at an end goes on.
keep_asked "$runs" "$SHARDS"
every=
for word; do
    shift
    case $word in
    *' '*) set -- "$@" "$word" ;;
    *)
        sed -e '/^#/d; /^ *$/d; :next; /\\$/{N; s/ *\\\n */ /; b next;}' "$word" >"$runs/lines"
        while IFS= read -r line; do
            case $line in
            '* '*) every="$every${every:+ ; }${line#* }" ;;
            *) set -- "$@" "$line" ;;
            esac
        done <"$runs/lines"
        ;;
    esac
done

# plan NAME RATE SETTINGS SEEDS: a folder a run, whose path is printed.
plan() {
    for seed in $4; do
        run=$runs/$1/lr-$2/seed-$seed
        mkdir -p "$run"
        {
            printf '%s\n' "--recipe=$recipe" ${STEPS:+"--set=schedule.steps=$STEPS"} "--set=seed=$seed"
            printf '%s' "$short" | tr '\t' '\n' | sed 's/^/--set=/; $s/$/\n/'
            printf '%s\n' "$every" "$3" | sed "s/RATE/$2/g; s/ *; */\n/g" | sed '/^$/d; /^--/!s/^/--set=/'
        } >"$run/args.part"
        keep "$run/args"
        printf '%s\0' "$run"
    done
}
race() { xargs -r -0 -n 1 -P "${JOBS:-$((GPUS > 0 ? GPUS : 1))}" --process-slot-var=SLOT "$sweep" --run; }
loss_of() { sed -n 's|^step:\([0-9]*\)/\1 val_loss:\([0-9.]*\).*|\2|p' "$1/log.txt" 2>/dev/null | tail -n 1; }

rates_of() { cat "$runs/${1%% *}.rates"; }
settings_of() { printf '%s\n' "$1" | cut -s -d ' ' -f 3-; }
is_fixed() { [ "$(rates_of "$1" | wc -l)" -eq 1 ]; }

# The best rate of a line, of those that all seeds ended with; "<" or ">" where it is the least or the greatest.
best_of() {
    if is_fixed "$1"; then
        echo "${1%% *} $(rates_of "$1") -"
        return
    fi
    for rate in $(rates_of "$1"); do
        for seed in $choose; do echo "$rate $(loss_of "$runs/${1%% *}/lr-$rate/seed-$seed")"; done
    done | awk -v name="${1%% *}" '
        !($1 in sum) { order[++n] = $1; sum[$1] = 0 }
        { if (NF < 2) bad[$1] = 1; sum[$1] += $2; runs[$1]++ }
        END {
            for (i = 1; i <= n; i++) {
                r = order[i]
                mean[i] = sum[r] / runs[r]
                printf "%-10s %8s %9s\n", name, r, r in bad ? "-" : sprintf("%.4f", mean[i]) >"/dev/stderr"
                if (!(r in bad) && (!best || mean[i] < mean[best])) best = i
            }
            if (best) print name, order[best], best == 1 ? "<" : best == n ? ">" : "-"
        }'
}

for line in "$@"; do
    rest=${line#* }
    echo "${rest%% *}" | tr , '\n' >"$runs/${line%% *}.rates"
done
while :; do
    for line in "$@"; do
        is_fixed "$line" ||
            for rate in $(rates_of "$line"); do plan "${line%% *}" "$rate" "$(settings_of "$line")" "$choose"; done
    done >"$runs/list"
    race <"$runs/list"
    for line in "$@"; do best_of "$line"; done >"$runs/chosen"
    # a grid whose best rate is at its edge goes on there, by a factor of 2
    if [ "$more" -eq 0 ] || ! grep -q '[<>]$' "$runs/chosen"; then break; fi
    more=$((more - 1))
    while read -r name rate edge; do
        case $edge in
        '<') awk -v r="$rate" 'BEGIN { print r / 2 } { print }' "$runs/$name.rates" >"$runs/new" ;;
        '>') awk -v r="$rate" '{ print } END { print 2 * r }' "$runs/$name.rates" >"$runs/new" ;;
        *) continue ;;
        esac
        mv "$runs/new" "$runs/$name.rates"
    done <"$runs/chosen"
done
while read -r name rate _; do
    for line in "$@"; do
        [ "${line%% *}" != "$name" ] || plan "$name" "$rate" "$(settings_of "$line")" "$fresh"
    done
done <"$runs/chosen" >"$runs/list"
race <"$runs/list"

set --
paired=
while read -r name rate _; do
    before=$#
    for seed in $fresh; do
        run=$runs/$name/lr-$rate/seed-$seed
        if [ -n "$(loss_of "$run")" ]; then set -- "$@" "$name=$run"; fi
    done
    if [ "$before" -gt 0 ] && [ $# -gt "$before" ]; then paired=--paired; fi
done <"$runs/chosen"
[ $# -gt 0 ] || { echo "no run has ended" >&2; exit 1; }
# 1 is an answer, too: not demonstrated to be better
"$bin/gpt-logdiff" -q --rules loss ${paired:+"$paired"} --alpha 0.05 --format tsv "$@" >"$runs/judged" || [ $? = 1 ]
awk -F '\t' -v chosen="$runs/chosen" '
    BEGIN { while ((getline row <chosen) > 0) { split(row, f, " "); rate[f[1]] = f[2] (f[3] == "-" ? "" : "!") } }
    sub(/^#/, "", $1) { for (i = 2; i <= NF; i++) at[$1, $i] = i; next }
    function is(name) { return $at[$1, name] }
    $1 == "groups" {
        g[++n] = is("group"); runs[n] = is("runs"); mean[n] = is("loss_mean"); sd[n] = is("loss_sd")
        minutes[n] = is("time_mean") / 60; shows[n] = is("loss_shows")
    }
    $1 == "paired" {
        x = is("group"); d[x] = is("loss_diff"); e[x] = is("error"); u[x] = is("unpaired_error"); p[x] = is("p")
        if (p[x] != "") order[++m] = x
    }
    function real(x, digits) { return x == "" ? "-" : sprintf("%.*f", digits, x) }
    END {
        for (i = 1; i <= m; i++) for (k = i + 1; k <= m; k++) # by p, then Holm: p times those left, never falling
            if (p[order[k]] + 0 < p[order[i]] + 0) { t = order[i]; order[i] = order[k]; order[k] = t }
        for (i = 1; i <= m; i++) {
            q = p[order[i]] * (m - i + 1); q = q > 1 ? 1 : q
            most = q > most ? q : most; holm[order[i]] = most
        }
        wide = 10
        for (i = 1; i <= n; i++) if (length(g[i]) > wide) wide = length(g[i])
        printf "%-*s %8s %4s %8s %8s %9s %8s %8s %7s %7s %8s %7s\n", wide, "line", "rate", "runs", "loss",
            "spread", "effect", "error", "unpaired", "p", "Holm p", "shows", "minutes"
        for (i = 1; i <= n; i++) {
            x = g[i]
            printf "%-*s %8s %4d %8.4f %8s %9s %8s %8s %7s %7s %8s %7.2f\n", wide, x, rate[x], runs[i], mean[i],
                real(sd[i], 4), x in d ? sprintf("%+.4f", d[x]) : "-", real(e[x], 4), real(u[x], 4),
                real(p[x], 4), real(holm[x], 4), real(shows[i], 4), minutes[i]
        }
        print "effect: loss less the first line'"'"'s; error: of pairs by seed;" \
            " shows: what these pairs show in 4 of 5 cases at p < 0.05"
        for (x in rate) if (rate[x] ~ /!/) print x ": the best rate is at the edge of its grid"
    }' "$runs/judged"
