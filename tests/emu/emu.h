/* emu.h - what the emulation's own files share: threads of the blocks that run, what they wait for.
 *
 * A cluster of blocks (mostly one) runs to its end before the next begins. Its threads are fibers;
 * one that must wait calls wait_for(), whoever ends the wait calls wake(). What is asynchronous on
 * a GPU (copies, products) is done late: at a random moment, or when it is waited for. Where no
 * thread can go on, all that they wait for is reported and the program ends.
 */
#ifndef EMU_EMU_H
#define EMU_EMU_H

#include <cuda_runtime.h>
#include <stdio.h>
#include <vector>

namespace emu
{

enum { WINDOW = 256 << 10, WARP = 32 };

/* A thread's part of a product: two rows of a, all columns of its own of b. */
struct product_job {
    float *d;
    int n;
    bool add, ta, tb, rows;
    product_type type;
    unsigned number; /* of the thread's products */
    uint64_t a, b;
    float row[2][32];
};

struct thread_copy { /* from NULL: zeros */
    uint32_t to;
    const void *from;
};

struct block;
struct fiber {
    void *stack, *stack_at;
    uint3 index;
    int number, lane;
    struct warp *warp;
    struct block *block;
    bool ended;
    const char *waits, *file; /* what for, NULL: not; where */
    int line;
    uint64_t what; /* barrier, parity and so on */
    unsigned issued; /* products */
    std::vector<product_job> products;
    std::vector<size_t> groups; /* products in each committed group, oldest first */
    std::vector<thread_copy> copies; /* its own, not done yet */
    std::vector<size_t> copy_groups;
    int store_groups; /* of copies out of shared memory, that it committed */
};

struct warp {
    int lanes, here; /* of the values that are gathered */
    const char *what;
    int line;
    unsigned round;
    uint64_t value[2][WARP];
    unsigned product_round; /* of the product that is here: (16, 8), of all lanes' operands */
    float product[16][8];
};

struct variable {
    const char *key, *name;
    uint32_t at, bytes;
};
struct meeting {
    int here;
    bool any;
    const char *file;
    int line;
};
struct block {
    uint3 index;
    int rank, alive;
    unsigned run; /* counts the blocks that have run */
    char *window; /* its shared memory: WINDOW bytes, then none */
    uint32_t dynamic_at, used; /* dynamic memory ends the window */
    std::vector<variable> variables;
    std::vector<warp> warps;
    meeting sync;
    bool synced_any;
    int named[16]; /* threads at each numbered barrier */
};

extern std::vector<block> blocks; /* the cluster that runs */
extern fiber *now;

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char *fmt, ...);
unsigned random_below(unsigned n);
/* Of a block, in bytes: Hopper's; what every GPU has where the portable path is asked for. */
int shared_max();
void wait_for(const char *what, uint64_t id, const char *file, int line);
/* All threads of b (NULL: of the cluster) that wait for this. */
void wake(const block *b, const char *what, uint64_t id);
/* Done at some later moment. whose: a copy out of shared memory, of the group that it commits next;
 * NULL: into it. */
void later(fiber *whose, std::function<void()> copy);
/* All but the last `left` groups that it committed. */
void finish_copies(fiber *whose, int left);
/* Runs a grid; false after an access to memory that is not there. */
bool run_grid(const char *name, const shape &s, int cluster, const std::function<void()> &thread);
/* About an address, for that message. */
void describe_address(const void *p, char *text, size_t size);

} /* namespace emu */

#endif
