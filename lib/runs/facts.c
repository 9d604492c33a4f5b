/* facts.c - see facts.h. */
#include "runs/facts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"
#include "base/text.h"
#include "runs/run.h"
#include "runs/stepline.h"

const char *const fact_name[FACTS] = { "source", "recipe",      "data", "gpu",
                                       "driver", "environment", "code" };

enum { LINE_MIN = 80, SOURCE_LINES = 2 };
enum {
    E_TOOL,
    E_COMMIT,
    E_PROGRAM,
    E_PYTHON,
    E_PYTORCH,
    E_TRITON,
    E_DRIVER,
    E_CUDA,
    E_RUNTIME,
    E_NCCL,
    E_GPU,
    E_DEVICE,
    E_RANKS,
    E_DATA,
    E_TRAIN_DATA,
    E_VAL_DATA
};
static const char *const env_name[ENV_KEYS] = {
    [E_TOOL] = "tool",
    [E_COMMIT] = "commit",
    [E_PROGRAM] = "program",
    [E_PYTHON] = "python",
    [E_PYTORCH] = "pytorch",
    [E_TRITON] = "triton",
    [E_DRIVER] = "driver",
    [E_CUDA] = "cuda of the driver",
    [E_RUNTIME] = "cuda",
    [E_NCCL] = "nccl",
    [E_GPU] = "gpu",
    [E_DEVICE] = "device",
    [E_RANKS] = "ranks",
    [E_DATA] = "data",
    [E_TRAIN_DATA] = "training data",
    [E_VAL_DATA] = "validation data",
};

int facts_init(struct facts *f, bool keep)
{
    memset(f, 0, sizeof *f);
    f->keep = keep;
    f->seed = -1;
    return xxh_init(&f->xxh);
}

static void text_free(struct fact_text *t)
{
    free(t->text);
    *t = (struct fact_text){ .n = 0 };
}

void facts_release(struct facts *f)
{
    for (int i = 0; i < FACTS; i++)
        text_free(&f->of[i]);
    text_free(&f->section);
    xxh_release(&f->xxh);
    memset(f, 0, sizeof *f);
}

static void text_add(struct facts *f, struct fact_text *t, const char *s, size_t n)
{
    if (t->cut || !n)
        return;
    if (t->n + n > FACT_TEXT_MAX) {
        n = FACT_TEXT_MAX - t->n;
        t->cut = true;
    }
    if (grow_to(&t->text, &t->room, t->n + n, 1)) {
        f->failed = true;
        return;
    }
    memcpy(t->text + t->n, s, n);
    t->n += n;
}

bool facts_is_rule(const char *line, size_t n)
{
    if (n < LINE_MIN)
        return false;
    for (size_t i = 0; i < n; i++)
        if (line[i] != '=')
            return false;
    return true;
}

/* --- single lines --- */

static bool starts(const char *line, size_t n, const char *word)
{
    size_t k = strlen(word);
    return n >= k && !memcmp(line, word, k);
}

static void set_env(struct facts *f, int key, const char *s, size_t n)
{
    while (n && (*s == ' ' || *s == '\t'))
        s++, n--;
    while (n && (s[n - 1] == ' ' || s[n - 1] == '\t'))
        n--;
    if (n >= ENV_VALUE)
        n = ENV_VALUE - 1;
    memcpy(f->env[key], s, n);
    f->env[key][n] = '\0';
    for (size_t i = 0; i < n; i++) /* a NUL in the log does not end the value */
        if (!f->env[key][i])
            f->env[key][i] = '?';
}

/* What follows `word` in a line that begins with it. */
static void set_env_of(struct facts *f, int key, const char *line, size_t n, const char *word)
{
    if (starts(line, n, word))
        set_env(f, key, line + strlen(word), n - strlen(word));
}

/* From `word` in the line on, as far as a double blank or '|'. */
static void set_env_after(struct facts *f, int key, const char *line, size_t n, const char *word)
{
    const char *at = memmem(line, n, word, strlen(word));
    if (!at)
        return;
    at += strlen(word);
    const char *end = line + n, *p = at;
    while (p < end && *p == ' ')
        p++;
    while (p < end && *p != '|' && !(p + 1 < end && p[0] == ' ' && p[1] == ' '))
        p++;
    set_env(f, key, at, (size_t)(p - at));
}

