#include "base/blas.h"

/* OpenBLAS's own; other implementations' cblas.h does not declare them. */
void openblas_set_num_threads(int n);
int openblas_get_num_threads(void);

int blas_threads(int n)
{
    int before = openblas_get_num_threads();
    openblas_set_num_threads(n);
    return before;
}
