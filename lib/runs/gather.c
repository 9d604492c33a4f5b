/* gather.c - see gather.h. */
#include "runs/gather.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/grow.h"
#include "base/pool.h"
#include "runs/notecap.h"

enum { THREADS_MAX = 64 };

struct item {
    char *path;
    int group;
    bool from_folder;
};
struct items {
    struct item *v;
    int n;
};

static int add_item(struct items *t, char *path, int group, bool from_folder)
{
    if (!path)
        return err_memory();
    if (grow_one(&t->v, t->n, sizeof *t->v)) {
        free(path);
        return GPT_SYSTEM;
    }
    t->v[t->n++] = (struct item){ path, group, from_folder };
    return 0;
}

/* --- operands --- */

static int group_named(struct gather *g, const char *name, size_t n, int *index)
{
    for (int i = 0; i < g->n; i++)
        if (strlen(g->group[i].name) == n && !memcmp(g->group[i].name, name, n)) {
            *index = i;
            return 0;
        }
    if (grow_one(&g->group, g->n, sizeof *g->group))
        return GPT_SYSTEM;
    memset(&g->group[g->n], 0, sizeof *g->group);
    if (!(g->group[g->n].name = strndup(name, n)))
        return err_memory();
    g->group[g->n].operand = g->n;
    *index = g->n++;
    return 0;
}

static bool taken(const struct gather *g, const char *name, size_t n)
{
    for (int i = 0; i < g->n; i++)
        if (strlen(g->group[i].name) == n && !memcmp(g->group[i].name, name, n))
            return true;
    return false;
}

/* The last part of a path, without slashes behind it. */
static const char *last_part(const char *path, size_t *n)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    *n = end - start;
    return path + start;
}

/* NAME= is a name only where there is no file of the whole word's name. */
static int name_operand(struct gather *g, const char *operand, const char **path, int *group)
{
    const char *equals = strchr(operand, '=');
    struct stat st;
    if (equals && stat(operand, &st) != 0) {
        *path = equals + 1;
        if (equals == operand || !**path)
            return err_set(GPT_USAGE, "'%s': expected NAME=PATH", operand);
        return group_named(g, operand, (size_t)(equals - operand), group);
    }
    size_t n = strlen(operand);
    const char *name = !strcmp(operand, "-") ? "stdin" : last_part(operand, &n);
    *path = operand;
    if (!strcmp(operand, "-"))
        n = strlen(name);
    if (taken(g, name, n)) {
        name = operand;
        n = strlen(operand);
    }
    return group_named(g, name, n, group);
}

static bool ends_in(const char *name, size_t n, const char *suffix)
{
    size_t k = strlen(suffix);
    return n > k && !memcmp(name + n - k, suffix, k);
}

static bool is_log_name(const char *name)
{
    size_t n = strlen(name);
    if (ends_in(name, n, ".zst"))
        n -= 4;
    else if (ends_in(name, n, ".gz"))
        n -= 3;
    return *name != '.' && (ends_in(name, n, ".txt") || ends_in(name, n, ".log"));
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct item *)a)->path, ((const struct item *)b)->path);
}

/* The log of a run's folder, to be freed; NULL: the folder has none. */
static char *log_of(const char *folder)
{
    char *path = path_join(folder, "log.txt");
    struct stat st;
    if (path && stat(path, &st) == 0 && S_ISREG(st.st_mode))
        return path;
    free(path);
    return NULL;
}

static int add_entry(struct items *t, const char *folder, const char *name, int group)
{
    char *path = path_join(folder, name), *log;
    struct stat st;
    if (!path || *name == '.' || stat(path, &st) != 0) {
        free(path);
        return path ? 0 : err_memory();
    }
    if (!S_ISDIR(st.st_mode) && is_log_name(name))
        return add_item(t, path, group, true);
    log = S_ISDIR(st.st_mode) ? log_of(path) : NULL;
    free(path);
    return log ? add_item(t, log, group, true) : 0;
}

static int add_folder(struct items *t, const char *path, int group)
{
    char *log = log_of(path);
    if (log)
        return add_item(t, log, group, false);
    DIR *d = opendir(path);
    int before = t->n, rc = 0;
    if (!d)
        return err_sys("cannot open '%s'", path);
    for (struct dirent *e; !rc && (e = readdir(d));)
        rc = add_entry(t, path, e->d_name, group);
    closedir(d);
    if (!rc && t->n == before)
        rc = err_set(GPT_INPUT,
                     "%s: no runs in this folder (log.txt; or *.txt, *.log, also .zst or .gz, and "
                     "folders with a log.txt)",
                     path);
    if (!rc)
        qsort(t->v + before, (size_t)(t->n - before), sizeof *t->v, by_path);
    return rc;
}

/* Finds the log of the operand that is left to the caller. */
static int leave_operand(struct gather *g, const char *path, bool folder, int group)
{
    g->live = group;
    if (folder && !(g->live_path = log_of(path)))
        return err_set(GPT_INPUT,
                       "%s: no run to follow: expected a log, or a folder with a log.txt", path);
    if (!folder && !(g->live_path = strdup(path)))
        return err_memory();
    return 0;
}

