#!/bin/sh
# A grid of settings by seeds, a folder a run, as many at a time as there are cores or GPUs; then a table.
#   run examples/train-on-text.sh first, for its shards, or name some: SHARDS=dir
#   examples/sweep.sh ['KEY=VALUE|VALUE...']...     KEY of --set, or recipe; default: three rates by two rules
# The first values are the baseline. SEEDS, STEPS, RECIPE, JOBS at a time of THREADS, GPUS=n: on so many GPUs, which JOBS
# runs (n) share, in a folder of its own. Stopped and started again it takes up each run where it was. From UNTIL on, a time
# of `date +%s`, no run begins; CHECKPOINTS=0: a run leaves its log alone, and one that was stopped begins anew. A few steps
# by default: real sweeps take STEPS=300.
set -eu
# shellcheck source=examples/keep.sh
. "$(dirname "$0")/keep.sh"
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
shards=${SHARDS:-$dir/shards}
steps=${STEPS:-4}
gpus=${GPUS:-0}
example=$(printf 'model.vocab=272\tdata.val_tokens=8192\tdata.val_chunk=1024')
[ -z "${SHARDS:-}" ] || example=                    # of the example's bytes alone

ended() { grep -q '^step:\([0-9]*\)/\1 val_loss:[0-9]' "$1/log.txt" 2>/dev/null; }

# --run DIR, by xargs: one run, from its checkpoint where it has one.
if [ "${1:-}" = --run ]; then
    run=$2
    exec 9>"$run/lock"                              # gpt-train inherits it: one that was stopped may still be saving
    flock 9
    if ended "$run" || { [ -n "${UNTIL:-}" ] && [ "$(date +%s)" -ge "$UNTIL" ]; }; then exit 0; fi
    if [ "$gpus" -gt 0 ]; then
        list=${CUDA_VISIBLE_DEVICES:-$(seq -s , 0 $((gpus - 1)))}
        CUDA_VISIBLE_DEVICES=$(echo "$list" | cut -d , -f $((SLOT % gpus + 1)))
        export CUDA_VISIBLE_DEVICES
        set -- --gpus 1
    else
        set -- --threads "${THREADS:-1}"
    fi
    while IFS= read -r word; do set -- "$@" "$word"; done <"$run/args"
    log=$run/log.txt
    [ "${CHECKPOINTS:-1}" = 0 ] || { log=/dev/null; set -- --continue -o "$run" "$@"; }
    echo "$run" >&2
    "$bin/gpt-train" -q -d "$shards" "$@" >"$log" 2>"$run/err" ||
        echo "$run: $(head -n 1 "$run/err")" >&2
    exit 0                                          # one that fails, as by too large a rate, is missed in the table
fi

