#!/bin/sh
# A run's losses, rates and times in a tracker, as the run grows: in MLflow, by its REST interface (curl, jq).
#   run examples/train-on-text.sh first; then MLFLOW_TRACKING_URI=http://host:5000 examples/tracker.sh
#   examples/tracker.sh RUN       a log or a run's folder, of one that goes on or has ended
# Without an address it prints the rows. Weights & Biases, where Python has it:
#   gpt-logdiff --follow --format jsonl RUN |
#       python3 -c 'import json, sys, wandb; r = wandb.init(); [r.log(json.loads(l)) for l in sys.stdin]'
set -eu
bin=${GPT_BIN:-build/bin}
run=${1:-${OUT:-build/example}/run}
[ -e "$run" ] || { echo "no $run: run examples/train-on-text.sh first" >&2; exit 1; }
[ "${MLFLOW_TRACKING_URI:-}" ] || exec "$bin/gpt-logdiff" --format csv "$run"

post() { curl -sS --fail-with-body -H 'Content-Type: application/json' -d "$2" "$MLFLOW_TRACKING_URI/api/2.0/mlflow/$1"; }
now() { date +%s000; }

id=$(post runs/create "{\"experiment_id\": \"0\", \"run_name\": $(printf %s "$run" | jq -R .), \"start_time\": $(now)}" | jq -r .run.info.run_id)
"$bin/gpt-logdiff" -q --follow --format jsonl "$run" |
    jq -c --unbuffered --arg id "$id" '.step as $step | { run_id: $id, metrics: [del(.group, .run, .trial, .step) |
        to_entries[] | { key, value, step: $step, timestamp: (now * 1000 | floor) }] }' |
    while IFS= read -r metrics; do post runs/log-batch "$metrics" >/dev/null; done
post runs/update "{\"run_id\": \"$id\", \"status\": \"FINISHED\", \"end_time\": $(now)}" >/dev/null
echo "$MLFLOW_TRACKING_URI/#/experiments/0/runs/$id"
