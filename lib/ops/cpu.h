/* cpu.h - inside of the plain C device: its state, scratch memory, its ops.
 *
 * Every op NAME of op_list.h is a function cpu_NAME in lib/ops/NAME.c (a backward
 * lives beside its forward). An op begins like this:
 *
 *     void cpu_linear(struct ops *o, struct tensor y, ...)
 *     {
 *         const real *wr = real_view(o, 0, w);               // in slot 0 if w is not real
 *         real *tmp = cpu_scratch(o, 1, tensor_count(y));
 *         if (cpu_failed(o))                                 // also true when no memory was left
 *             return;
 *
 * Scratch slots grow and are kept until free(), so nothing allocates in the
 * steady state. What a slot holds is lost when the op returns; an op gives each
 * thing that it holds at once a slot of its own.
 *
 * Threads: as struct ops, one rank's thread.
 */
#ifndef OPS_CPU_H
#define OPS_CPU_H

#include "ops/ops.h"

enum { CPU_SLOTS = 12 };

struct cpu_scratch {
    void *data;
    size_t bytes;
};

struct cpu {
    struct ops o; /* first: struct ops * is struct cpu * */
    int failure; /* code of the first failure, 0 while none */
    char message[256];
    void **blocks; /* what alloc() gave */
    int n_blocks, cap_blocks;
    size_t bytes;
    struct cpu_scratch scratch[CPU_SLOTS];
    char fetch[FETCH_MAX][FETCH_BYTES];
    unsigned fetch_in, fetch_out;
};

/* count numbers, uninitialised, 64-byte aligned; NULL once the device has failed. */
real *cpu_scratch(struct ops *o, int slot, int64_t count);
/* The same in bytes, for what is not real. */
void *cpu_scratch_bytes(struct ops *o, int slot, size_t bytes);
bool cpu_failed(const struct ops *o);
/* Keeps the first failure. */
void cpu_fail(struct ops *o, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

void cpu_zero(struct ops *o, struct tensor t);

#define OP(name, ...) void cpu_##name(struct ops *o, __VA_ARGS__)
#include "ops/op_list.h"

/* quantize.c: codes of w as it is stored, elements first .. first + n - 1; amax grows. */
void cpu_fp8_write(const struct fp8_copy *copy, struct tensor w, int64_t first, int n);
enum { FP8_BLOCK = 512 }; /* n at most */

#endif
