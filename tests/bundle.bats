# A bundle (share/bundle) has what its device tests need: unpacked elsewhere, where no GPU is visible, each of them
# is skipped for want of one, and none fails.

bats_require_minimum_version 1.5.0

# Of what is built here: without CUDA the commands alone.
setup_file() {
    cd "$GPT_SHARE/.." || return
    programs=("$GPT_BIN"/gpt-* "$GPT_BIN"/ns-coeffs "$GPT_TESTS"/golden)
    for p in "$GPT_TESTS"/gpu_*; do [ ! -x "$p" ] || programs+=("$p"); done
    share/bundle "$BATS_FILE_TMPDIR/bundle.tar" "${programs[@]}"
    tar -C "$BATS_FILE_TMPDIR" -xf "$BATS_FILE_TMPDIR/bundle.tar"
    rm "$BATS_FILE_TMPDIR/bundle.tar"
}

setup() {
    cd "$BATS_FILE_TMPDIR"
    export CUDA_VISIBLE_DEVICES=
}

check_gpu() { env -u GPT_BIN -u GPT_TESTS -u GPT_SHARE -u BUILD -u NEED gpt-bundle/share/check-gpu "$@"; }

# gpu_group_test alone runs without a GPU.
@test "without a GPU each device test is skipped for want of one" {
    run --separate-stderr check_gpu
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [[ ${lines[-1]} =~ ^[01]\ passed,\ 0\ failed$ ]]
    [[ ${lines[-2]} =~ ^[0-9]+\ skipped:\ [0-9]+\ gpus?(-2)?,\ [0-9]+\ gpus?(-2)?$ ]]
    tests=$(cat gpt-bundle/tests/gpu/*.bats | grep -c '^@test')
    [ "$tests" -ge 30 ]
    [ "${lines[-2]%% *}" -ge "$tests" ]
}

@test "a file that is missing is a failure" {
    for file in tests/check/needs.bash tests/inputs/text; do
        mv "gpt-bundle/$file" "$BATS_TEST_TMPDIR/away"
        run check_gpu gpu_train.bats
        [ "$status" -eq 1 ]
        mv "$BATS_TEST_TMPDIR/away" "gpt-bundle/$file"
    done
}

# Those that a test reads behind its skip, too.
@test "each file that its tests and scripts name is there" {
    names=$(cat gpt-bundle/tests/gpu/* gpt-bundle/tests/check/* gpt-bundle/share/{check-gpu,run-tests} |
        sed 's/^ *#.*//' | grep -oP '(?<![\w/])(tests|share|examples|man)/[\w./-]*\w' | sort -u)
    [ "$(wc -l <<<"$names")" -ge 6 ]
    cd gpt-bundle
    for name in $names; do
        echo "$name"
        compgen -G "$name*" >/dev/null
    done
}
