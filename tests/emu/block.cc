/* block.cc - blocks of threads as fibers, run in random order; barriers, warps, shared memory. */
#include "emu.h"

#include <cxxabi.h>
#include <map>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emu
{

enum { STACK = 128 << 10, PAGE = 4096 };

std::vector<block> blocks;
fiber *now;
static std::vector<fiber> fibers;
static std::vector<fiber *> ready;
static int alive;
static void *main_stack_at;
static const char *kernel;
static const std::function<void()> *thread_body;
static std::vector<void *> stacks;
struct box_copy {
    fiber *whose;
    int group;
    std::function<void()> run;
};
static std::vector<box_copy> copies;
static sigjmp_buf fault_exit;

/* -- messages and chance -------------------------------------------------------------------- */

static void place_text(char *text, size_t size)
{
    int n = snprintf(text, size, "emulated GPU: %s", kernel ? kernel : "no kernel");
    if (now)
        snprintf(text + n, size - n, ", block (%u,%u,%u) of %ux%ux%u, thread %d of %u", blockIdx.x,
                 blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z, now->number,
                 blockDim.x * blockDim.y * blockDim.z);
}

const char *name_of(const char *where, const std::type_info &type)
{
    static std::map<std::string, std::string> names;
    char *kernel = abi::__cxa_demangle(type.name(), NULL, NULL, NULL);
    std::string &name = names[std::string(where) + type.name()];
    if (name.empty())
        name = std::string(kernel) + ", " + where;
    free(kernel);
    return name.c_str();
}

void fail(const char *fmt, ...)
{
    char place[300];
    va_list ap;

    place_text(place, sizeof place);
    fflush(stdout);
    fprintf(stderr, "%s: ", place);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    _exit(1);
}

static uint64_t first_seed()
{
    const char *given = getenv("GPT_EMU_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    fprintf(stderr, "emulated GPU: GPT_EMU_SEED=%llu\n", (unsigned long long)seed);
    return seed * 0x9e3779b97f4a7c15u | 1;
}

unsigned random_below(unsigned n)
{
    static uint64_t x = first_seed();
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (unsigned)((x >> 32) * n >> 32);
}

/* -- switching ------------------------------------------------------------------------------- */

/* Saves what a call preserves on this stack, goes on on the other. */
extern "C" void emu_switch(void **save, void *load);
asm(".globl emu_switch\n"
    "emu_switch:\n"
    "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
    "mov %rsp, (%rdi)\n"
    "mov %rsi, %rsp\n"
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
    "ret\n");

static void enter(fiber *f)
{
    void **save = now ? &now->stack_at : &main_stack_at;
    if (f == now)
        return;
    now = f;
    threadIdx = f->index;
    blockIdx = f->block->index;
    emu_switch(save, f->stack_at);
}

/* Nobody can go on: who waits where. */
[[noreturn]] static void stuck()
{
    now = NULL;
    fprintf(stderr, "emulated GPU: %s: no thread of block (%u,%u,%u) can go on\n", kernel,
            blocks[0].index.x, blocks[0].index.y, blocks[0].index.z);
    std::vector<bool> said(fibers.size());
    for (size_t i = 0; i < fibers.size(); i++) {
        const fiber &f = fibers[i];
        if (said[i])
            continue;
        int n = 0;
        for (size_t j = i; j < fibers.size(); j++) {
            const fiber &g = fibers[j];
            if (g.ended == f.ended && (g.ended || (!strcmp(g.waits, f.waits) && g.line == f.line &&
                                                   g.what == f.what && g.block == f.block)))
                said[j] = true, n++;
        }
        if (f.ended)
            fprintf(stderr, "  %d threads, from %d on: have ended\n", n, f.number);
        else
            fprintf(stderr, "  %d threads, from %d of block %d on: wait for %s %llx, %s:%d\n", n,
                    f.number, f.block->rank, f.waits, (unsigned long long)f.what,
                    f.file ? f.file : "line", f.line);
    }
    fail("threads wait for each other");
}

/* Lets another thread run, or this one if it is ready. */
static void go_on()
{
    for (;;) {
        size_t n = copies.size();
        if (n && (ready.empty() || random_below(4) == 0)) {
            std::swap(copies[random_below(n)], copies.back());
            auto copy = std::move(copies.back().run);
            copies.pop_back();
            copy();
            continue;
        }
        if (ready.empty())
            stuck();
        std::swap(ready[random_below(ready.size())], ready.back());
        fiber *next = ready.back();
        ready.pop_back();
        enter(next);
        return;
    }
}

void wait_for(const char *what, uint64_t id, const char *file, int line)
{
    now->waits = what, now->what = id, now->file = file, now->line = line;
    go_on();
}

static void wake_one(fiber *f)
{
    f->waits = NULL;
    ready.push_back(f);
}
void wake(const block *b, const char *what, uint64_t id)
{
    for (fiber &f : fibers)
        if (f.waits && (!b || f.block == b) && f.what == id &&
            (f.waits == what || !strcmp(f.waits, what)))
            wake_one(&f);
}

void later(fiber *whose, std::function<void()> copy)
{
    copies.push_back({ whose, whose ? whose->store_groups : 0, copy });
}
void finish_copies(fiber *whose, int left)
{
    for (size_t i = 0; i < copies.size();)
        if (copies[i].whose == whose && copies[i].group < whose->store_groups - left) {
            auto copy = std::move(copies[i].run);
            copies.erase(copies.begin() + i);
            copy();
        } else {
            i++;
        }
}

/* -- barriers and warps ---------------------------------------------------------------------- */

static void sync_complete(block *b)
{
    b->synced_any = b->sync.any;
    b->sync = meeting();
    wake(b, "__syncthreads", 0);
}

bool block_sync(bool any, const char *file, int line)
{
    block *b = now->block;
    if (!b->sync.here)
        b->sync.file = file, b->sync.line = line;
    else if (b->sync.line != line || strcmp(b->sync.file, file))
        fail("__syncthreads at %s:%d, while other threads of the block are at that of %s:%d", file,
             line, b->sync.file, b->sync.line);
    b->sync.any |= any;
    now->waits = "__syncthreads", now->what = 0, now->file = file, now->line = line;
    if (++b->sync.here == b->alive)
        sync_complete(b); /* wakes this one too */
    go_on();
    return b->synced_any;
}

const uint64_t *warp_values(const char *what, unsigned mask, uint64_t mine, int line)
{
    warp *w = now->warp;
    unsigned round = w->round, all = w->lanes == WARP ? ~0u : (1u << w->lanes) - 1;
    if ((mask & all) != all)
        fail("%s of line %d with mask %x: only whole warps are emulated", what, line, mask);
    if (w->here && ((w->what != what && strcmp(w->what, what)) || w->line != line))
        fail("%s of line %d, while other lanes of the warp are in %s of line %d", what, line,
             w->what, w->line);
    w->what = what, w->line = line;
    w->value[round % 2][now->lane] = mine;
    now->waits = what, now->what = 0, now->file = NULL, now->line = line;
    if (++w->here == w->lanes) {
        w->here = 0;
        w->round++;
        fiber *first = now - now->lane;
        for (int i = 0; i < w->lanes; i++)
            wake_one(first + i);
    }
    go_on();
    return w->value[round % 2];
}

void named_barrier(int id, int threads, bool wait, int line)
{
    block *b = now->block;
    if (id < 1 || id > 15 || threads % WARP ||
        threads > (int)(blockDim.x * blockDim.y * blockDim.z))
        fail("numbered barrier %d of %d threads, line %d", id, threads, line);
    if (wait)
        now->waits = "numbered barrier", now->what = id, now->file = NULL, now->line = line;
    if (++b->named[id] == threads) {
        b->named[id] = 0;
        wake(b, "numbered barrier", id);
    }
    if (wait)
        go_on();
}

void cluster_sync(int line)
{
    static int here;
    now->waits = "cluster barrier", now->what = 0, now->file = NULL, now->line = line;
    if (++here == alive) {
        here = 0;
        wake(NULL, "cluster barrier", 0);
    }
    go_on();
}

int cluster_rank() { return now->block->rank; }

/* -- shared memory --------------------------------------------------------------------------- */

enum { GAP = 32 }; /* untouched bytes behind each variable */

int shared_max()
{
    static const char *path = getenv("GPT_GPU_PATH");
    return path && !strcmp(path, "portable") ? 99 << 10 : 227 << 10;
}

void *shared_variable(const char *key, const char *name, size_t bytes, size_t align)
{
    block *b = now->block;
    for (const variable &v : b->variables)
        if (v.key == key)
            return b->window + v.at;
    uint32_t at = (uint32_t)((b->used + align - 1) / align * align), sum = WINDOW - b->dynamic_at;
    b->used = at + (uint32_t)bytes + GAP;
    b->variables.push_back({ key, name, at, (uint32_t)bytes });
    for (const variable &v : b->variables)
        sum += v.bytes;
    if (sum > (uint32_t)shared_max() || b->used > b->dynamic_at)
        fail("%u bytes of shared memory, with variable %s; there are %d", sum, name, shared_max());
    return b->window + at;
}

void *dynamic_shared() { return now->block->window + now->block->dynamic_at; }

uint32_t shared_address(const void *p)
{
    ptrdiff_t at = (const char *)p - now->block->window;
    if (at < 0 || at > WINDOW)
        fail("%p is not in the block's shared memory", p);
    return (uint32_t)at;
}

static void check_gaps(const block &b)
{
    for (const variable &v : b.variables)
        for (uint32_t i = v.at + v.bytes; i < v.at + v.bytes + GAP; i++)
            if ((unsigned char)b.window[i] != 0xff)
                fail("written %u bytes behind the end of shared variable %s", i - v.at - v.bytes,
                     v.name);
}

/* -- a grid ---------------------------------------------------------------------------------- */

static void *map_pages(size_t bytes) /* and none behind them */
{
    char *p = (char *)mmap(NULL, bytes + 2 * PAGE, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p + PAGE, bytes, PROT_READ | PROT_WRITE))
        fail("no memory for stacks");
    return p + PAGE;
}

static void fiber_main()
{
    (*thread_body)();
    block *b = now->block;
    if (now->products.size())
        fail("ends with products that were not waited for");
    if (now->copies.size())
        fail("ends with copies into shared memory that it did not wait for");
    for (const auto &c : copies)
        if (c.whose == now)
            fail("ends with copies out of shared memory that were not waited for");
    now->ended = true;
    alive--;
    if (--b->alive == b->sync.here && b->alive)
        sync_complete(b); /* ended threads count as arrived */
    if (alive)
        go_on();
    if (copies.size())
        fail("the block ends with copies into its shared memory under way");
    fiber *last = now;
    now = NULL;
    emu_switch(&last->stack_at, main_stack_at);
    abort();
}

static void fiber_begin(fiber *f, block *b, int number)
{
    f->stack = stacks[f - fibers.data()];
    f->number = number;
    f->lane = number % WARP;
    f->warp = &b->warps[number / WARP];
    f->warp->lanes++;
    f->block = b;
    f->index.x = number % blockDim.x;
    f->index.y = number / blockDim.x % blockDim.y;
    f->index.z = number / blockDim.x / blockDim.y;
    f->ended = false;
    f->waits = NULL;
    f->products.clear(), f->groups.clear();
    f->copies.clear(), f->copy_groups.clear();
    f->issued = 0, f->store_groups = 0;
    /* Tops are spread over the sets of the cache. */
    void **top = (void **)((char *)f->stack + STACK - 64 - (f - fibers.data()) % 32 * 192);
    *--top = NULL; /* where fiber_main would return to */
    *--top = (void *)fiber_main;
    f->stack_at = top - 6;
    ready.push_back(f);
}

static void block_begin(block *b, uint3 index, int rank, size_t dynamic, int threads)
{
    static unsigned run;
    b->index = index;
    b->rank = rank;
    b->run = ++run;
    b->alive = threads;
    if (!b->window)
        b->window = (char *)map_pages(WINDOW), b->used = b->dynamic_at = WINDOW;
    /* NaN, and no barrier, what the block before had and what this one gets */
    memset(b->window, 0xff, b->used);
    memset(b->window + b->dynamic_at, 0xff, WINDOW - b->dynamic_at);
    b->dynamic_at = (uint32_t)(WINDOW - (dynamic + 15) / 16 * 16);
    b->used = 1024;
    b->variables.clear();
    b->warps.assign((threads + WARP - 1) / WARP, warp());
    b->sync = meeting();
    memset(b->named, 0, sizeof b->named);
}

static void run_cluster(uint64_t first, const shape &s, int cluster)
{
    int threads = s.block.x * s.block.y * s.block.z;
    ready.clear();
    for (int r = 0; r < cluster; r++) {
        uint64_t i = first + r;
        uint3 index = { (unsigned)(i % s.grid.x), (unsigned)(i / s.grid.x % s.grid.y),
                        (unsigned)(i / s.grid.x / s.grid.y) };
        block_begin(&blocks[r], index, r, s.shared, threads);
        for (int t = 0; t < threads; t++)
            fiber_begin(&fibers[r * threads + t], &blocks[r], t);
    }
    alive = cluster * threads;
    go_on();
    for (const block &b : blocks)
        check_gaps(b);
}

static void on_fault(int, siginfo_t *info, void *)
{
    char place[300], about[200];
    if (!kernel || !now) { /* not a kernel's */
        signal(SIGSEGV, SIG_DFL);
        return;
    }
    place_text(place, sizeof place);
    describe_address(info->si_addr, about, sizeof about);
    fprintf(stderr, "%s: illegal access at %p%s\n", place, info->si_addr, about);
    siglongjmp(fault_exit, 1);
}

static void catch_faults()
{
    static bool done;
    if (done)
        return;
    done = true;
    stack_t stack = {};
    struct sigaction action = {};
    stack.ss_sp = malloc(stack.ss_size = 64 << 10);
    sigaltstack(&stack, NULL);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

bool run_grid(const char *name, const shape &s, int cluster, const std::function<void()> &thread)
{
    uint64_t n = (uint64_t)s.grid.x * s.grid.y * s.grid.z / cluster;
    size_t threads = (size_t)s.block.x * s.block.y * s.block.z * cluster;

    catch_faults();
    kernel = name;
    thread_body = &thread;
    gridDim = s.grid, blockDim = s.block;
    while (blocks.size() > (size_t)cluster)
        munmap(blocks.back().window, WINDOW), blocks.pop_back();
    blocks.resize(cluster);
    fibers.resize(threads);
    while (stacks.size() < threads)
        stacks.push_back(map_pages(STACK));
    bool ok = !sigsetjmp(fault_exit, 1);
    if (ok) {
        std::vector<uint32_t> order(n);
        for (uint64_t i = 0; i < n; i++) {
            unsigned j = random_below((unsigned)i + 1);
            order[i] = order[j], order[j] = (uint32_t)i;
        }
        for (uint32_t i : order)
            run_cluster((uint64_t)i * cluster, s, cluster);
    }
    now = NULL;
    kernel = NULL;
    copies.clear();
    return ok;
}

} /* namespace emu */
