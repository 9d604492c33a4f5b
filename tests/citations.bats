#!/usr/bin/env bats
# Comments cite the definitions in share/doc by file and section, "record-61.md 2.4, 3.1": both exist.
# So does what the definitions name of the source. README's figures are performance.md's.

bats_require_minimum_version 1.5.0

setup() {
    root=$(cd "$GPT_SHARE/.." && pwd)
}

# A line "FILE NAME SECTION" for each section that these files cite. A comment's lines are joined first.
cited() {
    awk '
        function tell(    n, word, i, name) {
            while (match(text, /[A-Za-z0-9-]+\.md [0-9][0-9.]*((,| and| to| -) [0-9][0-9.]*)*/)) {
                n = split(substr(text, RSTART, RLENGTH), word, /[ ,]+/)
                name = tolower(word[1])
                for (i = 2; i <= n; i++)
                    if (word[i] ~ /^[0-9]/) {
                        sub(/\.$/, "", word[i])
                        print file, name, word[i]
                    }
                text = substr(text, RSTART + RLENGTH)
            }
        }
        FNR == 1 { tell(); text = ""; file = FILENAME }
        { sub(/^[ \t]*(\*|#|\/\/|\.\\")?[ \t]*/, ""); text = text " " $0 }
        END { tell() }' "$@"
}

# Those of them that share/doc does not have.
missing() {
    cited "$@" | sort -u | while read -r file name section; do
        grep -qE "^##+ ${section//./\\.} " "$root/share/doc/$name" 2>/dev/null ||
            echo "${file#"$root"/}: $name $section"
    done
}

sources() {
    find "$root"/{lib,kernels,cmd,tests,man,share,examples} "$root"/*.md -type f \
        ! -path '*/golden/*' ! -name citations.bats
}

@test "each section that the source cites is in share/doc" {
    mapfile -t files < <(sources)
    [ "$(cited "${files[@]}" | wc -l)" -ge 60 ]
    run missing "${files[@]}"
    echo "$output"
    [ -z "$output" ]
}

@test "a section or a document that does not exist is told" {
    f=$BATS_TEST_TMPDIR/x.c
    printf '%s\n' '/* record-61.md 2.4, 2.99. and record-61.md' ' * 4.4 to 4.98; record-62.md 1 */' > "$f"
    run missing "$f"
    [ "$output" = "$f: record-61.md 2.99
$f: record-61.md 4.98
$f: record-62.md 1" ]
}

@test "files and names that share/doc takes from the source are there" {
    cd "$root"
    paths=$(grep -ohE '\<(lib|kernels|tests|man|share|cmd)/[A-Za-z0-9_./-]*[A-Za-z0-9_]' share/doc/*.md |
        grep -vE 'NAME|PROGRAM|SUBJECT|record-N|rN|smNN' | sort -u)
    [ "$(wc -l <<< "$paths")" -ge 40 ]
    for path in $paths; do
        [ -e "$path" ] || { echo "no $path"; false; }
    done
    names=$(grep -ohE '`[a-z0-9]+(_[a-z0-9]+)+`' share/doc/*.md | tr -d '`' | sort -u)
    [ "$(wc -l <<< "$names")" -ge 30 ]
    for name in $names; do
        grep -rqw --include='*.[chu]*' "$name" lib kernels tests || { echo "no $name"; false; }
    done
}

# Numbers with a decimal point, or of four digits and more, of a section of README.
figures_of() {
    sed -n "/^## $1\$/,/^## /p" "$root/README.md" | sed 's/^|//' |
        grep -oE '[0-9]+(,[0-9]{3})+|[0-9]+\.[0-9]+' | sort -u
}

@test "README's figures are those of performance.md" {
    figures=$(figures_of Figures)
    [ "$(wc -l <<< "$figures")" -ge 30 ]
    for figure in $figures; do
        case $figure in 131,072|262,144|18.3|9.3) continue ;; esac # tokens of stages; GiB of MiB there
        grep -qF -- "$figure" "$root/share/doc/performance.md" || { echo "no $figure in performance.md"; false; }
    done
}
