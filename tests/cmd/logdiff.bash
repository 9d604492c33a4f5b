# What tests of gpt-logdiff share: logs that are made up, and cells of its tables.

LOGS=$BATS_FILE_TMPDIR

# group DIR LOSSES TIMES [KEY=VALUE]...: a log of today's layout for each pair in $LOGS/DIR, seeds from 1 on
group() {
    local dir=$LOGS/$1 i
    local -a losses times
    read -ra losses <<< "$2"
    read -ra times <<< "$3"
    shift 3
    rm -rf "$dir"
    mkdir -p "$dir"
    for i in "${!losses[@]}"; do
        made today "loss=${losses[i]}" "time_ms=${times[i]}" "seed=$((i + 1))" "$@" > "$dir/run$i.txt"
    done
}

made() { "$GPT_TESTS/make_runlog" "$@"; }
logdiff() { "$GPT_BIN/gpt-logdiff" "$@"; }

# The columns of one part of TSV, by their names.
cells() {
    local part=$1
    shift
    awk -F'\t' -v part="$part" -v want="$*" '
        $1 == "#" part { for (i = 2; i <= NF; i++) at[$i] = i; next }
        $1 == part { n = split(want, w, " "); s = ""
                     for (i = 1; i <= n; i++) s = s (i > 1 ? " " : "") $(at[w[i]]); print s }'
}
