#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/grow.h"
#include "base/text.h"
#include "base/zio.h"

/* --- temporaries that a signal must remove --- */

/* A table and not a list: the handler may run between any two instructions. */
enum { TEMPORARIES_MAX = 256 };
static _Atomic(const char *) temporaries[TEMPORARIES_MAX];

void output_remember(const char *tmp)
{
    for (int i = 0; i < TEMPORARIES_MAX; i++) {
        const char *none = NULL;
        if (atomic_compare_exchange_strong(&temporaries[i], &none, tmp))
            return;
    }
    /* The table is full: a signal does not remove this one. */
}

void output_forget(const char *tmp)
{
    for (int i = 0; i < TEMPORARIES_MAX; i++) {
        const char *it = tmp;
        if (atomic_compare_exchange_strong(&temporaries[i], &it, NULL))
            return;
    }
}

/* Removes a directory and the files in it, with async-signal-safe calls only. Other threads may
 * still be creating files in it. */
static void remove_directory(const char *path)
{
    char buf[4096];
    for (int tries = 0; tries < 100 && rmdir(path) && errno == ENOTEMPTY; tries++) {
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (ssize_t n, at; fd >= 0 && (n = getdents64(fd, buf, sizeof buf)) > 0;)
            for (at = 0; at < n; at += ((struct dirent64 *)(buf + at))->d_reclen)
                unlinkat(fd, ((struct dirent64 *)(buf + at))->d_name, 0);
        close(fd);
    }
}

void output_end_by_signal(int sig)
{
    for (int i = 0; i < TEMPORARIES_MAX; i++) {
        const char *tmp = atomic_load(&temporaries[i]);
        if (tmp && unlink(tmp) && errno == EISDIR)
            remove_directory(tmp);
    }
    signal(sig, SIG_DFL);
    raise(sig);
}

void output_cleanup_on_signal(void)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction sa;
        sigaction(signals[i], NULL, &sa);
        if (sa.sa_handler == SIG_IGN) /* nohup stays nohup */
            continue;
        memset(&sa, 0, sizeof sa);
        sa.sa_handler = output_end_by_signal;
        sigaction(signals[i], &sa, NULL);
    }
}

/* --- outputs --- */

/* Creates path.PID.N.tmp. Signals are blocked until it is in the table, so that a handler
 * removes it. */
static int open_temporary(struct output *o)
{
    static atomic_uint serial;
    sigset_t all, old;
    int fd;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    do {
        unsigned n = atomic_fetch_add(&serial, 1);
        if (asprintf(&o->tmp, "%s.%ld.%u.tmp", o->path, (long)getpid(), n) < 0) {
            o->tmp = NULL;
            fd = -1;
            errno = ENOMEM;
            break;
        }
        fd = open(o->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0) {
            int saved = errno;
            free(o->tmp);
            o->tmp = NULL;
            errno = saved;
        } else {
            output_remember(o->tmp);
        }
    } while (fd < 0 && errno == EEXIST);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return fd;
}

int output_open(struct output *o, const char *path, bool force)
{
    struct stat st;
    int fd, rc;
    *o = (struct output){ .force = force };
    if (!strcmp(path, "-")) {
        o->f = stdout;
        return GPT_OK;
    }
    o->path = realpath(path, NULL);
    bool exists = !stat(path, &st); /* not o->path: a pipe has none */
    if (!o->path && !(o->path = strdup(path)))
        return err_memory();
    if (exists && S_ISDIR(st.st_mode)) {
        rc = err_set(GPT_SYSTEM, "cannot write '%s': it is a directory", path);
        goto fail;
    }
    if (exists && S_ISREG(st.st_mode) && !force) {
        rc = err_set(GPT_SYSTEM, "cannot write '%s': it exists (--force replaces it)", path);
        goto fail;
    }
    if (exists && !S_ISREG(st.st_mode))
        fd = open(path, O_WRONLY | O_CLOEXEC);
    else
        fd = open_temporary(o);
    if (fd < 0 || !(o->f = fdopen(fd, "w"))) {
        rc = err_sys("cannot open '%s' for writing", path);
        if (fd >= 0)
            close(fd);
        goto fail;
    }
    return GPT_OK;
fail:
    output_abort(o);
    return rc;
}

/* Gives the temporary its final name. Without `force` a file of that name that another process
 * has created meanwhile is not replaced. */
