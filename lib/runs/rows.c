/* rows.c - see rows.h. */
#include "runs/rows.h"

#include <math.h>
#include <string.h>
#include "base/text.h"

const char *const row_name[ROW_VALUES] = { "train/loss", "train/next_loss",
                                           "val/loss",   "train/grad_norm",
                                           "lr",         "tokens",
                                           "seconds",    "epoch" };

int rows_open(struct rows *o, const struct run *r, const char *recipe)
{
    *o = (struct rows){ .run = r };
    return pace_open(&o->pace, recipe);
}

void rows_close(struct rows *o) { pace_close(&o->pace); }

/* The first step of the lines that are left; INT32_MAX: there are none. */
static int32_t first_step(const struct rows *o)
{
    const struct run *r = o->run;
    int32_t step = o->at_step < r->steps ? r->step[o->at_step].step : INT32_MAX;
    int32_t val = o->at_val < r->vals ? r->val[o->at_val].step : INT32_MAX;
    return val < step ? val : step;
}

bool rows_next(struct rows *o, int32_t before, struct row *row)
{
    const struct run *r = o->run;
    int32_t step = first_step(o);
    double *v = row->value;
    if (step >= before)
        return false;
    row->step = step;
    for (int i = 0; i < ROW_VALUES; i++)
        v[i] = NAN;
    for (; o->at_val < r->vals && r->val[o->at_val].step == step; o->at_val++) {
        v[ROW_VAL] = r->val[o->at_val].loss;
        v[ROW_SECONDS] = r->val[o->at_val].time_ms / 1e3;
    }
    for (; o->at_step < r->steps && r->step[o->at_step].step == step; o->at_step++) {
        const struct run_step *s = &r->step[o->at_step];
        v[ROW_TRAIN] = s->loss;
        v[ROW_NEXT] = s->next;
        v[ROW_NORM] = s->norm;
        if (!isnan(s->time_ms))
            v[ROW_SECONDS] = s->time_ms / 1e3;
    }
    if (step <= o->pace.steps) {
        v[ROW_LR] = step ? o->pace.lr[step] : NAN;
        v[ROW_TOKENS] = (double)o->pace.tokens[step];
        v[ROW_EPOCH] = r->pass_tokens > 0 ? v[ROW_TOKENS] / r->pass_tokens : NAN;
    }
    return true;
}

/* --- text --- */

/* A field of CSV (RFC 4180), without control characters. */
static void put_field(FILE *f, const char *s)
{
    if (!strpbrk(s, "\",\r\n")) {
        text_plain(f, s, strlen(s));
        return;
    }
    fputc('"', f);
    for (size_t k; *s; s += k) {
        k = strcspn(s, "\"");
        text_plain(f, s, k);
        fputs(s[k] ? "\"\"" : "", f);
        k += s[k] != 0;
    }
    fputc('"', f);
}

void rows_head(FILE *f, enum rows_format format)
{
    if (format != ROWS_CSV)
        return;
    fputs("group,run,trial,step", f);
    for (int i = 0; i < ROW_VALUES; i++)
        fprintf(f, ",%s", row_name[i]);
    fputc('\n', f);
}

void rows_write(FILE *f, enum rows_format format, const char *group, const struct run *r,
                const struct row *row)
{
    bool csv = format == ROWS_CSV;
    if (csv) {
        put_field(f, group);
        fputc(',', f);
        put_field(f, r->path);
        fprintf(f, ",%d,%d", r->trial, (int)row->step);
    } else {
        fputs("{\"group\": ", f);
        text_json(f, group, strlen(group), false);
        fputs(", \"run\": ", f);
        text_json(f, r->path, strlen(r->path), false);
        fprintf(f, ", \"trial\": %d, \"step\": %d", r->trial, (int)row->step);
    }
    for (int i = 0; i < ROW_VALUES; i++) {
        double x = row->value[i];
        if (csv)
            fprintf(f, isnan(x) ? "," : ",%.10g", x);
        else if (isfinite(x))
            fprintf(f, ", \"%s\": %.10g", row_name[i], x);
    }
    fputs(csv ? "\n" : "}\n", f);
}
