# What a test needs that may be absent: `needs WORD` skips it where that is so. share/run-tests counts
# the words, and NEED=WORD makes these skips failures (CONTRIBUTING.md, Tests).
#
#   load ../check/needs
#   @test "..." {
#       needs gpus-2
#
# A C test says the same by `return check_skip("gpu")`.

# A Python that has NumPy, or nothing.
numpy() {
    for p in python3 /usr/bin/python3; do
        "$p" -c 'import numpy' 2>/dev/null && echo "$p" && return
    done
    true                                # who calls it goes on as far as it can
}

# How many GPUs programs see: CUDA_VISIBLE_DEVICES may leave some out.
gpus() {
    if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
        tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .
    else
        nvidia-smi -L 2>/dev/null | grep -c '^GPU'
    fi
}

has() {
    case $1 in
    numpy) [ -n "$(numpy)" ] ;;
    gpu) [ "$(gpus)" -ge 1 ] ;;
    gpus-*) [ "$(gpus)" -ge "${1#gpus-}" ] ;;
    vocab) [ -f "$GPT_BIN/../vocab/gpt2.tiktoken" ] ;;
    cuda) [ -e "$GPT_BIN/../libgptcuda.a" ] ;;
    own-memory) ! grep -q __asan_init "$GPT_BIN/gpt-train" ;; # a program without sanitizers
    *) command -v "$1" >/dev/null ;;
    esac
}

needs() { # WORD...
    for word; do has "$word" || skip "needs $word"; done
}