static void fresh_env(struct facts *f)
{
    if (!f->stale_env)
        return;
    memset(f->env, 0, sizeof f->env);
    f->gpus = 0;
    f->stale_env = false;
}

/* Behind `before`, as in `Running on device_name=NVIDIA H100 80GB HBM3 with world_size=8`; returns where that
 * begins, else n. */
static size_t device_line(struct facts *f, const char *line, size_t n, const char *before)
{
    const char *with = memmem(line, n, " with world_size", 16);
    const char *name = with ? memmem(line, (size_t)(with - line), before, strlen(before)) : NULL;
    if (!name || with + 17 >= line + n)
        return n;
    size_t at = (size_t)(name - line);
    name += strlen(before);
    char text[ENV_VALUE];
    const char *count = with + 17;
    snprintf(text, sizeof text, "%.*s x %.*s", (int)(line + n - count), count, (int)(with - name),
             name);
    if (!f->gpus)
        set_env(f, E_GPU, text, strlen(text));
    return at;
}

static void running_line(struct facts *f, const char *line, size_t n)
{
    fresh_env(f);
    set_env_of(f, E_PYTHON, line, n, "Running Python ");
    if (starts(line, n, "Running PyTorch ")) /* track 3 has the device behind the version */
        set_env_of(f, E_PYTORCH, line, device_line(f, line, n, " on "), "Running PyTorch ");
    set_env_of(f, E_PYTORCH, line, n, "Running pytorch ");
    set_env_of(f, E_TRITON, line, n, "Running Triton version ");
    if (starts(line, n, "Running on device_name="))
        device_line(f, line, n, "device_name=");
}

/* nvidia-smi: `|   0  NVIDIA H100 80GB HBM3          On  | 00000000:61:00.0 Off | ...` */
static void smi_line(struct facts *f, const char *line, size_t n)
{
    if (memmem(line, n, "NVIDIA-SMI", 10)) {
        fresh_env(f);
        set_env_after(f, E_DRIVER, line, n, "Driver Version:");
        set_env_after(f, E_CUDA, line, n, "CUDA Version:");
        return;
    }
    size_t i = 1, digits = 0;
    while (i < n && line[i] == ' ')
        i++;
    for (; i < n && line[i] >= '0' && line[i] <= '9'; i++)
        digits++;
    if (!digits || i + 2 > n || line[i] != ' ' || line[i + 1] != ' ')
        return;
    while (i < n && line[i] == ' ')
        i++;
    size_t end = i;
    while (end + 1 < n && !(line[end] == ' ' && line[end + 1] == ' ') && line[end] != '|')
        end++;
    /* the persistence mode behind the name tells this table from that of processes */
    size_t mode = end;
    while (mode < n && line[mode] == ' ')
        mode++;
    if (end == i ||
        !(starts(line + mode, n - mode, "On ") || starts(line + mode, n - mode, "Off ")))
        return;
    char text[ENV_VALUE], *present = f->env[E_GPU], *name = strstr(present, " x ");
    int k;
    f->gpus++;
    bool same = name && strlen(name + 3) == end - i && !memcmp(name + 3, line + i, end - i);
    if (f->gpus > 1 && !same) /* several models in one machine */
        k = snprintf(text, sizeof text, "%s + %.*s", present, (int)(end - i), line + i);
    else
        k = snprintf(text, sizeof text, "%d x %.*s", f->gpus, (int)(end - i), line + i);
    set_env(f, E_GPU, text, k < (int)sizeof text ? (size_t)k : sizeof text - 1);
}

/* Returns the number that `~149504 of 3686400 tokens` begins with; 0: there is none. */
static double first_number(const char *s, size_t n)
{
    double x = 0;
    size_t i = n && *s == '~';
    for (; i < n && s[i] >= '0' && s[i] <= '9'; i++)
        x = 10 * x + (s[i] - '0');
    return x;
}

