#include "base/progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static _Atomic int shown; /* width of the line on stderr */

double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

char *format_duration(char *buf, double seconds)
{
    if (!(seconds >= 0 && seconds < 1e9)) { /* also NaN: not known yet */
        snprintf(buf, 16, "-:--");
        return buf;
    }
    unsigned s = (unsigned)lround(seconds);
    if (s >= 3600)
        snprintf(buf, 16, "%u:%02u:%02u", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, 16, "%u:%02u", s / 60, s % 60);
    return buf;
}

bool terminal_able(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && term && term[0] && strcmp(term, "dumb");
}

void progress_init(struct progress *p, enum progress_mode mode)
{
    p->on = mode == PROGRESS_ON || (mode == PROGRESS_AUTO && terminal_able(STDERR_FILENO));
    p->last = -INFINITY;
    p->width = 0;
}

/* Columns that a line may take without being broken; 0: no terminal. */
static int columns(void)
{
    struct winsize w;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) || w.ws_col < 2 ? 0 : w.ws_col - 1;
}

void progress_line(struct progress *p, const char *fmt, ...)
{
    if (!p->on)
        return;
    double now = now_seconds();
    if (now - p->last < 1.0 / 6)
        return;
    p->last = now;
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    int most = columns();
    if (most && most < (int)sizeof text)
        text[most] = 0;
    if (most && p->width > most) /* the terminal has become narrower */
        p->width = most;
    /* Blanks overwrite the rest of a longer line; no escape code is needed. The cursor returns
     * to column 1, so that output of another program does not follow the line. */
    p->width = fprintf(stderr, "\r%-*s\r", p->width, text) - 2;
    fflush(stderr);
    shown = p->width;
}

void progress_wipe(void)
{
    int width = atomic_exchange(&shown, 0);
    if (width > 0) {
        fprintf(stderr, "\r%*s\r", width, "");
        fflush(stderr);
    }
}

void progress_end(struct progress *p)
{
    if (p->on)
        progress_wipe();
    p->width = 0;
}