static int add_operand(struct gather *g, struct items *t, const char *operand, const char *leave)
{
    const char *path;
    int group = 0, rc = name_operand(g, operand, &path, &group);
    struct stat st = { .st_mode = 0 };
    bool is_stdin = !rc && !strcmp(path, "-");
    if (rc)
        return rc;
    if (is_stdin && g->stdin_taken)
        return err_set(GPT_USAGE, "'-' is given twice");
    g->stdin_taken |= is_stdin;
    if (!is_stdin && stat(path, &st) != 0)
        return err_sys("cannot open '%s'", path);
    if (operand == leave)
        return leave_operand(g, path, S_ISDIR(st.st_mode), group);
    return S_ISDIR(st.st_mode) ? add_folder(t, path, group)
                               : add_item(t, strdup(path), group, false);
}

/* --- reading --- */

/* Workers take items in order, and add to the groups in order: that of item `turn` alone. */
struct queue {
    struct gather *g;
    const struct gather_options *o;
    const struct item *item;
    int n, next, turn, rc;
    char *message;
    pthread_mutex_t lock;
    pthread_cond_t turned;
};
struct worker {
    struct queue *queue;
    int at, runs;
    struct file_note {
        long line;
        char *text;
    } * note;
    int notes;
    struct notecap cap; /* of those that gather makes; logread has its own */
};

/* False when another has failed before this one's turn. */
static bool wait_turn(struct worker *w)
{
    struct queue *q = w->queue;
    pthread_mutex_lock(&q->lock);
    while (q->turn != w->at && !q->rc)
        pthread_cond_wait(&q->turned, &q->lock);
    bool ok = !q->rc;
    pthread_mutex_unlock(&q->lock);
    return ok;
}

static void take_note(void *arg, const char *path, long line, const char *text)
{
    struct worker *w = arg;
    (void)path;
    /* Out of memory: a note less. */
    if (!grow_one(&w->note, w->notes, sizeof *w->note) && (w->note[w->notes].text = strdup(text)))
        w->note[w->notes++].line = line;
}

static void cap_note(struct worker *w, const char *kind, long line, const char *text)
{
    if (notecap_take(&w->cap, kind, line))
        take_note(w, NULL, line, text);
}

/* The group of a run: that of its operand or, of several sets of lists in one text, its own. */
static int group_of(struct gather *g, int group, const struct run *r, struct group **out)
{
    int rc = 0;
    if (r->list && *r->list) {
        int operand = g->group[group].operand;
        if ((rc = group_named(g, r->list, strlen(r->list), &group)))
            return rc;
        if (!g->group[group].n)
            g->group[group].operand = operand;
    }
    *out = &g->group[group];
    return 0;
}

static int take_run(void *arg, const struct run *r)
{
    struct worker *w = arg;
    struct queue *q = w->queue;
    struct group *g;
    w->runs++;
    if (!wait_turn(w))
        return GPT_SYSTEM; /* another item has failed, and its code is returned */
    int rc = group_of(q->g, q->item[w->at].group, r, &g);
    if (rc)
        return rc;
    const struct run *same = group_same(g, r);
    if (same) {
        static const char kind[] = "the same run as in %.400s: it counts once";
        char text[512];
        snprintf(text, sizeof text, kind, same->path);
        cap_note(w, kind, r->first_line, text);
    }
    return group_add(g, &q->g->variants, r);
}

static const char *shown(const char *path) { return !strcmp(path, "-") ? "stdin" : path; }

static void read_item(struct worker *w)
{
    struct queue *q = w->queue;
    const struct item *t = &q->item[w->at];
    struct logsink sink = { .run = take_run, .note = take_note, .arg = w };
    char rest[64];
    w->runs = w->notes = 0;
    w->cap = (struct notecap){ 0 };
    int rc = logread_file(t->path, q->o->keep_texts, &sink);
    if (!rc && !w->runs && !t->from_folder)
        rc = err_set(GPT_INPUT, "%s: %s", shown(t->path),
                     w->notes ? w->note[0].text
                              : "no step lines, of which gpt-runlog(5) has the forms");
    for (int i = 0; notecap_rest(&w->cap, i, rest, sizeof rest); i++)
        take_note(w, NULL, 0, rest);
    bool mine = wait_turn(w);
    for (int i = 0; i < w->notes; i++) {
        if (mine && !rc)
            gather_note(q->g, shown(t->path), w->note[i].line, w->note[i].text);
        free(w->note[i].text);
    }
    pthread_mutex_lock(&q->lock);
    if (mine && rc) {
        q->rc = rc;
        q->message = strdup(err_message());
    }
    q->turn++;
    pthread_cond_broadcast(&q->turned);
    pthread_mutex_unlock(&q->lock);
}

