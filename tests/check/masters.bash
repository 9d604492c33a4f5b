# Of a run with f32 masters and one with rounded low halves, in ./f32 and ./nearest: equal masters, moments and weights at STEP.
same_masters() { # STEP
    for name in lm_head embed ve1 attn_gate_bank; do       # cat's weight of the one is the other's master
        cmp <("$GPT_BIN/gpt-ckpt" cat "f32/$1" $name.master) \
            <("$GPT_BIN/gpt-ckpt" cat "nearest/$1" $name.weight)
        cmp <("$GPT_BIN/gpt-ckpt" cat "f32/$1" $name.exp_avg) \
            <("$GPT_BIN/gpt-ckpt" cat "nearest/$1" $name.exp_avg)
        cmp <("$GPT_BIN/gpt-ckpt" cat --raw "f32/$1" $name.weight) \
            <("$GPT_BIN/gpt-ckpt" cat --raw "nearest/$1" $name.weight)
        [ "$("$GPT_BIN/gpt-ckpt" cat --raw "nearest/$1" $name.remainder | tr -d '\0' | wc -c)" -gt 0 ]
    done
}
