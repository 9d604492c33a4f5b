#include "inspect/verify.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/pool.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/st_index.h"
#include "checkpoint/tensors.h"
#include "inspect/expected.h"
#include "recipe/schedule.h"

enum { CHUNK = 1 << 20 };

struct audit {
    const struct ckpt *c;
    const struct ckpt_entry *entries;
    const struct ckpt_file *files;
    int nentries, nfiles;
    bool full;
    verify_report_fn *report;
    void *arg;
    int faults;
    pthread_mutex_t lock; /* report, faults */
};

static void PRINTF_LIKE(2, 3) fault(struct audit *a, const char *fmt, ...)
{
    char text[2048];
    va_list v;
    va_start(v, fmt);
    vsnprintf(text, sizeof text, fmt, v);
    va_end(v);
    pthread_mutex_lock(&a->lock);
    a->faults++;
    a->report(a->arg, text);
    pthread_mutex_unlock(&a->lock);
}

/* Data faults (GPT_INPUT) are reported and verification continues; other errors, of the system,
 * abort it. */
static int report_fault(struct audit *a, int rc)
{
    if (rc != GPT_INPUT)
        return rc;
    fault(a, "%s", err_message());
    return 0;
}

/* --- finite numbers --- */

static bool is_finite(enum dtype t, const unsigned char *p)
{
    uint32_t w = 0;
    uint64_t d;
    switch (t) {
    case DT_F64: memcpy(&d, p, 8); return (d >> 52 & 0x7ff) != 0x7ff;
    case DT_F32: memcpy(&w, p, 4); return (w & 0x7f800000u) != 0x7f800000u;
    case DT_BF16: memcpy(&w, p, 2); return (w & 0x7f80u) != 0x7f80u;
    case DT_F16: memcpy(&w, p, 2); return (w & 0x7c00u) != 0x7c00u;
    case DT_E4M3: return (*p & 0x7f) != 0x7f;
    case DT_E5M2: return (*p & 0x7c) != 0x7c;
    default: return true;
    }
}

/* Index of the first element that is not finite, or n. */
static uint64_t first_nonfinite(enum dtype t, const unsigned char *p, uint64_t n)
{
    size_t size = dtype_size(t);
    uint64_t i = 0;
    while (i < n && is_finite(t, p + i * size))
        i++;
    return i;
}

static void fault_nonfinite(struct audit *a, const char *file, const char *tensor, uint64_t element,
                            uint64_t offset)
{
    fault(a, "%s: tensor '%s': element %" PRIu64 " (byte %" PRIu64 " of its data) is not finite",
          file, tensor, element, offset);
}

/* --- a checkpoint --- */

struct piece_at {
    const struct ckpt_entry *e;
    int piece;
};
struct full_audit {
    struct audit *a;
    int file;
    bool hash_differs;
    struct piece_at *v;
    int n;
};

static int audit_piece(struct full_audit *f, int i)
{
    const struct ckpt_entry *e = f->v[i].e;
    struct ckpt_stream s;
    size_t size = dtype_size(e->dtype);
    uint64_t at = 0;
    unsigned char *buf = malloc(CHUNK);
    bool finite = true;
    int rc = buf ? ckpt_stream_open(&s, f->a->c, e, f->v[i].piece) : err_memory();
    while (!rc && s.left) {
        size_t n = s.left < CHUNK ? (size_t)s.left : CHUNK;
        rc = ckpt_stream_read(&s, buf, n);
        uint64_t bad = rc ? n / size : first_nonfinite(e->dtype, buf, n / size);
        if (finite && bad < n / size) {
            finite = false;
            fault_nonfinite(f->a, s.path, e->name,
                            (uint64_t)s.piece->begin * (e->unit_bytes / size) + at / size + bad,
                            at + bad * size);
        }
        at += n;
    }
    if (buf)
        ckpt_stream_close(&s);
    free(buf);
    return report_fault(f->a, rc);
}

/* Task 0 hashes the stored file, the others its pieces: run together, they read the disk once. */
static int audit_task(void *arg, int i)
{
    struct full_audit *f = arg;
    char found[33];
    if (i > 0)
        return audit_piece(f, i - 1);
    int rc = ckpt_file_hash(f->a->c, f->file, found);
    f->hash_differs = !rc && strcmp(found, f->a->files[f->file].hash);
    return report_fault(f->a, rc);
}

static int audit_file(struct audit *a, int file)
{
    struct full_audit f = { .a = a, .file = file };
    int room = 0, before = a->faults;
    for (int i = 0; i < a->nentries; i++)
        room += a->entries[i].npieces;
    if (!(f.v = malloc(((size_t)room + 1) * sizeof *f.v)))
        return err_memory();
    for (int i = 0; i < a->nentries; i++)
        for (int k = 0; k < a->entries[i].npieces; k++)
            if (a->entries[i].pieces[k].file == file)
                f.v[f.n++] = (struct piece_at){ &a->entries[i], k };
    int rc = parallel_for(f.n + 1, 0, audit_task, &f);
    free(f.v);
    if (!rc && f.hash_differs && a->faults == before)
        fault(a, "%s/%s: its XXH3 is not %s: damaged, in no tensor's data", ckpt_dir(a->c),
              a->files[file].name, a->files[file].hash);
    return rc;
}

