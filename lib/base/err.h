/* err.h - return codes and the one message that goes with them.
 *
 * Library functions return a code from enum gpt_code and leave one message in
 * a thread-local buffer; only cmd/ prints it and exits. The codes are the exit
 * codes of every command.
 *
 *     if (n < want)
 *         return err_set(GPT_INPUT, "%s: offset %lld: expected %d bytes, found %d", ...);
 *     ...
 *     if ((rc = shard_open(&s, path)))
 *         return err_prefix("batch %d", i);      // keeps the code
 *
 * Threads: the buffer belongs to the calling thread. A thread that must hand
 * its failure to another copies err_message() into memory of its own and the
 * other calls err_set() with it.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

enum gpt_code {
    GPT_OK = 0,
    GPT_NO = 1, /* a negative answer: differs, invalid, not a record */
    GPT_USAGE = 2, /* the command line */
    GPT_INPUT = 3, /* what was read is not what it must be */
    GPT_SYSTEM = 4, /* I/O, memory, threads */
    GPT_DEVICE = 5, /* GPU or communicator */
};

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

/* Sets code and message of this thread; returns code. */
int err_set(int code, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Does err_set(GPT_SYSTEM, ...), with ": " and strerror(errno) appended. */
int err_sys(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* Puts "prefix: " before the present message; returns the present code. */
int err_prefix(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* GPT_SYSTEM, "out of memory". */
int err_memory(void);

/* Last code and message of this thread; "" and GPT_OK when there was none. */
int err_code(void);
const char *err_message(void);
void err_clear(void);

#endif