static int put_in_place(const struct output *o)
{
    if (o->force)
        return rename(o->tmp, o->path);
    if (!renameat2(AT_FDCWD, o->tmp, AT_FDCWD, o->path, RENAME_NOREPLACE))
        return 0;
    if (errno == EINVAL || errno == ENOSYS) /* a file system without RENAME_NOREPLACE */
        return rename(o->tmp, o->path);
    return -1;
}

/* Flushes f. Fails also for a write that failed before; errno is that of this attempt to write
 * the rest, where there is one. */
static int flush_checked(FILE *f, const char *name)
{
    const char *quote = f == stdout ? "" : "'";
    errno = 0;
    if (!fflush(f) && !ferror(f))
        return GPT_OK;
    return errno ? err_sys("cannot write %s%s%s", quote, name, quote)
                 : err_set(GPT_SYSTEM, "cannot write %s%s%s", quote, name, quote);
}

/* Makes the entry of path in its directory durable. */
static int sync_entry(const char *path)
{
    char *p = strdup(path);
    int rc = p ? file_sync_dir(dirname(p)) : err_memory();
    free(p);
    return rc;
}

int output_commit(struct output *o)
{
    const char *name = o->path ? o->path : "standard output";
    int rc = flush_checked(o->f, name);
    if (rc) {
        output_abort(o);
        return rc;
    }
    if (o->f == stdout) {
        o->f = NULL;
        return GPT_OK;
    }
    /* a pipe or a device has no disk to be synced to */
    bool synced = !fsync(fileno(o->f)) || errno == EINVAL || errno == ENOTSUP;
    bool closed = synced && !fclose(o->f);
    if (synced)
        o->f = NULL;
    if (!closed || (o->tmp && put_in_place(o))) {
        rc = err_sys("cannot write '%s'", name);
        output_abort(o);
        return rc;
    }
    if (o->tmp) {
        output_forget(o->tmp);
        free(o->tmp);
        o->tmp = NULL;
        rc = sync_entry(o->path);
    }
    output_abort(o); /* frees what is left */
    return rc;
}

void output_abort(struct output *o)
{
    if (o->f && o->f != stdout)
        fclose(o->f);
    if (o->tmp) {
        unlink(o->tmp);
        output_forget(o->tmp);
        free(o->tmp);
    }
    free(o->path);
    *o = (struct output){ 0 };
}

/* --- whole files, directories --- */

int file_read(const char *path, size_t max, char **data, size_t *n)
{
    struct zreader *z;
    char *buf = NULL;
    size_t used = 0, room = 0, got = 1;
    int rc = zreader_open(&z, path);
    if (rc)
        return rc;
    while (!rc && got) {
        if (used + 1 >= room && (rc = grow_to(&buf, &room, used + 4096, 1)))
            break;
        rc = zreader_read(z, buf + used, room - 1 - used, &got);
        used += got;
        if (!rc && max && used > max)
            rc = err_set(GPT_INPUT, "'%s': expected at most %zu bytes, found more", path, max);
    }
    zreader_close(z);
    if (rc) {
        free(buf);
        return rc;
    }
    buf[used] = '\0';
    *data = buf;
    *n = used;
    return GPT_OK;
}

int file_take_text(const char *path, char *data, size_t *n)
{
    if (*n >= 4 && (!memcmp(data, "\xff\xfe", 2) || !memcmp(data, "\xfe\xff", 2) ||
                    !memcmp(data, "\0\0\xfe\xff", 4)))
        return err_set(
            GPT_INPUT,
            "'%s': expected UTF-8, found UTF-16 or UTF-32: 'iconv -f UTF-16 -t UTF-8' makes "
            "UTF-8 of it",
            path);
    *n = text_plain_lines(data, *n);
    data[*n] = '\0';
    return GPT_OK;
}

int file_read_text(const char *path, size_t max, char **data, size_t *n)
{
    int rc = file_read(path, max, data, n);
    if (!rc && (rc = file_take_text(path, *data, n))) {
        free(*data);
        *data = NULL;
    }
    return rc;
}