/* True if the tensor t of a file is the piece p of e. */
static bool is_piece(const struct st_tensor *t, const struct ckpt_entry *e,
                     const struct ckpt_piece *p)
{
    bool same = t->dtype == e->dtype && t->rank == e->rank && t->shape[0] == (uint64_t)p->count &&
                t->bytes == e->unit_bytes * t->shape[0];
    for (int x = 1; same && x < e->rank; x++)
        same = t->shape[x] == (uint64_t)e->shape[x];
    return same;
}

/* The header of file i against what MANIFEST lists in it. */
static int audit_header(void *arg, int i)
{
    struct audit *a = arg;
    struct st_reader *r = NULL;
    size_t listed = 0;
    if (!strstr(a->files[i].name, ".safetensors"))
        return 0;
    char *path = path_join(ckpt_dir(a->c), a->files[i].name);
    int rc = path ? st_open(&r, path) : err_memory();
    for (int k = 0; !rc && k < a->nentries; k++)
        for (int p = 0; p < a->entries[k].npieces; p++) {
            const struct ckpt_entry *e = &a->entries[k];
            if (e->pieces[p].file != i)
                continue;
            const struct st_tensor *t = st_find(st_header(r), e->name);
            listed++;
            if (!t)
                fault(a, "%s: tensor '%s': MANIFEST lists it, but it is missing", path, e->name);
            else if (!is_piece(t, e, &e->pieces[p]))
                fault(a, "%s: tensor '%s': its type or shape is not as in MANIFEST", path, e->name);
        }
    if (!rc && st_header(r)->n != listed)
        fault(a, "%s: expected %zu tensors, as MANIFEST lists, found %zu", path, listed,
              st_header(r)->n);
    st_close(r);
    free(path);
    return report_fault(a, rc);
}

/* --- what the recipe expects --- */

static void shape_text(char *buf, size_t n, enum dtype t, int rank, const int64_t *shape)
{
    int at = snprintf(buf, n, "%s ", dtype_name(t));
    for (int i = 0; i < rank; i++)
        at += snprintf(buf + at, n - (size_t)at, "%s%" PRId64, i ? "x" : "", shape[i]);
}

static bool as_expected(const struct expected *e, const struct ckpt_entry *x)
{
    int64_t ranks = e->each_rank ? x->shape[0] / e->shape[0] : 1;
    return e->dtype == x->dtype && e->rank == x->rank && ranks > 0 &&
           x->shape[0] == ranks * e->shape[0] &&
           !memcmp(e->shape + 1, x->shape + 1, (size_t)(e->rank - 1) * sizeof *e->shape);
}

static int audit_expected(struct audit *a, const struct expected *e, int n)
{
    bool *known = calloc((size_t)a->nentries + 1, sizeof *known);
    char want[128], have[128], name[96];
    if (!known)
        return err_memory();
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s.%s", e[i].param, e[i].kind);
        const struct ckpt_entry *found = ckpt_find(a->c, name);
        if (found)
            known[found - a->entries] = true;
        if (found ? as_expected(&e[i], found) : e[i].optional)
            continue;
        shape_text(want, sizeof want, e[i].dtype, e[i].rank, e[i].shape);
        snprintf(have, sizeof have, "none");
        if (found)
            shape_text(have, sizeof have, found->dtype, found->rank, found->shape);
        fault(a, "%s: tensor '%s': the recipe expects %s, found %s", ckpt_dir(a->c), name, want,
              have);
    }
    for (int i = 0; i < a->nentries; i++)
        if (!known[i] && !text_ends(a->entries[i].name, ".scale") &&
            !text_ends(a->entries[i].name, ".scale_inv"))
            fault(a, "%s: tensor '%s': the recipe has none of that name", ckpt_dir(a->c),
                  a->entries[i].name);
    free(known);
    return 0;
}

static int audit_state(struct audit *a, const struct expected_state *s, int n)
{
    static const char *const optional[] = { "loader.round", "loader.token", "loader.piece",
                                            "loader.used",  "loader.bytes", "loader.repeat_from" };
    bool begun = false; /* training data, at a position that says nothing of other data */
    int rc = 0;
    for (int i = 0; !rc && i < n; i++) {
        int64_t value = 0;
        rc = report_fault(a, ckpt_state_i64(a->c, s[i].key, &value));
        begun |= !s[i].param && value && strcmp(s[i].key, "loader.step");
    }
    for (size_t i = 0; !rc && i < sizeof optional / sizeof *optional; i++) {
        int64_t value;
        if (ckpt_state(a->c, optional[i]))
            rc = report_fault(a, ckpt_state_i64(a->c, optional[i], &value));
    }
    if (!rc && begun && !ckpt_state(a->c, "loader.id"))
        fault(a, "%s/MANIFEST: a data position without 'state loader.id', the data that it is of",
              ckpt_dir(a->c));
    return rc;
}

