# cells.bash - reads reports of gpt-logdiff --format tsv in $output.

# The cells of a row of a TSV report, by heading: cells PART NAME...
cells() {
    awk -F'\t' -v part="$1" -v want="${*:2}" '
        $1 == "#" part { for (i = 2; i <= NF; i++) at[$i] = i }
        $1 == part { n = split(want, w, " ")
                     for (i = 1; i <= n; i++) printf "%s%s", (i > 1 ? " " : ""), $(at[w[i]])
                     print "" }' <<<"$output"
}
