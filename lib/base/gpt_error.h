/* gpt_error.h - what functions of libgpt return, for programs outside of this tree.
 *
 *     if (gpt_shard_open(&s, path, 0, 50256))
 *         fprintf(stderr, "%s\n", gpt_error());
 *
 * Threads: the message belongs to the calling thread.
 */
#ifndef GPT_ERROR_H
#define GPT_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

/* Returned by functions that can fail: 0, or one of these, 1 to 5 (the exit codes of the commands). */
#define GPT_ERROR_USAGE 2 /* an argument */
#define GPT_ERROR_INPUT 3 /* what was read is not what it must be */
#define GPT_ERROR_SYSTEM 4 /* I/O, memory, threads */

/* The message of this thread's last failure, without an end of line; "": there was none. */
const char *gpt_error(void);

#ifdef __cplusplus
}
#endif
#endif