/* Our own header: `key: value` from `tool:` to the first rule. */
static void header_line(struct facts *f, const char *line, size_t n)
{
    bool recipe = starts(line, n, "recipe: ");
    f->record |= starts(line, n, "recipe: record-");
    for (size_t i = 0; i < n && (recipe || starts(line, n, "data: ")); i++)
        f->identity = run_mix(f->identity, line[i]);
    set_env_of(f, E_TOOL, line, n, "tool: ");
    set_env_of(f, E_COMMIT, line, n, "commit: ");
    set_env_of(f, E_PROGRAM, line, n, "program: ");
    set_env_of(f, E_RUNTIME, line, n, "cuda: ");
    set_env_of(f, E_NCCL, line, n, "nccl: ");
    set_env_of(f, E_DRIVER, line, n, "driver: ");
    set_env_of(f, E_DEVICE, line, n, "device: ");
    set_env_of(f, E_RANKS, line, n, "ranks: ");
    set_env_of(f, E_DATA, line, n, "data: ");
    set_env_of(f, E_VAL_DATA, line, n, "validation data: ");
    if (starts(line, n, "pass: trains on "))
        f->pass_tokens = first_number(line + 16, n - 16);
    if (starts(line, n, "resumed: step ")) {
        int64_t step = 0;
        for (size_t k = 14; k < n && line[k] >= '0' && line[k] <= '9' && step <= STEP_MAX; k++)
            step = 10 * step + (line[k] - '0');
        f->resumed = step <= STEP_MAX ? (int)step : 0;
    }
}

static bool is_code(const char *line, size_t n)
{
    static const char *const words[] = { "import ", "from ",      "def ",     "class ",
                                         "@torch",  "with open(", "#include " };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (starts(line, n, words[i]))
            return true;
    return false;
}

static void forget_texts(struct facts *f)
{
    for (int i = 0; i < FACTS; i++)
        text_free(&f->of[i]);
    f->stale_text = f->own = f->record = false;
    f->resumed = 0;
    f->pass_tokens = 0;
    f->identity = 0;
    f->seed = -1;
}

/* --- sections --- */

void facts_piece(struct facts *f, const char *text, size_t n)
{
    xxh_add(&f->xxh, text, n);
    if (f->keep || (f->own && f->sections == 1)) /* pace.h reads the recipe */
        text_add(f, &f->section, text, n);
}

/* A number as recipes write it, with a suffix or as a fraction. */
static bool number_of(const char *text, double *x)
{
    char *end;
    *x = strtod(text, &end);
    if (end == text || !isfinite(*x))
        return false;
    if (*end == '/' && strchr("+-.0123456789", end[1]) && end[1]) {
        double below = strtod(end + 1, &end);
        *x /= below;
        return !*end && isfinite(*x);
    }
    static const char suffixes[] = "kMG";
    const char *s = *end ? strchr(suffixes, *end) : NULL;
    for (long k = s ? s - suffixes : -1; k >= 0; k--)
        *x *= end[1] == 'i' ? 1024 : 1000;
    return !end[s ? 1 + (end[1] == 'i') : 0];
}

/* A line of a recipe: its words, numbers among them in one form; the seed is no difference. */
static void recipe_line(struct facts *f, const char *line, size_t n)
{
    static const char apart[] = " \t,>:|=[]#";
    if (starts(line, n, "seed = ")) {
        f->seed = (int64_t)first_number(line + 7, n - 7);
        return;
    }
    for (size_t i = 0, k; i < n; i += k) {
        char text[48], same[32];
        double x;
        for (k = 0; i + k < n && !(line[i + k] && strchr(apart, line[i + k]));)
            k++;
        if (k && k < sizeof text && strchr("+-.0123456789", line[i]) && line[i]) {
            snprintf(text, sizeof text, "%.*s", (int)k, line + i);
            if (strlen(text) == k && number_of(text, &x)) {
                bool whole = x == rint(x) && fabs(x) < 1e15;
                facts_piece(f, same,
                            (size_t)snprintf(same, sizeof same, whole ? "%.0f" : "%.15g", x));
                continue;
            }
        }
        k += k == 0;
        facts_piece(f, line + i, k);
    }
}

