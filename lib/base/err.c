#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct {
    int code;
    char text[2048];
} last;

int err_set(int code, const char *fmt, ...)
{
    char text[sizeof last.text]; /* an argument may be the old message */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    strcpy(last.text, text);
    last.code = code;
    return code;
}

int err_sys(const char *fmt, ...)
{
    int saved = errno;
    char text[sizeof last.text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    const char *why = strerrordesc_np(saved); /* not strerror: threads */
    return err_set(GPT_SYSTEM, "%s: %s", text, why ? why : "unknown error");
}

int err_prefix(const char *fmt, ...)
{
    char prefix[sizeof last.text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    return err_set(last.code, "%s: %s", prefix, last.text);
}

int err_memory(void) { return err_set(GPT_SYSTEM, "out of memory"); }

int err_code(void) { return last.code; }

const char *err_message(void) { return last.text; }

void err_clear(void)
{
    last.code = GPT_OK;
    last.text[0] = '\0';
}
