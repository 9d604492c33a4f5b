/* runlog_made.c - see runlog_made.h. */
#include "runlog_made.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const made_name[MADE_LAYOUTS] = { "today",       "bare",        "llmc",
                                              "llmc-norm",   "source-2024", "rules-2024",
                                              "rules4-2024", "track3",      "ours",
                                              "llmc-output", "nanogpt" };

static const char rule[] = "===================================================================="
                           "================================\n";

struct made made_default(enum made_layout layout)
{
    struct made m = { .layout = layout,
                      .steps = 60,
                      .every = 20,
                      .loss = 3.2784,
                      .time_ms = 6000,
                      .seed = 1,
                      .source = 1,
                      .gpu = "NVIDIA H100 80GB HBM3",
                      .driver = "535.129.03" };
    bool old = layout >= MADE_SOURCE_2024 && layout <= MADE_RULES4_2024;
    m.trials = layout == MADE_TRACK3 ? 2 : 1;
    m.digits = layout == MADE_TRACK3 ? 5 : 4;
    m.timed = layout != MADE_LLMC && layout != MADE_LLMC_NORM && layout != MADE_NANOGPT;
    m.restarts = old;
    if (old)
        m.steps = 80;
    return m;
}

static double rounded(double x, int digits)
{
    double p = pow(10, digits);
    return round(x * p) / p;
}

double made_loss(const struct made *m, int trial, int step)
{
    double end = m->loss + 0.001 * (trial - 1);
    if (step == m->steps)
        return rounded(end, m->digits);
    double left = 1 - (double)step / m->steps;
    double wobble = 0.0001 * ((step * 37 + m->seed * 101 + trial * 53) % 41 - 20);
    return rounded(end + 7.5 * left * left * left + (step ? wobble : 0), m->digits);
}

/* In the logs of 2024 the clock starts anew with step 11. */
double made_clock_ms(const struct made *m, int step)
{
    if (!m->restarts)
        return m->time_ms * step / m->steps;
    return step <= 10 ? 285 + 30000 * step : m->time_ms * (step - 10) / (m->steps - 10);
}

/* --- the parts of a log --- */

static void put_source(FILE *f, const struct made *m)
{
    fputs("import os\nimport sys\nwith open(sys.argv[0]) as f:\n    code = f.read()\n\n"
          "# a line that looks like one of the log stands below, and is text\n"
          "step:5/9 val_loss:1.2345 train_time:1ms step_avg:1.00ms\n"
          "def train(step):\n    print(f\"step:{step}/{steps} val_loss:{loss:.4f}\")\n",
          f);
    fprintf(f, "    return %d * step\n\nclass GPT:\n    pass\n", m->source);
}

static void put_smi(FILE *f, const struct made *m)
{
    fprintf(f, "nvidia-smi:\nThu Oct 10 23:58:%02d 2024\n", m->seed % 60);
    fprintf(f,
            "| NVIDIA-SMI %s             Driver Version: %s   CUDA Version: 12.2     |\n"
            "|   0  %s          On  | 00000000:61:00.0 Off |                    0 |\n"
            "| N/A   %dC    P0             111W / 700W |   5789MiB / 81559MiB |      5%%      "
            "Default |\n"
            "|   1  %s          On  | 00000000:62:00.0 Off |                    0 |\n"
            "|    0   N/A  N/A      %d      C   /usr/bin/python3             5776MiB |\n\n",
            m->driver, m->driver, m->gpu, 30 + m->seed % 9, m->gpu, 6000 + m->seed);
}

static void put_head(FILE *f, const struct made *m)
{
    switch (m->layout) {
    case MADE_TODAY:
        put_source(f, m);
        /* fall through */
    case MADE_BARE:
        fputs(rule, f);
        fputs("Running Python 3.12.12 | packaged by conda-forge | [GCC 14.3.0]\n"
              "Running PyTorch 2.10.0.dev20251210+cu126 compiled for CUDA 12.6\n"
              "Running Triton version 3.6.0\n",
              f);
        if (m->layout == MADE_TODAY)
            put_smi(f, m);
        fputs(rule, f);
        fputs("Compiling model and warming up kernels (~7 minutes on first execution)\n"
              "Resetting Model\n",
              f);
        break;
    case MADE_SOURCE_2024:
    case MADE_RULES_2024:
    case MADE_RULES4_2024:
        if (m->layout != MADE_SOURCE_2024)
            fputs(rule, f);
        put_source(f, m);
        fputs(rule, f);
        fputs("Running pytorch 2.4.1+cu121 compiled for CUDA 12.1\n", f);
        put_smi(f, m);
        fputs(rule, f);
        if (m->layout == MADE_RULES4_2024) {
            fputs("Training DataLoader: total number of tokens: 1100000000 across 11 files\n"
                  "Validation DataLoader: total number of tokens: 100000000 across 1 files\n",
                  f);
            fputs(rule, f);
        }
        break;
    case MADE_TRACK3:
        fprintf(f,
                "Fetching 4 files:   0%%\rFetching 4 files: 100%%\nlogs/242d94de.txt\n"
                "Running on device_name=%s with world_size=2\n",
                m->gpu);
        break;
    case MADE_OURS:
        fprintf(
            f,
            "tool: gpt-train 0.1.0\ncommit: 0123456789abcdef0123456789abcdef01234567, clean\n"
            "program: fedcba9876543210fedcba9876543210fedcba98\narguments: -q --ranks 2 -s seed=%d\nrecipe: tiny "
            "d78088fcfd4d787a2438bbadda56d513\ndata: fed375d9ed6cfa79c6cad3363ade004e\n"
            "seed: %d\ndevice: cpu\nranks: 2\n%sname = tiny\nseed = %d\n\n[model]\n"
            "vocab = %d\n%s",
            m->seed, m->seed, rule, m->seed, 384 + m->source, rule);
        break;
    default: break;
    }
}

