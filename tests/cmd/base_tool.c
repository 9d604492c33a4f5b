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
    OPT_TEXT('o', "output", "FILE", &o.output, "write to FILE"),
    OPT_SWITCH('f', "force", &o.force, "overwrite"),
    { .kind = OPT_GROUP, .help = "For the test" },
    OPT_SWITCH(0, "hold", &o.hold,
               "wait before the output is complete, with a text so long "
               "that it must be broken between two of its words"),
    OPT_NUMBER("repeat", "N", &o.repeat, 1, 1e6, "write everything N times"),
    OPT_REAL("an-option-with-a-long-name", "ARG", &o.x, 0, 0, "nothing"),
    OPT_SWITCH(0, "progress", &o.progress, "show progress"),
    OPT_SWITCH(0, "hidden", &o.hold, NULL),
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
