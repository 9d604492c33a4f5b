/* profile.h - a GPU's time by kernel (gpt-train --profile).
 *
 * Uses CUPTI's activity records, loaded at run time: a machine without
 * libcupti reports one error; everything else works.
 *
 *     if ((rc = profile_begin())) return rc;          // GPT_DEVICE: no libcupti
 *     ... steps, ending with a sync ...
 *     rc = profile_end(stdout, steps);                 // TSV: kernel calls us_step share
 *
 * One profile at a time in a process; all devices are counted together.
 */
#ifndef KERNELS_HOST_PROFILE_H
#define KERNELS_HOST_PROFILE_H

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "base/err.h"

int profile_begin(void) MUST_CHECK;
int profile_end(FILE *f, int steps) MUST_CHECK;
#ifdef __cplusplus
}
#endif
#endif
