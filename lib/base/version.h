/* version.h - what program this is: the project's version, the commit that it was built from, a
 * hash of it. Thread-safe.
 *
 * A commit is "HASH, clean" or, where the sources were not those of the commit, "HASH, changed";
 * "unknown" without git, and in the tests' own programs. The hash is the linker's build ID (readelf
 * -n): equal programs have equal ones, and stripping does not change it.
 */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H
#define GPT_VERSION "0.1.0"

const char *version_commit(void);
const char *version_program(void); /* 40 hexadecimal digits; "unknown" */
/* For --version: the version, commit and hash, compiler and zstd, one a line. */
const char *version_text(void);
/* For what a program writes: "gpt-train 0.1.0, commit HASH, clean"; without the commit if it is
 * unknown. */
const char *version_tool(const char *program, char *text, int size);

#endif
