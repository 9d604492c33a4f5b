#!/usr/bin/env bats
# Which code ran: the commit of a tree, as programs, logs and checkpoints say it, and gpt-logdiff compares it.

bats_require_minimum_version 1.5.0
load logdiff

setup() {
    cd "$BATS_TEST_TMPDIR" || return
    export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
    export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
}

# A tree with the script in it, committed.
make_tree() {
    mkdir -p "$1/share/recipes" "$1/lib" "$1/man"
    cp "$GPT_SHARE/which-commit" "$1/share"
    echo 'int x;' > "$1/lib/x.c"
    git -C "$1" init -q
    git -C "$1" add .
    git -C "$1" commit -qm one
}

@test "the commit of a tree: clean, changed in what is built, unknown without git" {
    command -v git > /dev/null || skip "no git"
    make_tree t
    head=$(git -C t rev-parse HEAD)
    [ "$(t/share/which-commit)" = "$head, clean" ]
    # pages are not built into programs
    echo text > t/man/page
    [ "$(t/share/which-commit)" = "$head, clean" ]
    echo 'int y;' > t/lib/y.c # a new source is
    [ "$(t/share/which-commit)" = "$head, changed" ]
    rm t/lib/y.c
    echo 'int z;' > t/lib/x.c
    [ "$(t/share/which-commit)" = "$head, changed" ]
    git -C t commit -qam two
    [ "$(t/share/which-commit)" = "$(git -C t rev-parse HEAD), clean" ]
    # a tree without its .git, by itself and inside another one's
    rm -rf t/.git
    [ "$(t/share/which-commit)" = unknown ]
    git init -q .
    git commit -q --allow-empty -m outer
    [ "$(t/share/which-commit)" = unknown ]
}

@test "--version: commit, and the hash that the linker made" {
    for p in "$GPT_BIN"/*; do
        run --separate-stderr "$p" -V
        [ "$status" -eq 0 ]
        [[ ${lines[1]} =~ ^commit:\ ([0-9a-f]{40},\ (clean|changed)|unknown)$ ]]
        [[ ${lines[2]} =~ ^program:\ [0-9a-f]{40}$ ]]
        if command -v readelf > /dev/null; then
            [ "${lines[2]#program: }" = "$(readelf -n "$p" | sed -n 's/.*Build ID: //p')" ]
        fi
    done
    if command -v strip > /dev/null; then
        strip -o stripped "$GPT_BIN/gpt-logdiff"
        [ "$(./stripped -V | sed -n 3p)" = "$("$GPT_BIN/gpt-logdiff" -V | sed -n 3p)" ]
    fi
}

@test "a run's log and checkpoint say what --version says" {
    mkdir text
    (cd "$GPT_SHARE/.." && tests/inputs/text "$BATS_TEST_TMPDIR/text")
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 1024 -o shards text/00*
    "$GPT_BIN/gpt-train" -q -r tiny -d shards -o run -s model.vocab=272 -s model.head_dim=16 -s model.mlp_width=64 \
        -s data.val_tokens=1024 -s data.val_chunk=1024 -s schedule.steps=1 -s schedule.extension=1 \
        -s data.chunks=1 -s "stages.0=64 1 64 1 1" -s "stages.1=64 1 64 1 1" -s "stages.2=64 1 64 1 1" \
        -s "stages.3=64 2 64 - 1" > run.log
    diff <("$GPT_BIN/gpt-train" -V | sed -n 2,3p) <(sed -n '/^\(commit\|program\): /p' run.log)
    commit=$(sed -n 's/^commit: //p' run.log)
    [ "$commit" = unknown ] && commit=
    grep -qx "tool gpt-train 0.1.0${commit:+, commit $commit}" run/step-*/MANIFEST
}

# code LOG COMMIT PROGRAM: a log of gpt-train's of that code
code() {
    made ours "loss=3.1$1" "seed=$1" | sed "s/^commit: .*/commit: $2/; s/^program: .*/program: $3/"
}

@test "a group of several codes is no comparison; --why names the commits" {
    mkdir base one two
    for i in 1 2 3; do
        code $i 'aaaa, clean' p1 > base/$i.log
        code $i 'bbbb, clean' p2 > one/$i.log
        code $i 'bbbb, clean' "p$i" > two/$i.log
    done
    # a clean commit is one code, whatever the compiler made of it
    for own in one two; do
        run --separate-stderr logdiff --target 9 --why base $own
        [ -z "$stderr" ]
        [[ "$output" != *unequal* ]]
        [[ "$output" == *"code: differs between 'base' and '$own'"*$'-commit: aaaa, clean\n+commit: bbbb, clean'* ]]
    done
    [[ "$output" == *"environment: 'two' mixes 3"* ]]
    # sources that are not the commit's are known by the program alone
    for i in 1 2 3; do code $i 'bbbb, changed' "p$i" > two/$i.log; done
    run --separate-stderr logdiff --target 9 base two
    [ "$status" -eq 1 ]
    [[ "$output" == *"two: unequal code: 'two' mixes 3 kinds"* ]]
    for i in 1 2 3; do code $i 'bbbb, changed' p > two/$i.log; done
    run --separate-stderr logdiff --target 9 base two
    [[ "$output" != *unequal* ]]
    code 3 'cccc, clean' p > two/3.log
    run --separate-stderr logdiff --target 9 base two
    [[ "$output" == *"two: unequal code: 'two' mixes 2 kinds"* ]]
    run --separate-stderr logdiff --target 9 --mixed base two
    [[ "$output" != *unequal* ]]
    [ "$(logdiff --format tsv base | cells runs code | sort -u | wc -l)" -eq 1 ]
}

@test "logs that are older than that are said to be, once" {
    mkdir a b
    for i in 1 2; do
        code $i x y | grep -v '^commit\|^program' > a/$i.log
        code $i 'bbbb, clean' p > b/$i.log
    done
    run --separate-stderr logdiff a b
    [ "$stderr" = "gpt-logdiff: a/1.log: does not say which code ran, as 1 more: older logs of gpt-train do not" ]
    run --separate-stderr logdiff --why a b
    [[ "$output" == *"code: only the logs of 'b' tell"* ]]
    run --separate-stderr logdiff a/1.log
    [ -z "$stderr" ]
    # published logs have their program in them
    made today > t1.txt
    made today seed=2 loss=3.3 > t2.txt
    run --separate-stderr logdiff t1.txt t2.txt
    [ -z "$stderr" ]
}
