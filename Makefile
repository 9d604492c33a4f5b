# Builds libgpt.a from lib/, one program from each cmd/*.c, and the tests.
# There is no configure step: `make` builds, `make help` lists the rest.
#
#   BUILD=DIR   where everything is built (build)
#   V=1         show the commands
#   asan=1      address and undefined-behaviour sanitizers, into $(BUILD)-asan
#   tsan=1      the thread sanitizer, into $(BUILD)-tsan
#   STATIC=1    zstd, zlib and BLAS from archives, to carry programs elsewhere
#   ARCH=       portable code; or ARCH=-march=x86-64-v3 and so on (this machine)
#   CUDA=0      leave kernels/ out even where nvcc is found; NVCC=, CUDA_HOME= say where it is
#   ARCH_GPU=   compute capabilities to build for: 80, 86, 90a, ...; 80ptx: what GPUs newer than that
#               compile when a program starts; all (a bundle's): each that is known. Without it the
#               GPUs of this machine, else 90a and 80ptx
#   DRAFT=1     kernels that take half as long to compile and run slowly: for checks where there is no GPU
#   PREFIX=, DESTDIR=   for install (/usr/local, none)

BUILD  ?= build
PREFIX ?= /usr/local
OBJCOPY ?= objcopy
# What CC compiles for: x86_64, aarch64. ARCH is portable code where that is not this machine's.
CPU    := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
# A bundle runs on other machines.
ifneq (,$(filter bundle,$(MAKECMDGOALS)))
STATIC ?= 1
ARCH   ?= $(if $(filter x86_64,$(CPU)),-march=x86-64-v3)
ARCH_GPU ?= all
endif
# Without AVX-512, which valgrind does not know: loops that gain from it choose it when they run
# (ops/simd.h).
ARCH   ?= $(if $(filter $(shell uname -m),$(CPU)),-march=native $(if $(filter x86_64,$(CPU)),-mno-avx512f))
all:
comma := ,

# One job a processor, unless -j was given. `make` from `make` inherits its parent's.
ifeq (,$(findstring -j,$(MAKEFLAGS))$(MAKELEVEL:0=))
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
MAKEFLAGS += --no-builtin-rules --no-print-directory
.SUFFIXES:
.SECONDARY:
.DELETE_ON_ERROR:

# --- sources -------------------------------------------------------------------------------------
# A test is tests/FOLDER/NAME_test.c. Other tests/*/*.c are programs when they have a main() (golden,
# bench_*), else code that all of them share, those of tests/ops ops_test and ops_fd_test alone. Each
# becomes $(BUILD)/tests/NAME: names differ whatever the folder. Programs called gpu_*, and all .cu,
# need a GPU to run; some of them `make check-all` builds once more, into $(BUILD)/emu, for an emulated one.

LIB_SRC    = $(wildcard lib/*/*.c)
CMD_SRC    = $(wildcard cmd/*.c)
KERNEL_SRC = $(wildcard kernels/*.cu kernels/*/*.cu)
TEST_C    := $(wildcard tests/*/*.c)
TEST_SRC  := $(if $(TEST_C),$(shell grep -lw '^int main' $(TEST_C)))
TEST_LIB   = $(filter-out $(TEST_SRC),$(TEST_C))
TEST_CU    = $(wildcard tests/*/*.cu)
TEST_INC   = -Itests/check -Itests/inputs -Itests/ops -Itests/golden -Itests/gpu

# --- tools and flags -----------------------------------------------------------------------------
# No fused multiply-add and no reordering: a result is the same on every processor. What errno and
# the floating-point exception flags would say is not needed, and costs vectorisation.

OPT       ?= -O3 -g
CFLAGS    ?= $(OPT) $(ARCH)
FP         = -ffp-contract=off -fno-math-errno -fno-trapping-math
CPPFLAGS  += -D_GNU_SOURCE -Ilib
WARN       = -Wall -Wextra
NVCCFLAGS ?= $(if $(DRAFT),-O0,-O3)

