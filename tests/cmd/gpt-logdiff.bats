#!/usr/bin/env bats
# gpt-logdiff as a user meets it, on logs made by make_runlog: no published log is kept here, but
# the losses and times of the table published with record 61 are, as its check values.

bats_require_minimum_version 1.5.0
load logdiff
load ../check/needs

setup_file() {
    group base "3.2777 3.2785 3.2790 3.2785 3.2788 3.2791 3.2766 3.2784" \
        "105369 105595 105414 105552 105561 105582 105609 105607" steps=120 source=1
    group new "3.2781 3.2803 3.2767 3.2799 3.2794 3.2767 3.2767 3.2780" \
        "104649 104442 104243 104454 104486 104322 104655 104412" steps=110 source=2
}

@test "the table published with record 61, to the last digit" {
    run --separate-stderr logdiff baseline="$LOGS/base" unified-optimizer="$LOGS/new"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    # published: runs, time mean, deviation, difference, p; loss mean, deviation, difference, p
    [[ "${lines[1]}" =~ ^baseline\ +8\ +120\ +105\.5361\ +0\.0923\ +0\.0000\ +–\ +3\.2783\ +0\.0008\ +0\.0000\ +0\.0003\  ]]
    [[ "${lines[2]}" =~ ^unified-optimizer\ +8\ +110\ +104\.4579\ +0\.1430\ +-1\.0782\ +\<0\.0001\ +3\.2782\ +0\.0015\ +-0\.0001\ +0\.0060\  ]]
    [[ "$output" == *"unified-optimizer: record: mean loss 3.2782 < 3.28 (p 0.0060 < 0.01); 1.0782 s faster (time p <0.0001, Welch, two-sided)"* ]]
    [[ "$output" == *"losses = [3.2777, 3.2785, 3.2790, 3.2785, 3.2788, 3.2791, 3.2766, 3.2784]"* ]]
    [[ "$output" == *"times  = [105.3690, 105.5950, 105.4140, 105.5520, 105.5610, 105.5820, 105.6090, 105.6070]"* ]]
}

@test "record 74: p 0.0097, and rounding leaves open whether it is below 0.01" {
    group r74 "3.2783 3.2789 3.2795 3.2786" "88821 88810 88900 88850" steps=100
    run --separate-stderr logdiff base="$LOGS/base" new="$LOGS/r74"
    [ "$status" -eq 0 ]
    [[ "$output" == *"(p 0.0097 < 0.01)"*"but the losses are rounded and p may be anything from 0.00"*" to 0.01"* ]]
}

@test "slower is no record; a tie is none; the exit status says so" {
    run --separate-stderr logdiff base="$LOGS/new" new="$LOGS/base"
    [ "$status" -eq 1 ]
    [[ "$output" == *"new: not faster: +1.0782 s"* ]]
    group near "3.2777 3.2785 3.2790 3.2785" "105500 105300 105600 105400" steps=118
    run --separate-stderr logdiff base="$LOGS/base" new="$LOGS/near"
    [ "$status" -eq 1 ]
    [[ "$output" == *"new: not demonstrated to be faster: -0.0861 s, time p 0."*"(Welch, two-sided)"* ]]
}

@test "a loss that is not shown: how many more runs would demonstrate it" {
    group few "3.2790 3.2805 3.2785" "104000 104100 104050" steps=110
    run --separate-stderr logdiff base="$LOGS/base" new="$LOGS/few"
    [ "$status" -eq 1 ]
    # t = -1.1094 of 2 degrees: p = 1/2 - 1.1094 / (2 sqrt(2 + 1.1094^2)) = 0.1914. Of n runs t is
    # -0.6405 sqrt(n): -2.562 of 16, where tables want -2.602, and -2.641 of 17, where they want -2.583.
    [[ "$output" == *"loss not demonstrated: p 0.1914 >= 0.01; 14 more runs of this mean and deviation would demonstrate it ("*" in all for a chance of 80%)"* ]]
    group high "3.2810 3.2805 3.2815" "104000 104100 104050" steps=110
    run --separate-stderr logdiff base="$LOGS/base" new="$LOGS/high"
    [ "$status" -eq 1 ]
    [[ "$output" == *"loss not demonstrated: mean 3.2810 is not below 3.28"* ]]
}