int file_mkdirs(const char *path)
{
    if (!strcmp(path, "-"))
        return err_set(GPT_USAGE, "'-': expected a directory, which standard output is not");
    char *p = strdup(path);
    if (!p)
        return err_memory();
    int rc = GPT_OK;
    for (char *s = p + 1; *p && !rc; s++) {
        char c = *s;
        if (c != '/' && c != '\0')
            continue;
        *s = '\0';
        struct stat st;
        if (!mkdir(p, 0777)) {
            rc = sync_entry(p);
        } else {
            int saved = errno;
            if (stat(p, &st) || !S_ISDIR(st.st_mode)) {
                errno = saved;
                rc = err_sys("cannot make directory '%s'", p);
            }
        }
        *s = c;
        if (!c)
            break;
    }
    free(p);
    return rc;
}

/* Makes the directory t->path, or, unique, one of another name in place of the X at its end. */
static int make_directory(struct temporary_dir *t, bool unique)
{
    sigset_t all, old;
    if (!t->path)
        return err_memory();
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    bool made = unique ? mkdtemp(t->path) != NULL : !mkdir(t->path, 0777);
    int rc = made ? GPT_OK : err_sys("cannot make directory '%s'", t->path);
    if (!rc)
        output_remember(t->path);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        temporary_dir_keep(t);
    return rc;
}

int temporary_dir_make(struct temporary_dir *t, const char *path)
{
    t->path = strdup(path);
    return make_directory(t, false);
}

int temporary_dir_new(struct temporary_dir *t)
{
    t->path = path_join(temporary_dir(), "gpt.XXXXXX");
    return make_directory(t, true);
}

void temporary_dir_keep(struct temporary_dir *t)
{
    if (t->path)
        output_forget(t->path);
    free(t->path);
    t->path = NULL;
}

void temporary_dir_remove(struct temporary_dir *t)
{
    if (t->path)
        remove_directory(t->path);
    temporary_dir_keep(t);
}

int file_sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_sys("cannot open directory '%s'", path);
    int rc = GPT_OK;
    if (fsync(fd) && errno != EINVAL && errno != ENOTSUP)
        rc = err_sys("cannot sync directory '%s'", path);
    close(fd);
    return rc;
}

const char *temporary_dir(void)
{
    const char *dir = getenv("TMPDIR");
    return dir && *dir ? dir : "/tmp";
}

int file_unnamed(const char *dir, int *fd)
{
    char *path;
    if ((*fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) >= 0)
        return GPT_OK;
    if (!(path = path_join(dir, "unnamed.XXXXXX")))
        return err_memory();
    int rc = GPT_OK;
    if ((*fd = mkostemp(path, O_CLOEXEC)) < 0) /* a file system without O_TMPFILE */
        rc = err_sys("cannot open a temporary file in '%s'", dir);
    else
        unlink(path);
    free(path);
    return rc;
}

/* Writes what z holds to fd. */
static int copy_to(struct zreader *z, int fd)
{
    char buf[1 << 16];
    size_t got = 1;
    int rc = 0;
    while (!rc && !(rc = zreader_read(z, buf, sizeof buf, &got)) && got)
        for (size_t done = 0; !rc && done < got;) {
            ssize_t k = write(fd, buf + done, got - done);
            if (k < 0 && errno != EINTR)
                rc = err_sys("cannot write a temporary file in '%s'", temporary_dir());
            done += k < 0 ? 0 : (size_t)k;
        }
    return rc;
}

int file_spool_stdin(const char **path)
{
    struct zreader *z = NULL;
    int fd, rc = file_unnamed(temporary_dir(), &fd);
    if (rc)
        return rc;
    if (!(rc = zreader_open(&z, "-")))
        rc = copy_to(z, fd);
    zreader_close(z);
    if (!rc && dup2(fd, STDIN_FILENO) < 0)
        rc = err_sys("cannot replace standard input");
    close(fd);
    *path = "/dev/stdin";
    return rc;
}

char *path_join(const char *dir, const char *name)
{
    char *path;
    size_t n = strlen(dir);
    const char *slash = n && dir[n - 1] != '/' ? "/" : "";
    return asprintf(&path, "%s%s%s", dir, slash, name) < 0 ? NULL : path;
}

bool file_is_in(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    bool is = path && !access(path, F_OK);
    free(path);
    return is;
}

bool file_close(FILE *f)
{
    bool failed = ferror(f);
    return !fclose(f) && !failed;
}

int stdout_close(void)
{
    int rc = flush_checked(stdout, "standard output");
    /* A descriptor that was closed at the start is an error only if something was written to it. */
    if (fclose(stdout) && !rc && errno != EBADF)
        rc = err_sys("cannot write standard output");
    return rc;
}
