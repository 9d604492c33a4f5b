/* A command of nothing but its command line and its output, for base.bats.
 *   base_tool [--hold] [--repeat=N] [-o FILE] [INPUT]
 * copies INPUT, decompressed, to FILE or stdout. With --hold it waits for a signal before the
 * output is complete. */
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/file.h"
#include "base/opt.h"
#include "base/progress.h"
#include "base/zio.h"

static struct {
    const char *output;
    bool hold, force, progress;
    int64_t repeat;
    double x;
} o = { .output = "-", .repeat = 1 };

static const struct opt table[] = {
    { 'o', "output", "FILE", OPT_STR, &o.output, "write to FILE", 0, 0, NULL },
    { 'f', "force", NULL, OPT_FLAG, &o.force, "overwrite", 0, 0, NULL },
    { .kind = OPT_GROUP, .help = "For the test" },
    { 0, "hold", NULL, OPT_FLAG, &o.hold,
      "wait before the output is complete, with a text so long "
      "that it must be broken between two of its words",
      0, 0, NULL },
    { 0, "repeat", "N", OPT_I64, &o.repeat, "write everything N times", .lo = 1, .hi = 1e6 },
    { 0, "an-option-with-a-long-name", "ARG", OPT_F64, &o.x, "nothing", 0, 0, NULL },
    { 0, "progress", NULL, OPT_FLAG, &o.progress, "show progress", 0, 0, NULL },
    { 0, "hidden", NULL, OPT_FLAG, &o.hold, NULL, 0, 0, NULL },
    OPT_END
};
static const struct command cmd = { "base_tool", "[OPTION]... [FILE]", "Copies a file.", table };

static int copy(struct zreader *r, FILE *out)
{
    char buf[4096];
    size_t n;
    int rc;
    while (!(rc = zreader_read(r, buf, sizeof buf, &n)) && n > 0)
        for (int64_t i = 0; i < o.repeat; i++)
            fwrite(buf, 1, n, out);
    return rc;
}

static int run(const char *input)
{
    struct progress p;
    struct zreader *r;
    struct output out;
    progress_init(&p, o.progress ? PROGRESS_ON : PROGRESS_AUTO);
    progress_line(&p, "copying %s", input);
    output_cleanup_on_signal();
    int rc = zreader_open(&r, input);
    if (rc)
        return rc;
    if (!(rc = output_open(&out, o.output, o.force))) {
        rc = copy(r, out.f);
        if (o.hold) {
            fflush(out.f);
            fprintf(stderr, "holding\n");
            pause();
        }
        if (rc)
            output_abort(&out);
        else
            rc = output_commit(&out);
    }
    zreader_close(r);
    progress_end(&p);
    return rc;
}

static const char *extra(void) { return "nccl: none"; }

int main(int argc, char **argv)
{
    int first;
    opt_version_extra = extra;
    int rc = opt_parse(&cmd, argc, argv, &first);
    if (!rc && argc - first > 1)
        rc = err_set(GPT_USAGE, "expected one file, found %d", argc - first);
    if (!rc)
        rc = run(first < argc ? argv[first] : "-");
    return opt_exit(&cmd, rc);
}
