/* progress.h - one line on a terminal, never in a log.
 *
 * Drawn on stderr only when it is a terminal, and TERM is set and not "dumb", or
 * when it is forced; six times a second at most. What the terminal is too narrow for is cut.
 * --quiet is the caller's mode.
 *
 *     struct progress p;
 *     progress_init(&p, PROGRESS_AUTO);
 *     progress_line(&p, "step %d/%d  loss %.3f", s, n, loss);   // cheap when it is too soon
 *     progress_end(&p);                                        // wipes the line
 */
#ifndef BASE_PROGRESS_H
#define BASE_PROGRESS_H

#include <stdbool.h>
#include "base/err.h"

enum progress_mode { PROGRESS_AUTO, PROGRESS_ON, PROGRESS_OFF };
struct progress {
    bool on;
    double last;
    int width;
};
/* True if a descriptor is a terminal that can move its cursor: TERM is set, and not "dumb". */
bool terminal_able(int fd);
void progress_init(struct progress *p, enum progress_mode mode);
void progress_line(struct progress *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
void progress_end(struct progress *p);
/* Wipes a line that is shown, so that a message does not stand in it; text_line does so. */
void progress_wipe(void);
double now_seconds(void); /* monotonic */
/* "3:07", "1:02:45"; buf of 16 bytes. */
char *format_duration(char *buf, double seconds);

#endif
