# What `make` makes: code for the GPUs that it was asked for, and where it refuses to.

bats_require_minimum_version 1.5.0
load check/needs

setup() { cd "$BATS_TEST_TMPDIR"; }

# One count: each source's kernels are there for every one of them.
@test "gpt-train holds code for each GPU that it was built for" {
    flags=$GPT_BIN/../nvcc-flags
    needs cuda
    run --separate-stderr "$BATS_TEST_DIRNAME/fatbin" "$GPT_BIN/gpt-train"
    [ "$status" -eq 0 ]
    [ -n "$output" ]
    [ "$(cut -d' ' -f1 <<< "$output")" = "$(grep -o 'code=[a-z]*_[0-9]*' "$flags" | sed 's/code=compute/ptx/; s/code=//' | sort -u)" ]
    [ "$(cut -d' ' -f2 <<< "$output" | sort -u | wc -l)" -eq 1 ]
}

# Its relocations would take ten times as long as the rest of a start.
@test "gpt-train starts without cuBLASLt, and --version says that it is not there" {
    needs cuda
    touch libcublasLt.so.13 libcublasLt.so.12
    run --separate-stderr env LD_LIBRARY_PATH="$PWD" "$GPT_BIN/gpt-train" --version
    [ "$status" -eq 0 ]
    [[ $output = *$'\ncuBLASLt: none\n'* ]]
    [[ $("$GPT_BIN/gpt-train" --version) =~ cuBLASLt:\ [1-9][0-9]*[.][0-9] ]]
}

# A store in single words halves an Adam's speed on a GPU, and its bits are the same.
@test "Adam's kernels for one parameter store eight elements with wide stores" {
    flags=$GPT_BIN/../nvcc-flags
    needs cuda
    cd "$BATS_TEST_DIRNAME/.."
    run --separate-stderr "$(cut -d' ' -f1 "$flags")" -std=c++17 --expt-relaxed-constexpr -O3 -D_GNU_SOURCE \
        -Ilib -Ikernels -arch=compute_80 -ptx -o "$BATS_TEST_TMPDIR/adam.ptx" kernels/adam.cu
    [ "$status" -eq 0 ]
    run awk '/^\.(visible \.)?entry/ { kernel = /adam_(any_flat|record)/ ? $NF : ""; kernels += kernel != "" }
        kernel != "" && /st\.global\.v[24]/ { wide++ }
        kernel != "" && /st\.global\.[^v]/ { print kernel; exit }
        END { print (kernels == 3 && wide > kernels) }' "$BATS_TEST_TMPDIR/adam.ptx"
    [ "$output" = 1 ]
}

@test "make's GPUs are this machine's, without one 9.0a and PTX of 8.0, or those of ARCH_GPU" {
    codes() {
        env -u MAKEFLAGS -u MAKELEVEL -u ARCH_GPU -u NVCCFLAGS PATH="$PWD/bin:$PATH" \
            make -n -C "$BATS_TEST_DIRNAME/.." BUILD="$PWD/b" CUDA=1 NVCC="$PWD/nvcc" "$@" \
            "$PWD/b/obj/kernels/trace_mark.cu.o" | grep -o 'code=[a-z]*_[0-9a-z]*' | sort -u | tr -d '\n'
    }
    mkdir bin && touch nvcc
    printf '#!/bin/sh\nexit 9\n' > bin/nvidia-smi && chmod +x bin/nvidia-smi
    [ "$(codes)" = code=compute_80code=sm_90a ]
    printf '#!/bin/sh\nprintf "8.9\\n9.0\\n8.9\\n"\n' > bin/nvidia-smi
    [ "$(codes)" = code=sm_89code=sm_90a ]
    [ "$(codes ARCH_GPU=86)" = code=sm_86 ]
    [ "$(codes ARCH_GPU=all)" = "$(printf 'code=%s' compute_80 sm_100 sm_120 sm_80 sm_86 sm_89 sm_90a)" ]
}

@test "a compiler for processors of the other byte order is refused with the reason" {
    run cc -fsyntax-only -D_GNU_SOURCE -I"$BATS_TEST_DIRNAME/../lib" -U__BYTE_ORDER__ -D__BYTE_ORDER__=4321 \
        "$BATS_TEST_DIRNAME/../lib/base/version.c"
    [ "$status" -ne 0 ]
    [[ $output = *'a little-endian processor is needed'* ]]
}