void facts_line(struct facts *f, const char *line, size_t n)
{
    if (starts(line, n, "peak memory "))
        return;
    if (f->lines == 0 && starts(line, n, "tool: gpt-train")) {
        forget_texts(f);
        f->stale_env = true;
        fresh_env(f);
        f->own = true;
        f->sections = 0;
    }
    if (f->own && f->sections == 0)
        header_line(f, line, n);
    else if (starts(line, n, "Running "))
        running_line(f, line, n);
    else if (n && *line == '|')
        smi_line(f, line, n);
    else {
        set_env_of(f, E_TRAIN_DATA, line, n, "Training DataLoader: ");
        set_env_of(f, E_VAL_DATA, line, n, "Validation DataLoader: ");
    }
    f->lines++;
    f->code_lines += is_code(line, n);
    if (f->own && f->sections == 1)
        recipe_line(f, line, n);
    else
        facts_piece(f, line, n);
    if (!f->own || f->sections != 1 || !starts(line, n, "seed = "))
        facts_piece(f, "\n", 1);
}

bool facts_in_source(const struct facts *f) { return !f->own && f->code_lines >= SOURCE_LINES; }

static void start_section(struct facts *f)
{
    xxh_release(&f->xxh);
    f->failed |= xxh_init(&f->xxh) != 0;
    f->section.n = 0;
    f->section.cut = false;
    f->lines = f->code_lines = 0;
}

void facts_drop_section(struct facts *f)
{
    if (f->lines)
        start_section(f);
}

/* Program text that holds a rule of its own is two sections and one text. */
static void file_under(struct facts *f, enum fact kind)
{
    struct fact_text *t = &f->of[kind];
    char hash[33], both[66];
    xxh_hex(&f->xxh, hash);
    if (*t->hash) {
        int n = snprintf(both, sizeof both, "%s%s", t->hash, hash);
        xxh_hex_of(both, (size_t)n, hash);
    }
    memcpy(t->hash, hash, sizeof hash);
    text_add(f, t, f->section.text, f->section.n);
    t->cut |= f->section.cut;
}

void facts_section(struct facts *f)
{
    if (f->own && f->sections == 1) {
        file_under(f, FACT_RECIPE);
    } else if (facts_in_source(f)) {
        if (f->stale_text)
            forget_texts(f);
        file_under(f, FACT_SOURCE);
    }
    f->sections++;
    start_section(f);
}

void facts_next_log(struct facts *f)
{
    f->stale_text = f->stale_env = true;
    f->sections = 0;
}

static void set_text(struct facts *f, enum fact kind, const char *s)
{
    struct fact_text *t = &f->of[kind];
    text_free(t);
    if (!*s)
        return;
    xxh_hex_of(s, strlen(s), t->hash);
    text_add(f, t, s, strlen(s)); /* short: always kept */
}

/* Returns the end of the text. */
static char *list_env(const struct facts *f, int from, int to, char *text)
{
    *text = '\0';
    for (int i = from; i < to; i++)
        if (*f->env[i])
            text += sprintf(text, "%s: %s\n", env_name[i], f->env[i]);
    return text;
}

int facts_finish(struct facts *f)
{
    char text[ENV_KEYS * (ENV_VALUE + 32)];
    if (!*f->env[E_GPU] && *f->env[E_DEVICE]) {
        snprintf(text, sizeof text, "%s x %s", f->env[E_RANKS], f->env[E_DEVICE]);
        set_text(f, FACT_GPU, text);
    } else {
        set_text(f, FACT_GPU, f->env[E_GPU]);
    }
    set_text(f, FACT_DRIVER, f->env[E_DRIVER]);
    list_env(f, E_DATA, ENV_KEYS, text);
    set_text(f, FACT_DATA, text);
    list_env(f, E_PROGRAM, E_DATA, list_env(f, 0, E_COMMIT, text));
    set_text(f, FACT_ENVIRONMENT, text);
    bool clean = text_ends(f->env[E_COMMIT], ", clean");
    list_env(f, E_COMMIT, clean ? E_PROGRAM : E_PYTHON, text);
    set_text(f, FACT_CODE, text);
    return f->failed ? err_memory() : 0;
}
