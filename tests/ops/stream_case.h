/* stream_case.h - names of tensors in the cases of the residual stream's mixes (ops_case.h). */
#ifndef STREAM_CASE_H
#define STREAM_CASE_H

static const char *const mix_x[] = { "x_0", "x_1", "x_2", "x_3", "x_4", "x_5" };
static const char *const mix_dx[] = { "dx_0", "dx_1", "dx_2", "dx_3", "dx_4", "dx_5" };

/* Coefficients of two streams or lanes. */
static const char *const inject_c[2][4] = { { "a_0", "a_1", "a_2", "a_3" },
                                            { "b_0", "b_1", "b_2", "b_3" } };
static const char *const inject_dc[2][4] = { { "da_0", "da_1", "da_2", "da_3" },
                                             { "db_0", "db_1", "db_2", "db_3" } };

#endif
