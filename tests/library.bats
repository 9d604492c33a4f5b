# The library as other programs have it: what is installed, its names, and the uses on its page.

bats_require_minimum_version 1.5.0
load cmd/few_steps

setup() {
    root=$BATS_TEST_DIRNAME/..
    inst=$BATS_TEST_TMPDIR/inst
    mkdir -p "$inst/lib" "$inst/include/gpt"
    cp "$GPT_BIN/../public/libgpt.a" "$inst/lib"
    cp "$root"/lib/*/gpt_*.h "$inst/include/gpt"
    cd "$BATS_TEST_TMPDIR"
}

# program N: compiles the page's N-th use as strict C, with the flags of the pkg-config file.
program() {
    awk -v n="$1" '/^```c/ { k++; on = 1; next } /^```/ { on = 0 } on && k == n' "$root/share/doc/library.md" > "use$1.c"
    [ "$(grep -c main "use$1.c")" -eq 1 ]
    read -ra flags <<< "$(sed -nE "s|^(Cflags\|Libs): ||p" "$root/share/gpt.pc" | tr '\n' ' ' | sed "s|\${prefix}|$inst|g")"
    cc -std=c11 -Wall -Wextra -Werror "use$1.c" -o "use$1" "${flags[@]}"
}

@test "nothing is global in the installed library but gpt_ names, each declared in an installed header" {
    names=$(nm -g --defined-only "$inst/lib/libgpt.a" | awk 'NF == 3 { print $3 }')
    [ "$(wc -l <<< "$names")" -ge 20 ]
    run ! grep -v '^gpt_' <<< "$names"
    for name in $names; do grep -qE "\\b$name\\(" "$inst"/include/gpt/gpt_*.h; done
    for header in "$inst"/include/gpt/*.h; do
        for declared in $(grep -oE '\bgpt_[a-z_]+\(' "$header" | tr -d '(' | sort -u); do
            grep -qx "$declared" <<< "$names"
        done
        echo "#include \"$header\"" > one.c
        cc -std=c11 -Wall -Wextra -Werror -fsyntax-only one.c
        c++ -Wall -Wextra -Werror -fsyntax-only -x c++ one.c
    done
}

@test "the uses on the page compile as they stand, and tell what the commands tell" {
    few_shards
    train=$(ls shards/*_train_*)
    program 1
    run -0 ./use1 "$train"
    [[ $output =~ ^([0-9]+)\ documents,\ the\ longest\ of\ ([0-9]+)\ tokens$ ]]
    # Documents begin with token 256.
    read -r documents longest < <(od -An -v -tu2 -w2 -j1024 "$train" |
        awk '$1 == 256 { n++; if (k > most) most = k; k = 0 } { k++ } END { print n, (k > most ? k : most) }')
    [ "${BASH_REMATCH[1]}" -eq "$documents" ]
    [ "${BASH_REMATCH[2]}" -eq "$longest" ]
    run ! ./use1 "$root/README.md"
    [[ $output = *"expected a token shard"* ]]

    program 2
    run -0 ./use2 shards
    [ "${#lines[@]}" -eq 3 ]
    [[ ${lines[0]} = "step 0: 8 chunks, tokens 256 "* ]]
    # The first tokens are the shard's.
    [ "${lines[0]#*tokens }" = "$(od -An -tu2 -j1024 -N4 "$train" | awk '{ print $1, $2, "..." }')" ]

    "$GPT_BIN/gpt-train" "${FEW[@]}" -q -o run > run.log
    program 3
    run -0 ./use3 run.log
    [ "$output" = "run.log: step 6, $(grep -o 'val_loss:[0-9.]*' run.log | tail -1 | cut -d: -f2)" ]

    "$GPT_BIN/gpt-ckpt" export -o model.safetensors.zst run
    program 4
    run -0 ./use4 model.safetensors.zst
    diff <(awk '{ print $1, $2 }' <<< "$output") <(zstd -dcq model.safetensors.zst | head -c 100000 |
        grep -aoE '"[^"]+":\{"dtype":"[A-Z0-9_]+"' | sed -E 's/"([^"]+)":\{"dtype":"(.*)"/\1 \2/')
}
