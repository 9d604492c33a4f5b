#!/usr/bin/env bats
# gpt-logdiff --html: one file, whose data are the logs'.

bats_require_minimum_version 1.5.0
load few_steps
load ../check/needs

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return
    few_shards
    mkdir few more
    for i in 1 2; do
        "$GPT_BIN/gpt-train" "${FEW[@]}" -q -s seed=$i > few/$i.log
        "$GPT_BIN/gpt-train" "${FEW[@]}" -q -s seed=$i -s optimizer.muon_lr=0.05 > more/$i.log
    done
    "$GPT_BIN/gpt-logdiff" -q --html page.html few '</script><b>=more' > report.txt || [ $? = 1 ]
    sed -n '/^<script type="application\/json" id="data">$/,/^<\/script>$/p' page.html | sed '1d;$d' > data.json
}

setup() { cd "$BATS_FILE_TMPDIR" || return; }

@test "the values of each row are those of --format csv" {
    needs jq
    "$GPT_BIN/gpt-logdiff" -q --format csv few '</script><b>=more' | tail -n +2 | cut -d , -f 2- > rows.csv
    jq -r '.runs[] | . as $r | range($r.rows.step | length) as $i |
        [$r.run, $r.trial, ($r.rows["step", "train/loss", "train/next_loss", "val/loss", "train/grad_norm", "lr", "tokens", "seconds", "epoch"] | .[$i]?)] |
        map(if . == null then "" else tostring end) | join(",")' data.json | diff - rows.csv
    [ "$(wc -l < rows.csv)" -eq 24 ]     # two groups, two seeds, six steps
}

@test "the page has the groups, the report, the recipes and the code of the runs" {
    needs jq
    jq -e '.groups == ["few", "</script><b>"] and (.runs | map(.group)) == [0, 0, 1, 1] and .target == null' data.json
    [ "$(jq -r '.report.groups[1].loss_mean' data.json)" = "$("$GPT_BIN/gpt-logdiff" -q --format tsv few more |
        awk -F '\t' '$1 == "#groups" { for (i = 1; i <= NF; i++) at[$i] = i } $1 == "groups" { x = $at["loss_mean"] } END { print x }')" ]
    jq -e '[.report.diff[].lines[]] | index("+muon_lr = 0.05")' data.json
    jq -e '.runs as $r | [.facts[] | select(.kind == "recipe")] | length == 2' data.json
    jq -e '.runs[0].facts as $of | [.facts[$of[]] | .kind] | sort == ["code", "data", "environment", "gpu", "recipe"]' data.json
    jq -e '.made | startswith("gpt-logdiff ") and contains("arguments: ") and contains("--html page.html few")' data.json
}

@test "one file without a network, whose own script has 250 lines at most" {
    [ "$(grep -c '<script' page.html)" -eq 2 ]
    [ "$(grep -ciE '(src|href)=|@import|url\((["'\'']?)(http|//)|fetch\(|XMLHttpRequest' page.html)" -eq 0 ]
    # addresses of namespaces and of nothing else
    [ -z "$(grep -oE 'https?://[a-z0-9.]+' page.html | sort -u | grep -v '^http://www.w3.org$')" ]
    [ "$(sed -n '/^<script>$/,/^<\/script>$/p' page.html | wc -l)" -le 252 ]
    [ "$(grep -c '^<svg' page.html)" -eq 1 ]        # without scripts
    [ "$(tail -n 1 page.html)" = "</html>" ]
}

@test "the script runs" {
    needs node
    sed -n '/^<script>$/,/^<\/script>$/p' page.html | sed '1d;$d' > script.js
    node --check script.js
}

@test "a page is not overwritten, nor written to standard output" {
    refused 4 "page.html" gpt-logdiff -q --html page.html few
    refused 2 "--html: standard output takes the report" gpt-logdiff -q --html - few
    cp page.html old.html
    tool gpt-logdiff -q --force --html old.html few
    [ "$status" -eq 0 ]
    ! cmp -s page.html old.html
}
