/* notecap.c - see notecap.h. */
#include "runs/notecap.h"

#include <stdio.h>

bool notecap_take(struct notecap *c, const char *kind, long line)
{
    int i = 0;
    while (i < NOTECAP_KINDS - 1 && c->of[i].kind && c->of[i].kind != kind)
        i++;
    if (!c->of[i].kind) {
        c->of[i].kind = kind;
        c->of[i].line = line;
    }
    return ++c->of[i].notes <= NOTECAP_EACH;
}

bool notecap_rest(const struct notecap *c, int i, char *text, size_t room)
{
    for (int k = 0; k < NOTECAP_KINDS; k++)
        if (c->of[k].notes > NOTECAP_EACH && i-- == 0) {
            snprintf(text, room, "and %ld more like line %ld", c->of[k].notes - NOTECAP_EACH,
                     c->of[k].line);
            return true;
        }
    return false;
}