@test "one group is held against the target alone" {
    run --separate-stderr logdiff "$LOGS/new"
    [ "$status" -eq 0 ]
    [[ "$output" == *"demonstrated: mean loss 3.2782 < 3.28 (p 0.0060 < 0.01)"* ]]
    run --separate-stderr logdiff --target 3.278 "$LOGS/new"
    [ "$status" -eq 1 ]
    run --separate-stderr logdiff --alpha 0.001 "$LOGS/new"
    [ "$status" -eq 1 ]
}

@test "the lower tail is half of the two-sided p, and is said" {
    group near "3.2777 3.2785 3.2790 3.2785" "105500 105300 105600 105400" steps=118
    two=$(logdiff --format tsv "$LOGS/base" "$LOGS/near" | cells groups time_p | tail -1) || true
    low=$(logdiff --format tsv --tail lower "$LOGS/base" "$LOGS/near" | cells groups time_p | tail -1) || true
    awk -v a="$two" -v b="$low" 'BEGIN { d = a - 2 * b; if (d < 0) d = -d; exit !(a > 0 && d < 1e-9) }'
    run --separate-stderr logdiff --tail lower "$LOGS/base" "$LOGS/near"
    [[ "$output" == *"Time p: Welch, lower tail."* ]]
}

@test "--rules loss: is the loss below the baseline's, whatever time and target" {
    group low "3.2741 3.2763 3.2727 3.2759" "204649 204442 204243 204454" steps=140 source=3
    run --separate-stderr logdiff --rules loss --target 3 "$LOGS/base" new="$LOGS/low"
    [ "$status" -eq 1 ]
    # mpmath: t = -4.0478 of 3.7464 degrees of freedom, p 0.017663
    [[ "$output" =~ "not demonstrated to be better: loss -0.0035"[78]", p 0.0177 >= 0.01 (Welch, two-sided)" ]]
    run --separate-stderr logdiff --rules loss --tail lower --target 3 "$LOGS/base" new="$LOGS/low"
    [ "$status" -eq 0 ]
    [[ "$output" == *"new: better: mean loss lower by 0.0035"*" (p 0.0088 < 0.01, Welch, lower tail)"* ]]
    run --separate-stderr logdiff --rules loss "$LOGS/low" new="$LOGS/base"
    [ "$status" -eq 1 ]
    [[ "$output" == *"new: no better: loss +0.0035"* ]]
}

@test "track 3: five digits, seconds, trials in one file, the z rule" {
    mkdir -p "$LOGS/t3a" "$LOGS/t3b"
    made track3 loss=3.27906 time_ms=678200 steps=100 > "$LOGS/t3a/a.txt"
    made track3 loss=3.27716 time_ms=678200 steps=90 > "$LOGS/t3b/b.txt"
    run --separate-stderr logdiff --rules track-3 a="$LOGS/t3a" b="$LOGS/t3b"
    # losses 3.27716 and 3.27816: (3.28 - 3.27766) sqrt(2) = 0.00331
    [ "$status" -eq 1 ]
    [[ "$output" == *"b: loss not demonstrated: (3.28 - 3.27766) sqrt(2) = 0.00331 < 0.004; 1 more runs of this mean would demonstrate it"* ]]
    made track3 loss=3.27506 time_ms=678200 steps=90 > "$LOGS/t3b/b.txt"
    run --separate-stderr logdiff --rules track-3 a="$LOGS/t3a" b="$LOGS/t3b"
    [ "$status" -eq 0 ]
    [[ "$output" == *"b: record: mean loss 3.27556, (3.28 - mean) sqrt(2) = 0.00628 >= 0.004; 10 steps fewer"* ]]
    [ "$(logdiff --format tsv "$LOGS/t3b" | cells runs trial loss time_s)" = $'1 3.27506 678.2\n2 3.27606 678.2' ]
}