static void *work(void *arg)
{
    struct worker w = { .queue = arg };
    for (;;) {
        pthread_mutex_lock(&w.queue->lock);
        w.at = w.queue->rc ? w.queue->n : w.queue->next++;
        pthread_mutex_unlock(&w.queue->lock);
        if (w.at >= w.queue->n)
            break;
        read_item(&w);
    }
    free(w.note);
    return NULL;
}

static int read_items(struct gather *g, const struct items *t, const struct gather_options *o)
{
    struct queue q = { .g = g, .o = o, .item = t->v, .n = t->n };
    pthread_t id[THREADS_MAX];
    int threads = o->threads > 0 ? o->threads : pool_processors(), started = 0;
    if (threads > t->n)
        threads = t->n;
    if (threads > THREADS_MAX)
        threads = THREADS_MAX;
    pthread_mutex_init(&q.lock, NULL);
    pthread_cond_init(&q.turned, NULL);
    while (started < threads - 1 && !pthread_create(&id[started], NULL, work, &q))
        started++;
    work(&q);
    while (started > 0)
        pthread_join(id[--started], NULL);
    pthread_cond_destroy(&q.turned);
    pthread_mutex_destroy(&q.lock);
    if (q.rc)
        err_set(q.rc, "%s", q.message ? q.message : "out of memory");
    free(q.message);
    return q.rc;
}

static int by_operand(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    return x->operand != y->operand ? (x->operand > y->operand) - (x->operand < y->operand)
                                    : (x->order > y->order) - (x->order < y->order);
}

/* Sets of lists take the place of their operand's group, which has no runs of its own then. */
static void place_sets(struct gather *g)
{
    int n = 0;
    for (int i = 0; i < g->n; i++)
        g->group[i].order = i;
    qsort(g->group, (size_t)g->n, sizeof *g->group, by_operand);
    for (int i = 0; i < g->n; i++) {
        bool stands_for =
            !g->group[i].n && i + 1 < g->n && g->group[i + 1].operand == g->group[i].operand;
        if (stands_for)
            group_release(&g->group[i]);
        else
            g->group[n++] = g->group[i];
    }
    g->n = n;
}

/* Whether runs of gpt-train are of one program is not known of logs before it said what it is. */
static void say_silent(struct gather *g)
{
    const struct run *first = NULL;
    int silent = 0, runs = 0;
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].n; k++) {
            const struct run *r = &g->group[i].run[k];
            bool says = !r->identity || r->fact[FACT_CODE] >= 0;
            first = first || says ? first : r;
            silent += !says;
            runs++;
        }
    if (!silent || runs < 2 || g->said_silent)
        return;
    char text[128];
    snprintf(text, sizeof text,
             silent > 1 ? "does not say which code ran, as %d more: older logs of gpt-train do not"
                        : "does not say which code ran: older logs of gpt-train do not",
             silent - 1);
    gather_note(g, first->path, 0, text);
    g->said_silent = true;
}

int gather_finish(struct gather *g, const struct gather_options *o)
{
    struct group_notes notes = { gather_note, g };
    int rc = 0;
    for (int i = 0; i < g->n && !rc; i++)
        rc = group_finish(&g->group[i], o->flags, o->at_step, &notes);
    if (!rc)
        say_silent(g);
    return rc;
}

int gather_read(struct gather *g, char *const *operands, int n, const struct gather_options *o)
{
    struct items t = { 0 };
    int rc = 0;
    *g = (struct gather){ .live = -1 };
    for (int i = 0; i < n && !rc; i++)
        rc = add_operand(g, &t, operands[i], o->leave);
    if (!rc)
        rc = read_items(g, &t, o);
    int operand = g->live >= 0 ? g->group[g->live].operand : -1;
    place_sets(g);
    for (int i = 0; i < g->n && !rc; i++) {
        if (g->group[i].operand == operand)
            g->live = i;
        else if (!g->group[i].n)
            rc = err_set(GPT_INPUT, "group '%s' has no runs", g->group[i].name);
    }
    if (!rc)
        rc = gather_finish(g, o);
    for (int i = 0; i < t.n; i++)
        free(t.v[i].path);
    free(t.v);
    return rc;
}

void gather_note(void *arg, const char *path, long line, const char *text)
{
    struct gather *g = arg;
    struct note *p =
        g->notes < GATHER_NOTES ? realloc(g->note, (size_t)(g->notes + 1) * sizeof *p) : NULL;
    if (!p) {
        g->more_notes++;
        return;
    }
    g->note = p;
    p[g->notes] = (struct note){ strdup(path), strdup(text), line };
    if (p[g->notes].path && p[g->notes].text) {
        g->notes++;
        return;
    }
    free(p[g->notes].path);
    free(p[g->notes].text);
    g->more_notes++;
}

void gather_release(struct gather *g)
{
    for (int i = 0; i < g->n; i++)
        group_release(&g->group[i]);
    for (int i = 0; i < g->notes; i++) {
        free(g->note[i].path);
        free(g->note[i].text);
    }
    free(g->group);
    free(g->note);
    free(g->live_path);
    variants_release(&g->variants);
    memset(g, 0, sizeof *g);
    g->live = -1;
}
