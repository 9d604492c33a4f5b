/* profile.h - what a GPU did and when (gpt-train --profile, --trace).
 *
 * Uses CUPTI's activity records, loaded at run time: a machine without
 * libcupti reports one error; everything else works.
 *
 *     struct trace t = { 0 };
 *     if ((rc = profile_begin(&t))) return rc;         // GPT_DEVICE: no libcupti
 *     ... steps, ending with a sync ...
 *     profile_end();                                   // then t has the events of all devices
 *
 * One at a time in a process. Kernels of that name (trace_mark.cu) are marks.
 */
#ifndef KERNELS_HOST_PROFILE_H
#define KERNELS_HOST_PROFILE_H

#ifdef __cplusplus
extern "C" {
#endif
#include "base/trace.h"

int profile_begin(struct trace *t) MUST_CHECK;
void profile_end(void);
#ifdef __cplusplus
}
#endif
#endif
