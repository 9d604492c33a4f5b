/* make_runlog - prints a made-up run log, for the tests of commands (runlog_made.h).
 *
 *     make_runlog LAYOUT [KEY=VALUE]...     loss, time_ms, steps, every, seed, source, gpu, driver
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runlog_made.h"

static int set(struct made *m, char *word)
{
    char *value = strchr(word, '=');
    if (!value)
        return 2;
    *value++ = '\0';
    if (!strcmp(word, "loss"))
        m->loss = atof(value);
    else if (!strcmp(word, "time_ms"))
        m->time_ms = atof(value);
    else if (!strcmp(word, "steps"))
        m->steps = atoi(value);
    else if (!strcmp(word, "every"))
        m->every = atoi(value);
    else if (!strcmp(word, "seed"))
        m->seed = atoi(value);
    else if (!strcmp(word, "source"))
        m->source = atoi(value);
    else if (!strcmp(word, "gpu"))
        m->gpu = value;
    else if (!strcmp(word, "driver"))
        m->driver = value;
    else
        return 2;
    return 0;
}

int main(int argc, char **argv)
{
    int layout = 0;
    size_t n;
    while (layout < MADE_LAYOUTS && argc > 1 && strcmp(argv[1], made_name[layout]))
        layout++;
    if (argc < 2 || layout == MADE_LAYOUTS)
        return 2;
    struct made m = made_default((enum made_layout)layout);
    for (int i = 2; i < argc; i++)
        if (set(&m, argv[i])) {
            fprintf(stderr, "make_runlog: '%s': expected KEY=VALUE\n", argv[i]);
            return 2;
        }
    char *text = made_text(&m, &n);
    fwrite(text, 1, n, stdout);
    free(text);
    return fclose(stdout) ? 4 : 0;
}