static void audit_step(struct audit *a, const struct recipe *r)
{
    if (ckpt_info(a->c)->step > schedule_total(r))
        fault(a, "%s: step %" PRId64 ", but the recipe ends at %d", ckpt_dir(a->c),
              ckpt_info(a->c)->step, schedule_total(r));
}

/* Types and shapes are the recipe's, no tensor or line of state is missing, no tensor unknown. */
static int audit_model(struct audit *a)
{
    struct recipe *r;
    struct expected *e = NULL;
    struct expected_state *s = NULL;
    int n, rc = recipe_parse(&r, ckpt_dir(a->c), ckpt_info(a->c)->recipe, NULL, 0);
    if (rc) {
        fault(a, "recipe.txt: %s", err_message());
        return 0;
    }
    audit_step(a, r);
    if (!(rc = expected_tensors(r, &e, &n)))
        rc = audit_expected(a, e, n);
    if (!rc && !(rc = expected_state(r, &s, &n)))
        rc = audit_state(a, s, n);
    free(e);
    free(s);
    recipe_free(r);
    return rc;
}

static int audit_ckpt(struct audit *a, const char *dir)
{
    struct ckpt *c;
    int rc = ckpt_open(&c, dir);
    if (rc)
        return report_fault(a, rc);
    a->c = c;
    a->nentries = ckpt_entries(c, &a->entries);
    a->nfiles = ckpt_files(c, &a->files);
    rc = parallel_for(a->nfiles, 0, audit_header, a);
    if (!rc)
        rc = audit_model(a);
    for (int i = 0; !rc && a->full && i < a->nfiles; i++)
        rc = audit_file(a, i);
    ckpt_close(c);
    return rc;
}

/* --- a file --- */

static int audit_tensor(struct audit *a, const char *path, struct st_reader *r,
                        const struct st_tensor *t, unsigned char *buf)
{
    size_t size = dtype_size(t->dtype);
    bool skip = t->dtype == DT_NONE; /* one fault a tensor */
    for (uint64_t at = 0, n; at < t->bytes; at += n) {
        n = t->bytes - at < CHUNK ? t->bytes - at : CHUNK;
        int rc = st_read(r, t, at, buf, n);
        if (rc)
            return rc;
        uint64_t bad = skip ? 0 : first_nonfinite(t->dtype, buf, n / size);
        if (!skip && bad < n / size) {
            skip = true;
            fault_nonfinite(a, path, t->name, at / size + bad, at + bad * size);
        }
    }
    return 0;
}

static int audit_safetensors(struct audit *a, const char *path)
{
    struct st_reader *r;
    const struct st_tensor *t;
    int rc = st_open(&r, path);
    if (rc)
        return report_fault(a, rc);
    unsigned char *buf = malloc(CHUNK);
    if (!buf)
        rc = err_memory();
    while (!rc && a->full && (t = st_next(r)))
        rc = audit_tensor(a, path, r, t, buf);
    if (!rc && a->full)
        rc = st_finish(r);
    st_close(r);
    free(buf);
    return report_fault(a, rc);
}

/* Each file of an index, and whether both name the same tensors. */
static int audit_index(struct audit *a, const char *path)
{
    struct tensors *s;
    size_t held = 0;
    int rc = tensors_open(&s, path);
    if (rc)
        return report_fault(a, rc);
    for (int i = 0; !rc && i < tensors_files(s); i++) {
        struct st_reader *r;
        if (!(rc = st_open(&r, tensors_file(s, i)))) {
            held += st_header(r)->n;
            st_close(r);
            rc = audit_safetensors(a, tensors_file(s, i));
        }
    }
    if (!rc && held != (size_t)tensors_count(s))
        fault(a, "%s: weight_map: names %d tensors, its files hold %zu", path, tensors_count(s),
              held);
    tensors_close(s);
    return rc;
}

static int audit_file_of_tensors(struct audit *a, const char *path)
{
    bool index = false;
    int rc = strcmp(path, "-") ? st_index_detect(path, &index) : 0;
    if (rc)
        return report_fault(a, rc);
    return index ? audit_index(a, path) : audit_safetensors(a, path);
}

int verify_path(const char *path, bool full, verify_report_fn *report, void *arg, char **checked)
{
    struct audit a = { .full = full, .report = report, .arg = arg };
    struct stat st;
    char *dir = NULL;
    int rc = 0;
    pthread_mutex_init(&a.lock, NULL);
    if (strcmp(path, "-") && stat(path, &st))
        rc = err_sys("cannot open '%s'", path);
    else if (strcmp(path, "-") && S_ISDIR(st.st_mode))
        rc = audit_ckpt(&a, ckpt_at(path, &dir) ? path : dir);
    else
        rc = audit_file_of_tensors(&a, path);
    if (!rc && a.faults)
        rc = err_set(GPT_NO, "%s: %d fault%s", path, a.faults, a.faults > 1 ? "s" : "");
    *checked = rc ? NULL : strdup(dir ? dir : path);
    if (!rc && !*checked)
        rc = err_memory();
    free(dir);
    pthread_mutex_destroy(&a.lock);
    return rc;
}
