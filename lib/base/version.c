#include "base/version.h"

#include <pthread.h>
#include <stdio.h>
#include <zstd.h>

static char text[256];

static void make_text(void)
{
#ifdef __clang__
    const char *compiler = "clang " __clang_version__;
#else
    const char *compiler = "gcc " __VERSION__;
#endif
    snprintf(text, sizeof text, GPT_VERSION "\ncompiler: %s\nzstd: %s\n", compiler,
             ZSTD_versionString());
}

const char *version_text(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_text);
    return text;
}
