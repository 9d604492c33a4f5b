#!/bin/sh
# A multiple-choice evaluation in a pipe: of each question's answers the one is taken whose
# log-likelihood a byte is the highest, and compared with the right one.
#   examples/multiple-choice.sh [RUN FILE.tsv...]     FILE: question, number of the right answer, answers
#   without them: run examples/small-world.sh first; its questions are of facts that the text has in the
#   question's words (seen), and of facts that it has in other words alone (unseen)
set -eu
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}/world
[ $# -gt 0 ] || set -- "$dir/run" "$dir/seen.tsv" "$dir/unseen.tsv"
run=$1
shift
[ -d "$run" ] || { echo "no $run: run examples/small-world.sh first" >&2; exit 1; }

for questions; do
    # a line for each answer: question, tab, answer; the score's lines come in the same order
    awk -F '\t' 'NR > 1 { for (i = 3; i <= NF; i++) print $1 "\t" $i }' "$questions" |
        "$bin/gpt-sample" -m "$run" --score |
        awk -F '\t' -v name="${questions##*/}" '
            NR == FNR { if (FNR > 1) nats[n++] = $4 / $3; next }
            FNR > 1 {
                best = 3
                for (i = 3; i <= NF; i++) {
                    score[i] = nats[at++]
                    if (score[i] > score[best]) best = i
                }
                right += best - 2 == $2
                asked++
                chance += 1 / (NF - 2)
                print (best - 2 == $2 ? "right" : "wrong") "\t" $1 $best
            }
            END { printf "%s: %d of %d right; by chance %.1f\n", name, right, asked, chance }' - "$questions"
done
