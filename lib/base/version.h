/* version.h - what made an artifact: tool version and libraries.
 *
 * gpt_version is the project's version; version_text() also names compiler and
 * zstd, one a line, for --version and for log headers.
 */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H
#define GPT_VERSION "0.1.0"
const char *version_text(void);
#endif
