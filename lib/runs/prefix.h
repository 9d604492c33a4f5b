/* prefix.h - what launchers and loggers put before the lines of a log.
 *
 *     struct prefix p = prefix_of(line, n, PREFIX_ALL);
 *     line += p.bytes, n -= p.bytes;
 *
 * Known are ranks (`[rank0]:`, `[default0]:`, torchrun; `0: `, srun; `[1,0]<stdout>:`, mpirun), dates
 * and times, levels (INFO), blanks and colours. Pure, safe in any thread.
 */
#ifndef RUNS_PREFIX_H
#define RUNS_PREFIX_H

#include <stddef.h>

enum { PREFIX_ALL = 16 };
struct prefix {
    size_t bytes;
    int parts; /* how many there are, of which blanks and colours are none */
};
/* At most so many parts. */
struct prefix prefix_of(const char *line, size_t n, int most);
/* Takes colours out of the n bytes of a line; returns how many are left. */
size_t prefix_uncolour(char *line, size_t n);

#endif
