/* blas.h - how many threads BLAS works with.
 *
 * Ranks and workers are threads that call BLAS at the same time. With one BLAS thread each they
 * share the cores evenly, and the order of a sum does not depend on how many cores are free.
 *
 *     int before = blas_threads(1);
 *     ...
 *     blas_threads(before);
 *
 * Threads: the number holds for the whole process.
 */
#ifndef BASE_BLAS_H
#define BASE_BLAS_H

/* Sets the number, returns the one before. */
int blas_threads(int n);

#endif