/* ` train_time:.. step_avg:..` */
static void put_time(FILE *f, const struct made *m, int step)
{
    double t = made_clock_ms(m, step);
    int since = m->restarts ? step - 10 : step;
    if (m->layout == MADE_TRACK3) {
        fprintf(f, " train_time:%.3fs step_avg:%.2fms", t / 1e3, t / (step > 1 ? step : 1));
        return;
    }
    fprintf(f, " train_time:%.0fms", t);
    if (m->restarts && step < 13)
        fputs(" step_avg:nanms", f);
    else
        fprintf(f, " step_avg:%.2fms", t / (since > 1 ? since : 1));
}

static void put_val(FILE *f, const struct made *m, int trial, int step)
{
    double loss = made_loss(m, trial, step);
    if (m->layout == MADE_LLMC_OUTPUT) {
        fprintf(f, "val loss %.*f\n", m->digits, loss);
        return;
    }
    if (m->layout == MADE_NANOGPT) {
        fprintf(f, "step %d: train loss %.4f, val loss %.*f\n", step, loss + 0.1, m->digits, loss);
        return;
    }
    if (!m->timed) {
        fprintf(f, "s:%d tel:%.4f\n", step, loss);
        return;
    }
    fprintf(f, "step:%d/%d val_loss:%.*f", step, m->steps, m->digits, loss);
    put_time(f, m, step);
    fputs(m->layout == MADE_TRACK3 ? " mfu:3.06%\n" : "\n", f);
}

static void put_train(FILE *f, const struct made *m, int step)
{
    double loss = 3 + 7.0 * (m->steps - step) / m->steps;
    if (m->layout == MADE_LLMC_OUTPUT) {
        fprintf(f,
                "step %4d/%d | loss %7.6f (%s)| norm %6.4f (+0.10z)| lr 6.00e-04 | %.2f ms | "
                "42.6%% bf16 MFU | 171543 tok/s\n",
                step, m->steps, loss, step == 1 ? "+nanz" : "-0.25z", 0.5, m->time_ms / m->steps);
        return;
    }
    if (m->layout == MADE_NANOGPT) {
        fprintf(f, "iter %d: loss %.4f, time %.2fms, mfu 3.06%%\n", step - 1, loss,
                m->time_ms / m->steps);
        return;
    }
    if (!m->timed) { /* llm.c counts from 0 */
        fprintf(f, "s:%d trl:%.4f", step - 1, loss);
        fputs(m->layout == MADE_LLMC_NORM ? " lr:0.000600 norm:0.31\n" : "\n", f);
        return;
    }
    fprintf(f, "step:%d/%d", step, m->steps);
    if (m->restarts)
        fprintf(f, " train_loss:%.4f", loss);
    if (m->layout == MADE_OURS)
        fprintf(f, " train_loss:%.6f", loss);
    put_time(f, m, step);
    if (m->layout == MADE_TRACK3)
        fprintf(f, " step_time:%.2fms mfu:3.06%%", m->time_ms / m->steps);
    fputc('\n', f);
    if (m->layout == MADE_TRACK3 && step == 3)
        fputs("[rank0]:V0429 11:35:33.041 [1/1] Recompiling function update in muon.py:238\n", f);
}

char *made_text(struct made *m, size_t *n)
{
    char *text;
    FILE *f = open_memstream(&text, n);
    put_head(f, m);
    for (int trial = 1; trial <= m->trials; trial++) {
        put_val(f, m, trial, 0);
        for (int step = 1; step <= m->steps; step++) {
            put_train(f, m, step);
            if (step % m->every == 0 || step == m->steps)
                put_val(f, m, trial, step);
        }
    }
    if (m->layout == MADE_NANOGPT)
        put_train(f, m, m->steps + 1);
    if (m->layout == MADE_TODAY || m->layout == MADE_BARE)
        fputs("peak memory allocated: 29148 MiB reserved: 45120 MiB\n", f);
    if (m->restarts)
        fputs("peak memory consumption: 33756 MiB\n", f);
    if (m->layout == MADE_OURS)
        fputs("peak memory allocated: 59 MiB reserved: 59 MiB\n", f);
    fclose(f);
    return text;
}