[ -d "$shards" ] || { echo "no $shards: run examples/train-on-text.sh first" >&2; exit 1; }
runs=$dir/sweep-$steps
[ "$gpus" -eq 0 ] || runs=$runs-gpu
keep_asked "$runs" "$shards"
if [ $# -eq 0 ]; then
    row='24,f,d bf16 uniform:0.5,zero'
    set -- 'optimizer.muon_lr=0.012|0.023|0.046' \
        "parameters.mlp=$row normuon sharded - 0.95 1,2 1 no|$row muon sharded - - 1,2 1 no"
fi

# Cells of the grid, a line each: settings between tabs. The first values come first.
printf '%s\n' "$@" | awk '
    { at = index($0, "="); key = substr($0, 1, at - 1); n = split(substr($0, at + 1), value, "|"); m = 0
      if (at < 2 || n < 1) { print "expected KEY=VALUE|VALUE..., found " $0 > "/dev/stderr"; bad = 1; exit }
      if (NR == 1) { old[1] = ""; cells = 1 }
      for (c = 1; c <= cells; c++)
          for (v = 1; v <= n; v++) new[++m] = old[c] (old[c] == "" ? "" : "\t") key "=" value[v]
      cells = m
      for (c = 1; c <= cells; c++) old[c] = new[c] }
    END { if (bad) exit 2; for (c = 1; c <= cells; c++) print old[c] }' >"$runs/grid.part"
keep "$runs/grid"

cell=0
while IFS= read -r line; do
    cell=$((cell + 1))
    for seed in ${SEEDS:-1 2}; do
        run=$runs/cell-$cell/seed-$seed
        mkdir -p "$run"
        printf '%s\n' ${example:+"$example"} data.val_every=0 schedule.steps="$steps" schedule.extension=0 \
            seed="$seed" "$line" | tr '\t' '\n' |
            awk -v recipe="${RECIPE:-share/recipes/tiny.recipe}" '
                sub(/^recipe=/, "") { recipe = $0; next }
                { print "--set=" $0 }
                END { print "--recipe=" recipe }' >"$run/args.part"
        keep "$run/args"
        printf '%s\0' "$run"
    done
done <"$runs/grid" >"$runs/list"
jobs=$gpus
[ "$gpus" -gt 0 ] || jobs=$(nproc)
xargs -0 -n 1 -P "${JOBS:-$jobs}" --process-slot-var=SLOT "$0" --run <"$runs/list"

# Each cell against the first: Welch's test is gpt-logdiff's, Holm's correction over the grid is here.
set --
cell=0
while IFS= read -r line; do
    cell=$((cell + 1))
    for seed in ${SEEDS:-1 2}; do
        if ended "$runs/cell-$cell/seed-$seed"; then set -- "$@" "cell-$cell=$runs/cell-$cell/seed-$seed"; fi
    done
done <"$runs/grid"
[ $# -gt 0 ] || { echo "no run has ended" >&2; exit 1; }
# 1 is an answer, too: not demonstrated to be better
"$bin/gpt-logdiff" -q --rules loss --format tsv "$@" >"$runs/judged" || [ $? = 1 ]
awk -F '\t' -v judged="$runs/judged" '
    function short(s) {                             # a setting without its section; a row by its rule
        sub(/^[a-z]*[.]/, "", s)
        if (split(s, w, " ") > 6) s = substr(s, 1, index(s, "=")) w[4]
        return s
    }
    BEGIN {
        while ((getline row <judged) > 0) {
            n = split(row, f, "\t")
            if (f[1] == "#groups") for (i = 1; i <= n; i++) at[f[i]] = i
            if (f[1] != "groups") continue
            c = f[at["group"]]
            runs[c] = f[at["runs"]]; mean[c] = f[at["loss_mean"]]; sd[c] = f[at["loss_sd"]]; p[c] = f[at["loss_p"]]
        }
    }
    { for (i = 1; i <= NF; i++) { set[NR, i] = $i; if ($i != set[1, i]) varies[i] = 1 } }
    END {
        for (c = 1; c <= NR; c++) {
            rate[c] = ""
            for (i = 1; i <= NF; i++) if (i in varies) {
                label[c] = label[c] (label[c] == "" ? "" : " ") short(set[c, i])
                if (set[c, i] ~ /[._]lr=/ && rate[c] == "") { rate[c] = set[c, i]; sub(/.*=/, "", rate[c]) }
                else curve[c] = curve[c] (curve[c] == "" ? "" : " ") short(set[c, i])
            }
        }
        for (i = 2; i <= NR; i++) if (p["cell-" i] != "") order[++m] = i
        for (i = 1; i <= m; i++)                    # by p, then Holm: p times those left, never falling
            for (k = i + 1; k <= m; k++)
                if (p["cell-" order[k]] + 0 < p["cell-" order[i]] + 0) { t = order[i]; order[i] = order[k]; order[k] = t }
        most = 0
        for (i = 1; i <= m; i++) {
            q = p["cell-" order[i]] * (m - i + 1); q = q > 1 ? 1 : q
            most = q > most ? q : most; holm[order[i]] = sprintf("%.4f", most)
        }
        printf "%-9s %4s %8s %9s %7s %7s %7s  %s\n", "cell", "runs", "loss", "effect", "error", "p", "Holm p", "settings"
        for (i = 1; i <= NR; i++) {
            c = "cell-" i
            if (!runs[c]) { printf "%-9s %4d %8s %9s %7s %7s %7s  %s\n", c, 0, "-", "-", "-", "-", "-", label[i]; continue }
            effect = error = "-"
            if (i > 1 && runs["cell-1"]) effect = sprintf("%+.4f", mean[c] - mean["cell-1"])
            if (i > 1 && runs[c] > 1 && runs["cell-1"] > 1)
                error = sprintf("%.4f", sqrt(sd[c] ^ 2 / runs[c] + sd["cell-1"] ^ 2 / runs["cell-1"]))
            welch = p[c] == "" ? "-" : sprintf("%.4f", p[c])
            printf "%-9s %4d %8.4f %9s %7s %7s %7s  %s\n", c, runs[c], mean[c], effect, error, welch,
                (i in holm) ? holm[i] : "-", label[i]
        }
        low = 1e9; high = -1e9
        for (i = 1; i <= NR; i++) if (runs["cell-" i] && rate[i] != "") {
            x = mean["cell-" i]; low = x < low ? x : low; high = x > high ? x : high
        }
        for (i = 1; i <= NR; i++) {                 # the loss over the rate, for each setting of the rest
            if (rate[i] == "" || curve[i] in drawn) continue
            drawn[curve[i]] = 1
            printf "\nloss over the rate%s\n", curve[i] == "" ? "" : ": " curve[i]
            for (k = i; k <= NR; k++) if (curve[k] == curve[i]) {
                x = mean["cell-" k]; bar = ""
                if (!runs["cell-" k]) { printf "%10s %8s\n", rate[k], "-"; continue }
                for (b = 0; b <= (high > low ? 40 * (x - low) / (high - low) : 0); b++) bar = bar "#"
                printf "%10s %8.4f %s\n", rate[k], x, bar
            }
        }
    }' "$runs/grid"