@test "every layout is read to the numbers it was made from" {
    for layout in today bare source-2024 rules-2024 rules4-2024 ours; do
        made $layout loss=3.2755 time_ms=7200 > "$BATS_TEST_TMPDIR/$layout.log"
        run --separate-stderr logdiff -q --format tsv "$BATS_TEST_TMPDIR/$layout.log"
        [ "$(cells runs ended loss time_s <<< "$output")" = "1 3.2755 7.2" ]
    done
    for layout in llmc llmc-norm; do
        made $layout loss=3.2755 > "$BATS_TEST_TMPDIR/$layout.log"
        run --separate-stderr logdiff --format tsv "$BATS_TEST_TMPDIR/$layout.log"
        [ "$(cells runs ended loss time_s <<< "$output")" = "1 3.2755 " ]
        [[ "$stderr" == *"$layout.log:"*": the log does not tell the number of steps"* ]]
    done
}

@test "a mixture of sources, steps, GPUs or the same seed twice is no record; the same log twice counts once" {
    mkdir -p "$LOGS/mixed"
    cp "$LOGS"/new/*.txt "$LOGS/mixed"
    made today loss=3.2770 time_ms=104300 seed=20 steps=110 source=3 > "$LOGS/mixed/other.txt"
    run --separate-stderr logdiff "$LOGS/base" new="$LOGS/mixed"
    [ "$status" -eq 1 ]
    [[ "$output" == *"new: unequal source: 'new' mixes 2"* ]]
    run --separate-stderr logdiff --mixed "$LOGS/base" new="$LOGS/mixed"
    [ "$status" -eq 0 ]
    made today loss=3.2770 time_ms=104300 seed=20 steps=108 source=2 > "$LOGS/mixed/other.txt"
    run --separate-stderr logdiff "$LOGS/base" new="$LOGS/mixed"
    [[ "$status" -eq 1 && "$output" == *"unequal steps: 'new' mixes runs of 108 and 110"* ]]
    made today loss=3.2770 time_ms=104300 seed=20 steps=110 source=2 "gpu=NVIDIA H200" > "$LOGS/mixed/other.txt"
    run --separate-stderr logdiff "$LOGS/base" new="$LOGS/mixed"
    [[ "$status" -eq 1 && "$output" == *"unequal gpu: 'new' mixes 2"* ]]
    cp "$LOGS/mixed/run1.txt" "$LOGS/mixed/other.txt"
    run --separate-stderr logdiff "$LOGS/base" new="$LOGS/mixed"
    # counted once, it leaves the verdict as it was
    [[ "$status" -eq 0 && "$stderr" == *"/run1.txt:"*": the same run as in "*"/other.txt: it counts once" ]]
    run --separate-stderr logdiff --format tsv "$LOGS/base" new="$LOGS/mixed"
    before=$output
    run --separate-stderr logdiff --format tsv "$LOGS/base" new="$LOGS/new"
    [ "$(grep -P '^groups\tnew' <<<"$before")" = "$(grep -P '^groups\tnew' <<<"$output")" ]
    # the same losses with another clock: one seed, not two samples
    made today loss=3.2803 time_ms=104440 seed=2 steps=110 source=2 > "$LOGS/mixed/other.txt"
    run --separate-stderr logdiff "$LOGS/base" new="$LOGS/mixed"
    [[ "$status" -eq 1 && "$output" == *"the same losses twice: "* ]]
    run --separate-stderr logdiff --systems-only "$LOGS/base" new="$LOGS/mixed"
    [ "$status" -eq 0 ]
    # a whole group on another GPU
    group h200 "3.2781 3.2803 3.2767 3.2799 3.2794 3.2767" "104649 104442 104243 104454 104486 104322" \
        steps=110 "gpu=NVIDIA H200"
    run --separate-stderr logdiff "$LOGS/base" new="$LOGS/h200"
    [[ "$status" -eq 1 && "$output" == *"unequal gpu: 2 x NVIDIA H100 80GB HBM3 and 2 x NVIDIA H200"* ]]
}

@test "a run without its end is not judged: it makes no mixture" {
    mkdir -p "$LOGS/stopped"
    cp "$LOGS"/new/*.txt "$LOGS/stopped"
    made today loss=3.2770 time_ms=104300 seed=20 steps=110 source=3 "gpu=NVIDIA H200" |
        sed '/^step:110\/110 val_loss/,$d' > "$LOGS/stopped/other.txt"
    grep -q '^step:110/110' "$LOGS/stopped/other.txt"
    run --separate-stderr logdiff --why "$LOGS/base" new="$LOGS/stopped"
    [ "$status" -eq 0 ]
    [[ "$output" == *"new: record: "*"1 more did not reach their end"*"source: 'new' mixes 2: "* ]]
}

@test "clocks that begin at different steps are not compared" {
    for i in 1 2 3 4; do
        mkdir -p "$LOGS/old"
        made rules-2024 loss=3.277$i time_ms=10400$i seed=$i source=2 > "$LOGS/old/$i.log"
    done
    run --separate-stderr logdiff "$LOGS/base" "$LOGS/old"
    [ "$status" -eq 1 ]
    [[ "$output" == *"unequal clocks: one begins with step 1, the other with step 11"* ]]
}

@test "what cannot be read is named with file and line, and not used" {
    mkdir -p "$LOGS/bad"
    cp "$LOGS"/new/run[0-6].txt "$LOGS/bad"
    sed 's/val_loss:3.2780/val_loss:3.2O80/' "$LOGS/new/run7.txt" > "$LOGS/bad/run7.txt"
    line=$(grep -n 'val_loss:3.2O80' "$LOGS/bad/run7.txt" | cut -d: -f1)
    run --separate-stderr logdiff "$LOGS/base" "$LOGS/bad"
    [[ "$stderr" == *"bad/run7.txt:$line: not read: a loss that is no number"* ]]
    [[ "$stderr" == *"bad/run7.txt:$((line - 1)): the run ends at step 110 of 110: no last validation"* ]]
    [[ "$output" == *"(n = 7; 1 more did not reach their end)"* ]]
    [ "$(logdiff -q --format tsv "$LOGS/bad" | cells groups runs)" = 7 ]
    run --separate-stderr logdiff -q "$LOGS/base" "$LOGS/bad"
    [ -z "$stderr" ]
    run --separate-stderr logdiff --format json "$LOGS/bad"
    [[ "$output" == *'"text": "not read: a loss that is no number"'* ]]
}

@test "a loss of nan is counted and named, and nothing is shown with it" {
    mkdir -p "$LOGS/nan"
    cp "$LOGS"/new/run[0-6].txt "$LOGS/nan"
    sed 's/val_loss:3.2780/val_loss:nan/' "$LOGS/new/run7.txt" > "$LOGS/nan/run7.txt"
    run --separate-stderr logdiff "$LOGS/base" new="$LOGS/nan"
    [ "$status" -eq 1 ]
    [[ "$output" == *"new: loss not demonstrated: 1 of 8 losses are not finite"* ]]
    [[ "$stderr" == *"nan/run7.txt:"*": the validation loss of step 110 is not finite"* ]]
}

@test "compressed logs, standard input, several paths of one name, any number of threads" {
    mkdir -p "$LOGS/zst"
    zstd -q -f --output-dir-flat "$LOGS/zst" "$LOGS"/new/run[0-3].txt
    logdiff --format tsv base="$LOGS/base" new="$LOGS/new" > "$BATS_TEST_TMPDIR/whole"
    logdiff --format tsv base="$LOGS/base" new="$LOGS/zst" "new=$LOGS/new/run4.txt" \
        "new=$LOGS/new/run5.txt" "new=$LOGS/new/run6.txt" new=- < "$LOGS/new/run7.txt" \
        > "$BATS_TEST_TMPDIR/parts"
    diff <(grep '^groups' "$BATS_TEST_TMPDIR/whole") <(grep '^groups' "$BATS_TEST_TMPDIR/parts")
    for n in 1 2 7; do
        logdiff -csw --threads $n --format json "$LOGS/base" "$LOGS/new" > "$BATS_TEST_TMPDIR/$n.json"
    done
    cmp "$BATS_TEST_TMPDIR/1.json" "$BATS_TEST_TMPDIR/2.json"
    cmp "$BATS_TEST_TMPDIR/1.json" "$BATS_TEST_TMPDIR/7.json"
}

@test "a folder is read by its names, a name that is a file is no NAME=" {
    mkdir -p "$BATS_TEST_TMPDIR/d"
    cp "$LOGS"/new/run[0-2].txt "$BATS_TEST_TMPDIR/d"
    echo "notes" > "$BATS_TEST_TMPDIR/d/README.md"
    echo "no log" > "$BATS_TEST_TMPDIR/d/notes.txt"
    run --separate-stderr logdiff "$BATS_TEST_TMPDIR/d"
    [[ "$stderr" == *"d/notes.txt: no step lines, of which gpt-runlog(5) has the forms" ]]
    [[ "$stderr" != *README* ]]
    [[ "$output" == *"(n = 3)"* ]]
    cp "$LOGS/new/run0.txt" "$BATS_TEST_TMPDIR/lr=0.3.txt"
    cd "$BATS_TEST_TMPDIR"
    [ "$(logdiff --format tsv lr=0.3.txt | cells groups group runs)" = "lr=0.3.txt 1" ]
}

@test "curves: common steps, differences, where the groups part" {
    run --separate-stderr logdiff --curves --format tsv "$LOGS/base" "$LOGS/new"
    [ "$(cells curves step <<< "$output" | tr '\n' ' ')" = "0 20 40 60 80 100 " ]
    # at step 100 of 120 the loss still has 7.5/6^3 to go, at 100 of 110 it has 7.5/11^3: apart by 0.029
    awk -F'\t' '$1 == "curves" && $3 == 100 { ok = $8 < -0.02 && $8 > -0.04 && $9 > 0 && $10 < 1e-6 } END { exit !ok }' <<< "$output"
    [[ "$output" == *"part by more than noise at step "* ]]
    run --separate-stderr logdiff --curves "$LOGS/base" again="$LOGS/base"
    [[ "$output" == *"'base' and 'again' do not part by more than noise at any of 7 common steps"* ]]
    # of one run, and of none of the same steps, nothing is claimed
    run --separate-stderr logdiff --curves "$LOGS/base" one="$LOGS/new/run0.txt"
    [[ "$output" == *"whether 'base' and 'one' part is not known: one run has no deviation"* ]]
    grep -v val_loss "$LOGS/new/run0.txt" > "$BATS_TEST_TMPDIR/train.log"
    run --separate-stderr logdiff --curves "$LOGS/base" none="$BATS_TEST_TMPDIR/train.log"
    [[ "$output" == *"whether 'base' and 'none' part is not known: they have no validated step in common"* ]]
    [[ "$output" != *"more than noise"* ]]
}

@test "step times: a stall is found, listed with its run, and even steps are told from odd" {
    mkdir -p "$LOGS/stall"
    awk 'BEGIN { for (k = 1; k <= 200; k++) { ms = k <= 100 ? (k % 2 ? 30 : 34) : 60
                 t += k == 150 ? 400 : ms; printf "step:%d/200 train_time:%dms step_avg:%.2fms\n", k, t, t / k }
                 printf "step:200/200 val_loss:3.2700 train_time:%dms step_avg:%.2fms\n", t, t / k }' > "$LOGS/stall/x.log"
    run --separate-stderr logdiff --steps --format tsv "$LOGS/stall"
    [ "$(cells stages first last median_ms even_ms odd_ms alternates <<< "$output")" = $'1 100 32 34 30 1\n101 200 60 60 60 0' ]
    [ "$(cells stalls step ms <<< "$output")" = "150 400" ]
    [[ "$(cells stalls path <<< "$output")" == *stall/x.log ]]
}

@test "why: the changed line of source and recipe, the driver, and nothing of date and seed" {
    run --separate-stderr logdiff --why "$LOGS/base" "$LOGS/new"
    [[ "$output" == *"environment: the same in all runs"* ]]
    [[ "$output" == *"source: differs between 'base' and 'new'"* ]]
    [[ "$output" == *$'\n-    return 1 * step\n+    return 2 * step\n'* ]]
    [ "$(grep -c '^[-+]' <<< "$output")" -eq 2 ]
    mkdir -p "$LOGS/driver" "$LOGS/oursa" "$LOGS/oursb"
    made today seed=1 driver=550.54.14 source=2 > "$LOGS/driver/a.txt"
    run --separate-stderr logdiff --why "$LOGS/new" "$LOGS/driver"
    [[ "$output" == *$'-driver: 535.129.03\n+driver: 550.54.14'* ]]
    for i in 1 2; do
        made ours seed=$i > "$LOGS/oursa/$i.log"
        made ours seed=$i source=5 > "$LOGS/oursb/$i.log"
    done
    run --separate-stderr logdiff --why "$LOGS/oursa" "$LOGS/oursb"
    [[ "$output" == *"recipe: differs between"*$'-vocab = 385\n+vocab = 389'* ]]
    [ "$(grep -c '^[-+]' <<< "$output")" -eq 2 ]
}

@test "json and the plot are well-formed, as Python reads them" {
    needs python3
    logdiff -csw --format json --plot "$BATS_TEST_TMPDIR/x.svg" "$LOGS/base" 'a|b"<c='"$LOGS/new" > "$BATS_TEST_TMPDIR/x.json"
    python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); assert d["groups"][1]["group"] == "a|b\"<c" and d["verdicts"][0]["shown"] is True and abs(d["groups"][1]["p"] - 0.00595972) < 1e-8' "$BATS_TEST_TMPDIR/x.json"
    python3 -c 'import sys, xml.etree.ElementTree as t; r = t.parse(sys.argv[1]).getroot(); n = len(r.findall(".//{http://www.w3.org/2000/svg}circle")); assert n == 16, n' "$BATS_TEST_TMPDIR/x.svg"
}

@test "md has a table row a group, tsv has as many cells as headings" {
    run --separate-stderr logdiff --format md "$LOGS/base" 'a|b='"$LOGS/new"
    [ "$(grep -c '^| .*104\.4579' <<< "$output")" -eq 1 ]
    [[ "$output" == *'| a\|b '* ]]
    [[ "$output" == *'**a|b: record: '* ]]
    logdiff -cs --format tsv "$LOGS/base" "$LOGS/new" |
        awk -F'\t' '/^#/ { n[substr($1, 2)] = NF; next } $1 in n && NF != n[$1] { print; bad = 1 } END { exit bad }'
}

@test "the plot shows a dot a run, and is not overwritten" {
    run --separate-stderr logdiff --plot "$BATS_TEST_TMPDIR/x.svg" "$LOGS/base" 'a<b&c='"$LOGS/new"
    [ "$status" -eq 0 ]
    [ "$(grep -c '<circle' "$BATS_TEST_TMPDIR/x.svg")" -eq 16 ]
    grep -qF 'a&lt;b&amp;c (8 runs)' "$BATS_TEST_TMPDIR/x.svg"
    run --separate-stderr logdiff --plot "$BATS_TEST_TMPDIR/x.svg" "$LOGS/base" "$LOGS/new"
    [ "$status" -eq 4 ]
    [[ "$stderr" == *"x.svg"*"exists"* ]]
    [ -z "$output" ]
}

@test "follow: each validation at once, and that it is too late as soon as it is" {
    # slow: its clock passes the baseline's end at two thirds
    made bare loss=3.2700 time_ms=160000 steps=120 > "$BATS_TEST_TMPDIR/slow.log"
    run --separate-stderr logdiff --follow base="$LOGS/base" new=- < "$BATS_TEST_TMPDIR/slow.log"
    [ "$status" -eq 1 ]
    [[ "${lines[1]}" =~ ^step\ 20/120:\ loss\ [0-9.]+\ \([-+][0-9.]+\ against\ the\ baseline\),\ 26\.667\ s\ \(\+9\.07[0-9]\ s\)$ ]]
    # 105.536 s at 160/120 s a step: step 80 is at 106.667 s
    [[ "$output" == *$'\nstep 80/120: 106.667 s; can no longer become a record: its clock is at 106.667 s and may end at 105.536 s at most'* ]]
    [ "$(grep -c 'can no longer' <<< "$output")" -eq 1 ]
    [[ "$output" == *"step 60/120"*"is unlikely to become a record: from here 5% faster"* ]]
    # a good one is told nothing of the kind
    run --separate-stderr logdiff --follow base="$LOGS/base" new="$LOGS/new" new=- < <(made today loss=3.2775 time_ms=104300 steps=110 seed=30 source=2)
    [ "$status" -eq 0 ]
    [[ "$output" != *"record:"*"record:"* && "$output" != *"can no longer"* && "$output" != *"unlikely"* ]]
    [[ "$output" == *"new: record: "* ]]
    run --separate-stderr logdiff --follow base="$LOGS/base" new=- < <(made bare loss=nan steps=120)
    [[ "$output" == *"can no longer become a record: the loss is not finite"* ]]
}

@test "follow: a line appears while the run still goes" {
    mkfifo "$BATS_TEST_TMPDIR/pipe"
    logdiff --follow base="$LOGS/base" new=- < "$BATS_TEST_TMPDIR/pipe" > "$BATS_TEST_TMPDIR/out" &
    exec 9> "$BATS_TEST_TMPDIR/pipe"
    made bare steps=120 | sed '/step:21/,$d' >&9
    for _ in $(seq 100); do
        grep -q '^step 20/120' "$BATS_TEST_TMPDIR/out" && break
        sleep 0.1
    done
    grep -q '^step 20/120' "$BATS_TEST_TMPDIR/out"
    exec 9>&-
    wait $! || true
    grep -q 'no run reached its end' "$BATS_TEST_TMPDIR/out"
}

@test "what is wrong has one message and its exit status" {
    for args in "" "--follow - $LOGS/base" "--rules x $LOGS/base" "--alpha 2 $LOGS/base" "$LOGS/base - -" "=x" \
                "--context 2 $LOGS/base" "--lines 9 $LOGS/base" "--systems-only --rules loss $LOGS/base"; do
        run --separate-stderr logdiff $args < /dev/null
        echo "$args: $status $stderr"
        [ "$status" -eq 2 ]
        [ -z "$output" ]
    done
    run --separate-stderr logdiff "$LOGS/nosuch"
    [ "$status" -eq 4 ]
    [ "$stderr" = "gpt-logdiff: cannot open '$LOGS/nosuch': No such file or directory" ]
    echo hello > "$BATS_TEST_TMPDIR/hello.txt"
    run --separate-stderr logdiff "$BATS_TEST_TMPDIR/hello.txt"
    [ "$status" -eq 3 ]
    [[ "$stderr" == *"hello.txt: no step lines, of which gpt-runlog(5) has the forms" ]]
    mkdir -p "$BATS_TEST_TMPDIR/empty"
    run --separate-stderr logdiff "$BATS_TEST_TMPDIR/empty"
    [ "$status" -eq 3 ]
    [[ "$stderr" == *"empty: no runs in this folder"* ]]
    zstd -q "$LOGS/new/run0.txt" -o "$BATS_TEST_TMPDIR/cut.zst"
    truncate -s 400 "$BATS_TEST_TMPDIR/cut.zst"
    run --separate-stderr logdiff "$BATS_TEST_TMPDIR/cut.zst"
    [ "$status" -eq 3 ]
    [[ "$stderr" == *"cut.zst: offset 400: "* ]]
    [ -z "$output" ]
    run --separate-stderr bash -c "'$GPT_BIN/gpt-logdiff' '$LOGS/base' > /dev/full"
    [ "$status" -eq 4 ]
    run --separate-stderr logdiff --plot - "$LOGS/base"
    [ "$status" -eq 2 ]
    [[ -z "$output" && "$stderr" == *"--plot: standard output takes the report"* ]]
}