# -g1: the lines of a report, without variables.
ifdef asan
override BUILD := $(BUILD)-asan
OPT       = -O1 -g1 -fno-omit-frame-pointer
SANITIZE  = -fsanitize=address,undefined -fno-sanitize-recover=undefined
CUDA     ?= 0
endif
ifdef tsan
override BUILD := $(BUILD)-tsan
OPT       = -O1 -g1
SANITIZE  = -fsanitize=thread
CUDA     ?= 0
endif
CC_ALL    = $(CC) -std=c11 $(CFLAGS) $(FP) $(WARN) $(CPPFLAGS) $(SANITIZE)

ifneq ($(CUDA),0)
NVCC      ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
endif
ifneq (,$(NVCC))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
# Hopper's own instructions are in 90a, not in 90.
GPUS_HERE := $(patsubst 90,90a,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader \
               2>/dev/null | tr -d . | sort -u))
ARCH_GPU  ?= $(GPUS_HERE)
GPU_CODE   = $(or $(patsubst all,80 86 89 90a 100 120 80ptx,$(ARCH_GPU)),90a 80ptx)
gencode    = -gencode=arch=compute_$(1:ptx=),code=$(if $(filter %ptx,$(1)),compute,sm)_$(1:ptx=)
NVCC_ALL   = $(NVCC) $(foreach a,$(GPU_CODE),$(call gencode,$(a))) -std=c++17 --expt-relaxed-constexpr \
             $(NVCCFLAGS) -D_GNU_SOURCE -Ilib -Ikernels
# Products of which ptxas says, where it optimises, that they wait for one another (below): no draft of them.
WGMMA      = kernels/polar.cu kernels/sm90/attention_% kernels/sm90/%gemm.cu
draft      = $(if $(DRAFT),$(if $(filter $(WGMMA),$(1)),,--Ofast-compile=max))
CUDA_LIBS  = -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 \
             -lcudart_static -lnccl -lstdc++ -ldl -lrt
