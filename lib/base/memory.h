/* memory.h - how much memory this process may still take.
 *
 *     double left = memory_available("");
 *
 * Threads: reads files of the system; any thread.
 */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

/* Bytes: the least of what the machine has (MemAvailable), what the limits of this process's
 * control groups, versions 1 and 2, and of those above them leave (what they use less the file
 * cache that can be dropped), and what its address space may grow (ulimit -v). INFINITY: nothing
 * says. root: the folder that proc/ and sys/ are in, "" on a system. */
double memory_available(const char *root);

#endif
