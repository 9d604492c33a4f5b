/* version.h - the project's version, and with it, one a line, those of the compiler and of zstd,
 * for --version. Thread-safe. */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H
#define GPT_VERSION "0.1.0"
const char *version_text(void);
#endif