endif
# Only these learn of the GPU, and only where there are kernels to link.
GPU_SRC   := $(wildcard tests/*/gpu_*.c)
CUDA_USERS = cmd/gpt-train cmd/gpt-sample tests/golden/golden tests/golden/zoo $(GPU_SRC:.c=)
HAVE_CUDA  = $(and $(NVCC),$(KERNEL_SRC))

# The kernels on an emulated GPU (tests/emu), which needs CUDA's headers and the host's C++ compiler.
EMU_TRAIN_SRC = $(filter kernels/host/backend_% kernels/host/comm_% kernels/host/profile.cu,$(KERNEL_SRC))
EMU_SRC   = $(filter-out $(EMU_TRAIN_SRC) kernels/host/cublaslt.cu,$(KERNEL_SRC))
EMU_TESTS = $(patsubst %,$(BUILD)/emu/gpu_%_test,ops stream optim bases products polar attention model decode)
EMU_TRAIN = $(BUILD)/emu/gpt-train
# Where an op has another kernel for GPUs before Hopper, what tests it runs once more with that.
PORTABLE_OPS := model $(patsubst kernels/%.cu,%,$(shell grep -lE '\b(portable|[a-z0-9]+_portable)\b' $(wildcard kernels/*.cu)))
EMU_PORTABLE = $(patsubst %,$(BUILD)/emu/portable_%_test,ops optim products polar attention model decode)
EMU_CXX   = $(CXX) -std=c++17 -O1 $(ARCH) $(FP) -w -Wno-psabi -D_GNU_SOURCE -Itests/emu \
            -isystem $(CUDA_HOME)/include -I$(BUILD)/emu/src/kernels -Ilib $(TEST_INC)
HAVE_EMU  = $(and $(HAVE_CUDA),$(filter x86_64,$(CPU)))

LIBS = -lzstd -lz -llapacke -lopenblas
ifdef STATIC
# Each library from its archive where there is one. BLAS brings Fortran's runtime with it.
have_archive = $(filter /%,$(shell $(CC) -print-file-name=lib$(1:-l%=%).a))
archive = $(if $(have_archive),-Wl$(comma)-Bstatic $(1) -Wl$(comma)-Bdynamic,$(1))
LIBS := $(foreach l,$(LIBS) -ltmglib -lopenblas -lgfortran -lquadmath,$(call archive,$(l)))
endif
LINK   = $(CC) $(CFLAGS) $(SANITIZE) $(LDFLAGS) -Wl,--as-needed -Wl,--build-id=sha1
LDLIBS = $(LIBS) -lm -lpthread

say = $(if $(V),,@printf '  %-7s %s\n' $(1) $(2);)

# --- what is built -------------------------------------------------------------------------------

obj       = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
obj_of    = $(BUILD)/$(if $(call cuda_of,$(1)),obj-cuda,obj)/$(1).o
programs  = $(addprefix $(BUILD)/tests/,$(basename $(notdir $(1))))
# The source, without its suffix, of a test program.
source_of = $(basename $(filter %/$(1).c %/$(1).cu,$(TEST_SRC) $(TEST_CU)))

CMDS     := $(patsubst cmd/%.c,$(BUILD)/bin/%,$(CMD_SRC))
FD_TESTS := $(call programs,$(filter %_fd_test.c,$(TEST_SRC)))
C_PROGS  := $(filter-out $(FD_TESTS),$(call programs,$(filter-out $(GPU_SRC),$(TEST_SRC))))
CU_PROGS  = $(call programs,$(TEST_CU))
GPU_PROGS = $(if $(HAVE_CUDA),$(call programs,$(GPU_SRC)) $(CU_PROGS))
CUDA_LIB  = $(if $(HAVE_CUDA),$(BUILD)/libgptcuda.a)
cuda_of   = $(if $(filter $(CUDA_USERS),$(1)),$(CUDA_LIB))

all: $(CMDS) tests
	@$(if $(NVCC),,echo "$(if $(filter 0,$(CUDA)),CUDA=0,no nvcc): building for the CPU only")
lib: $(BUILD)/libgpt.a
tests: $(C_PROGS) $(FD_TESTS) $(GPU_PROGS) $(BUILD)/public/libgpt.a
kernels: $(BUILD)/libgptcuda.a

# Files that hold the flags and change only with them, so that new flags rebuild what they touch.
keep = @mkdir -p $(@D); echo '$(1)' | cmp -s - $@ || echo '$(1)' > $@
$(BUILD)/flags: FORCE
	$(call keep,$(CC_ALL))
$(BUILD)/cuda-flags: FORCE
	$(call keep,$(if $(HAVE_CUDA),$(CUDA_HOME) $(CUDA_LIBS)))
$(BUILD)/nvcc-flags: FORCE
	$(call keep,$(NVCC_ALL) $(call draft))
$(BUILD)/emu-flags: FORCE
	$(call keep,$(EMU_CXX))
$(BUILD)/link-flags: FORCE
	$(call keep,$(LINK) $(LDLIBS))
# What commit programs are of: an object of its own, so that another commit links them anew and
# compiles nothing else.
$(BUILD)/commit.c: FORCE
	$(call keep,const char gpt_commit[] = "$(shell share/which-commit)";)
$(BUILD)/obj/commit.o: $(BUILD)/commit.c $(BUILD)/flags | $(BUILD)/deps-present
	$(call compile)
# Says which packages are missing before the compiler does.
$(BUILD)/deps-present: share/deps.txt
	@mkdir -p $(@D); share/install-deps --check build
	@touch $@

define compile
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC_ALL) $(1) -MMD -MP -c -o $@ $<
endef
# To optimise a test takes longer than it gains; what it tests is optimised.
test_flags = $(if $(filter tests/%,$*),$(TEST_INC) $(if $(filter %_test,$*),-O1))
$(BUILD)/obj/%.o: %.c $(BUILD)/flags | $(BUILD)/deps-present
	$(call compile,$(test_flags))
$(BUILD)/obj-cuda/%.o: %.c $(BUILD)/flags $(BUILD)/cuda-flags | $(BUILD)/deps-present
	$(call compile,$(test_flags) -DHAVE_CUDA -I$(CUDA_HOME)/include)
$(BUILD)/obj/lib/recipe/named.o $(BUILD)/obj64/lib/recipe/named.o: $(wildcard share/recipes/* share/recipes/*/*)
$(BUILD)/obj/lib/runs/page.o: lib/runs/page.html
$(BUILD)/obj/lib/runs/benchmark.o: $(wildcard share/standings/*)
$(BUILD)/obj/%_fd_test.o: %_fd_test.c $(BUILD)/flags | $(BUILD)/deps-present
	$(call compile,$(TEST_INC) -DGPT_OPS_DOUBLE)
# The same files in float, optimised, are what warns of numbers that may not have been set.
$(BUILD)/obj64/%.o: %.c $(BUILD)/flags | $(BUILD)/deps-present
	$(call compile,-O1 -Wno-maybe-uninitialized $(if $(filter tests/%,$*),$(TEST_INC)) -DGPT_OPS_DOUBLE)
# Only with -v does ptxas say that it lets tensor-core products wait for one another (C75xx): no build
# has that. The rest of what it says then stays in a log.
$(BUILD)/obj/%.cu.o: %.cu $(BUILD)/nvcc-flags
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(NVCC_ALL) $(call draft,$<) $(if $(filter tests/%,$*),$(TEST_INC)) -Xptxas -v -MMD -MP -MF $(@:.o=.d) -c -o $@ $< 2>$(@:.o=.log); \
	    rc=$$?; grep -vE '^ptxas info|^    [0-9]+ bytes stack' $(@:.o=.log) >&2; \
	    if grep 'C75[0-9][0-9]' $(@:.o=.log) >&2; then rm -f $@; rc=1; fi; \
	    if [ -n "$(call draft,$<)" ] && grep -q sm90/wgmma.h $(@:.o=.d); then \
	        rm -f $@; echo '$<: not in WGMMA of the Makefile' >&2; rc=1; fi; exit $$rc

define archive_rule
	$(call say,AR,$@)rm -f $@ && $(AR) rcs $@ $(filter %.o,$^)
endef
$(BUILD)/libgpt.a: $(call obj,$(LIB_SRC))
	$(archive_rule)
# The library for other programs: what lib/*/gpt_*.h declares, and everything else local to it.
PUBLIC = $(wildcard lib/*/gpt_*.h)
$(BUILD)/public/libgpt.a: $(call obj,$(PUBLIC:.h=.c)) $(BUILD)/libgpt.a
	@mkdir -p $(@D)
	$(call say,LD,$@)$(LD) -r -o $(@D)/gpt.o $^ && $(OBJCOPY) -w --keep-global-symbol='gpt_*' \
	    --strip-debug $(@D)/gpt.o && rm -f $@ && $(AR) rcs $@ $(@D)/gpt.o
$(BUILD)/libtest.a: $(call obj,$(filter-out tests/ops/%,$(TEST_LIB)))
	$(archive_rule)
# The ops again in double and their cases, to be held against finite differences.
$(BUILD)/libops64.a: $(patsubst %.c,$(BUILD)/obj64/%.o,$(filter lib/ops/%,$(LIB_SRC)) $(filter tests/ops/%,$(TEST_LIB)))
	$(archive_rule)
$(BUILD)/libgptcuda.a: $(patsubst %.cu,$(BUILD)/obj/%.cu.o,$(KERNEL_SRC))
	$(archive_rule)

# The CUDA library stands before libgpt.a, which it calls for messages.
define link
	@mkdir -p $(@D)
	$(call say,LD,$@)$(LINK) -o $@ $(filter %.o,$^) $(1) $(filter %.a,$^) $(LDLIBS) $(2)
endef
.SECONDEXPANSION:
$(CMDS): $(BUILD)/bin/%: $$(call obj_of,cmd/$$*) $(BUILD)/obj/commit.o \
        $$(call cuda_of,cmd/$$*) $(BUILD)/libgpt.a $(BUILD)/link-flags $(BUILD)/cuda-flags
	$(call link,,$(if $(call cuda_of,cmd/$*),$(CUDA_LIBS)))
$(C_PROGS) $(call programs,$(GPU_SRC)): $(BUILD)/tests/%: $$(call obj_of,$$(call source_of,$$*)) \
        $$(call cuda_of,$$(call source_of,$$*)) $(BUILD)/libtest.a $(BUILD)/libgpt.a \
        $(BUILD)/link-flags $(BUILD)/cuda-flags
	$(call link,,$(if $(call cuda_of,$(call source_of,$*)),$(CUDA_LIBS)))
# The cases of ops are linked where they are run, so that a sanitized build of other tests compiles none.
$(BUILD)/tests/ops_test: $(call obj,$(filter tests/ops/%,$(TEST_LIB)))
# Our Unicode table against another.
$(BUILD)/tests/bpe_test: private LDLIBS += -lutf8proc
$(FD_TESTS): $(BUILD)/tests/%: $(BUILD)/obj/$$(call source_of,$$*).o $(BUILD)/libops64.a $(BUILD)/libtest.a \
        $(BUILD)/libgpt.a $(BUILD)/link-flags
	$(call link,-Wl$(comma)--whole-archive $(BUILD)/libops64.a -Wl$(comma)--no-whole-archive)
$(CU_PROGS): $(BUILD)/tests/%: $(BUILD)/obj/$$(call source_of,$$*).cu.o \
        $(CUDA_LIB) $(BUILD)/libtest.a $(BUILD)/libgpt.a $(BUILD)/link-flags
	$(call link,,$(CUDA_LIBS))

# Kernels and tests of them, translated to C++, with tests/emu in place of CUDA's libraries.
$(BUILD)/emu/src/%: % tests/emu/translate
	@mkdir -p $(@D); tests/emu/translate $< > $@
# CUDA's headers, which take most of a small file's time, once for all of them.
$(BUILD)/emu/cuda.h:
	@mkdir -p $(@D); echo '#include <cuda_runtime.h>' > $@
$(BUILD)/emu/cuda.h.gch: $(BUILD)/emu/cuda.h $(BUILD)/emu-flags
	$(call say,CXX,$@)$(EMU_CXX) -MMD -MP -MF $(@:.gch=.d) -x c++-header -o $@ $<
$(BUILD)/emu/obj/%.cu.o: $(BUILD)/emu/src/%.cu $(BUILD)/emu/cuda.h.gch $(BUILD)/emu-flags | \
        $(patsubst %,$(BUILD)/emu/src/%,$(wildcard kernels/*.*h kernels/*/*.*h tests/gpu/*.cuh))
	@mkdir -p $(@D)
	$(call say,CXX,$*.cu)$(EMU_CXX) -include $(BUILD)/emu/cuda.h -MMD -MP -x c++ -c -o $@ $<
# GCC 12 at -O1 leaves the low half in where a weight is cut (as_weight of adam_form.cuh).
$(BUILD)/emu/obj/kernels/store.cu.o: private EMU_CXX += -fno-tree-sra
$(BUILD)/emu/obj/%.cc.o: %.cc $(BUILD)/emu-flags
	@mkdir -p $(@D)
	$(call say,CXX,$<)$(EMU_CXX) -O3 -MMD -MP -c -o $@ $<
$(BUILD)/emu/libemu.a: $(patsubst %,$(BUILD)/emu/obj/%.o,$(EMU_SRC) $(wildcard tests/emu/*.cc))
	$(archive_rule)
ifneq (,$(HAVE_EMU))
$(filter-out %_attention_test,$(EMU_TESTS)): $(BUILD)/emu/%: $(BUILD)/obj-cuda/tests/gpu/%.o
$(BUILD)/emu/gpu_attention_test: $(BUILD)/emu/obj/tests/gpu/gpu_attention_test.cu.o
$(EMU_TESTS): $(BUILD)/emu/libemu.a $(BUILD)/libtest.a $(BUILD)/libgpt.a $(BUILD)/link-flags
	$(call link,-Wl$(comma)--wrap=_Z14cuda_workspaceP8cuda_opsm,-lstdc++)
# The program itself, for one emulated GPU: NCCL is linked, and not called.
$(EMU_TRAIN): $(BUILD)/obj-cuda/cmd/gpt-train.o $(patsubst %,$(BUILD)/emu/obj/%.o,$(EMU_TRAIN_SRC)) \
        $(BUILD)/emu/libemu.a $(BUILD)/libgpt.a $(BUILD)/link-flags
	$(call link,,-L$(CUDA_HOME)/lib64 -Wl$(comma)-rpath$(comma)$(CUDA_HOME)/lib64 -lnccl -lstdc++ -ldl)
else
$(EMU_TESTS) $(EMU_TRAIN):
	@mkdir -p $(@D)
	@printf '#!/bin/sh\necho "skipped: cuda-toolkit (and x86-64) to emulate a GPU"\nexit 77\n' > $@
	@chmod +x $@
endif

$(EMU_PORTABLE): $(BUILD)/emu/portable_%: $(BUILD)/emu/gpu_%
	@printf '#!/bin/sh\nexport GPT_GPU_PATH=portable "GPT_TEST_OPS=$${GPT_TEST_OPS-%s}"\nexec "$${0%%/*}/gpu_%s" "$$@"\n' \
	    '$(PORTABLE_OPS)' $* > $@
	@chmod +x $@

-include $(shell find $(BUILD)/emu $(BUILD)/obj $(BUILD)/obj-cuda $(BUILD)/obj64 -name '*.d' 2>/dev/null)

# --- what is run ---------------------------------------------------------------------------------

export GPT_SHARE = $(CURDIR)/share
RUN_TESTS = GPT_BIN=$(abspath $(BUILD)/bin) GPT_TESTS=$(abspath $(BUILD)/tests) \
            $(if $(OF_OPS),GPT_TEST_OPS='$(OF_OPS)') $(if $(LEAVE_LONG),LONG=no) share/run-tests
EMULATED  = $(EMU_TESTS) $(EMU_PORTABLE) $(wildcard tests/emu/*.bats)
# What reads files that may be damaged or foreign, once more under the sanitizers (T=asan).
ASAN_TESTS = $(if $(SANITIZE),,$(patsubst %,$(BUILD)-asan/tests/%_test,json opt zio source recipe \
              recipe_fuzz parsers_fuzz logread runs_fuzz runs_extreme safetensors checkpoint_damage shard \
              loader_bad))
# Those of `make check`: what a command or a file of lib does, where that takes seconds; of bats files
# what is not tagged long.
LONG      = %_fuzz_test fit_test backward_test examples.bats lint.bats gpt-tokshard_tiktoken.bats \
            gpt-tokshard_tokenizer_json.bats gpt-train_valgrind.bats
EVERY     = $(wildcard tests/cmd/*.bats) $(filter %_test,$(C_PROGS) $(FD_TESTS)) \
            $(wildcard tests/*.bats tests/ops/*.bats tests/golden/*.bats)
QUICK     = $(filter-out $(addprefix %/,$(LONG)),$(EVERY))
# Long ones first, so that at the end no processor waits for one of them.
ALL_TESTS = $(EMULATED) $(filter-out $(QUICK),$(EVERY)) $(QUICK) \
            $(if $(HAVE_CUDA),$(BUILD)/tests/gpu_group_test) $(ASAN_TESTS)

# T=: names of tests as they are run, or without their endings: gpt-ckpt is gpt-ckpt.bats, gpt-train
# all of gpt-train*.bats, zio zio_test; the name of an op what tests that op, alone.
of_op     = $(if $(filter $(1),$(OP_TESTS)),ops_test ops_fd_test) $(basename $(notdir $(shell grep -lE 'check_of."([^"]* )?$(1)[ "]' tests/*/*.c tests/*/*.cu)))
OPS       = $(if $(T),$(sort $(OP_TESTS) $(shell grep -ohE 'check_of."[^"]*' tests/*/*.c tests/*/*.cu | cut -d'"' -f2)))
OP_TESTS  = $(patsubst tests/ops/%_test.c,%,$(filter %_test.c,$(filter tests/ops/%,$(TEST_LIB))))
OF_OPS    = $(filter $(OPS),$(T))
of_name   = $(filter %/$(1) %/$(1).bats %/$(1)_test,$(filter-out $(ASAN_TESTS),$(ALL_TESTS))) \
            $(foreach t,$(filter %.bats,$(ALL_TESTS)),$(if $(filter $(1)_%,$(notdir $(t))),$(t)))
programs_of_op = $(filter $(addprefix %/,$(of_op)),$(ALL_TESTS)) $(if $(filter $(1),$(PORTABLE_OPS)),$(filter \
              $(patsubst gpu_%,$(BUILD)/emu/portable_%,$(filter gpu_%,$(of_op))),$(ALL_TESTS)))
CHOSEN    = $(sort $(foreach t,$(T),$(if $(filter asan,$(t)),$(ASAN_TESTS),$(if $(filter $(t),$(OPS)), \
              $(call programs_of_op,$(t)),$(or $(strip $(call of_name,$(t))),$(error T=$(t): no such test))))))
check:     TO_CHECK = $(if $(T),$(CHOSEN),$(QUICK))
check-all: TO_CHECK = $(if $(T),$(CHOSEN),$(ALL_TESTS))
check:     LEAVE_LONG = $(if $(T),,yes)
# Where no GPU is visible `make check` does without the kernels, which take minutes to compile, unless they
# have been.
check:     NO_KERNELS = $(if $(GPUS_HERE)$(wildcard $(BUILD)/libgptcuda.a),,CUDA=0)

deps:
	@share/install-deps
check check-all:
	@share/install-deps
	@$(MAKE) $(NO_KERNELS) all
	@$(if $(filter $(EMULATED),$(TO_CHECK)),$(MAKE) $(filter $(EMU_TESTS) $(EMU_PORTABLE),$(TO_CHECK)) \
	    $(if $(filter tests/emu/%,$(TO_CHECK)),$(EMU_TRAIN)))
	@$(if $(filter $(ASAN_TESTS),$(TO_CHECK)),$(MAKE) asan=1 CUDA=0 $(ASAN_TESTS))
	@share/get-vocab -o $(BUILD)/vocab/gpt2.tiktoken || echo 'check: tests of GPT-2'"'"'s tokens are skipped' >&2
	@$(RUN_TESTS) $(TO_CHECK)
need_cuda = @$(if $(HAVE_CUDA),,echo "$@: no nvcc, so no GPU tests were built" >&2; exit 5)
check-gpu: all
	$(need_cuda)
	@BUILD=$(BUILD) share/check-gpu \
	    $(or $(T),$(notdir $(filter %_test,$(GPU_PROGS)) $(wildcard tests/gpu/*.bats)))
bundle: all
	$(need_cuda)
	@share/bundle $(BUILD)/gpt-bundle.tar.xz $(CMDS) $(GPU_PROGS) $(BUILD)/tests/golden
bench: all
	@set -e; for b in $(foreach p,$(C_PROGS) $(GPU_PROGS),$(if $(findstring bench_,$(p)),$(p))); do \
	    echo "== $${b##*/}"; $$b || [ $$? = 77 ]; done
quickstart:
	@share/quickstart $(MAKE) $(BUILD)
vocab:
	@share/get-vocab $(VOCAB)

# clang-format 14, because releases differ in what they make of the same file. CHECK=1: changes
# nothing, and fails where it would.
FORMATTED = $(shell find cmd lib kernels tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc')
format:
	$(call say,FORMAT,$(words $(FORMATTED)) files)clang-format-14 $(if $(CHECK),--dry-run --Werror,-i) $(FORMATTED)
lint:
	@share/install-deps
	@$(RUN_TESTS) tests/lint.bats

bindir  = $(DESTDIR)$(PREFIX)/bin
datadir = $(DESTDIR)$(PREFIX)/share
install: $(CMDS) $(BUILD)/public/libgpt.a
	install -d $(bindir) $(datadir)/gpt/examples $(datadir)/bash-completion/completions \
	    $(DESTDIR)$(PREFIX)/include/gpt
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib $(BUILD)/public/libgpt.a
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed -e 's|@PREFIX@|$(PREFIX)|' -e "s|@VERSION@|$$(sed -nE 's/.*GPT_VERSION "(.*)".*/\1/p' lib/base/version.h)|" \
	    share/gpt.pc > $(DESTDIR)$(PREFIX)/lib/pkgconfig/gpt.pc
	install -m 644 $(PUBLIC) $(DESTDIR)$(PREFIX)/include/gpt
	install -m 755 $(wildcard examples/*) $(datadir)/gpt/examples
	install -m 755 $(CMDS) $(bindir)
	set -e; for m in $(wildcard man/*.[157]); do \
	    install -D -m 644 $$m $(datadir)/man/man$${m##*.}/$${m##*/}; done
	set -e; for f in $(wildcard share/recipes/*.* share/recipes/*/* share/coeffs/* share/standings/*); do \
	    install -D -m 644 $$f $(datadir)/gpt/$${f#share/}; done
	install -d $(datadir)/doc/gpt
	install -m 644 $(wildcard share/doc/*.md) $(datadir)/doc/gpt
	set -e; for c in $(notdir $(CMDS)); do \
	    install -m 644 share/completion.bash $(datadir)/bash-completion/completions/$$c; \
	    install -D -m 644 share/completion.fish $(datadir)/fish/vendor_completions.d/$$c.fish; done
	install -D -m 644 share/completion.zsh $(datadir)/zsh/site-functions/_gpt_tools

clean:
	rm -rf $(BUILD)

help:
	@echo 'make              build commands into $(BUILD)/bin, test programs into $(BUILD)/tests'
	@echo 'make quickstart   text to shards to a trained model, in a few minutes on a CPU'
	@echo 'make check        the tests of library and commands, in a few minutes'
	@echo 'make check-all    every test that needs no GPU: kernels on an emulated one, sanitizers,'
	@echo '                  fuzzing, examples, formatting and static analysis besides'
	@echo '                  T="zio gpt-ckpt gpu_ops_test" runs these, T=qkv what tests the op qkv,'
	@echo '                  T=asan the readers of files, under the sanitizers'
	@echo 'make lint         formatting and static analysis alone'
	@echo 'make check-gpu    the tests that need one; T= as for check'
	@echo 'make bundle       one archive to run programs and device tests where there is no compiler'
	@echo 'make bench        the benchmarks'
	@echo 'make vocab        fetch the GPT-2 vocabulary; VOCAB=FILE or URL takes it from there'
	@echo 'make deps         install missing packages (share/deps.txt)'
	@echo 'make format       clang-format on all C and CUDA'
	@echo 'make install      into $$(DESTDIR)$(PREFIX)'
	@echo 'make clean        remove $(BUILD)'
	@echo 'variables: BUILD V=1 asan=1 tsan=1 STATIC=1 ARCH ARCH_GPU DRAFT=1 CUDA=0 NVCC PREFIX DESTDIR CC CFLAGS'

FORCE:
.PHONY: all lib tests kernels deps check check-all check-gpu bundle bench quickstart vocab format lint install clean \
        help FORCE
