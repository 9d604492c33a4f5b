#include "base/text.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "base/progress.h"

bool text_ends(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

size_t text_plain_lines(char *s, size_t n)
{
    size_t to = 0;
    for (size_t i = n >= 3 && !memcmp(s, "\xef\xbb\xbf", 3) ? 3 : 0; i < n; i++)
        if (s[i] != '\r' || i + 1 == n || s[i + 1] != '\n')
            s[to++] = s[i];
    return to;
}

size_t text_utf8(const char *s, size_t n)
{
    uint32_t c;
    return (size_t)utf8_decode((const unsigned char *)s, n, &c);
}

void text_json_part(FILE *f, const char *s, size_t n, bool as_is)
{
    for (size_t k; n; s += k, n -= k) {
        unsigned char b = (unsigned char)*s;
        k = text_utf8(s, n);
        if (b < 0x20 || b == 0x7f)
            fprintf(f, "\\u%04x", b);
        else if (b == '"' || b == '\\')
            fprintf(f, "\\%c", b);
        else
            fwrite(k || as_is ? s : "?", 1, k ? k : 1, f);
        k = k ? k : 1;
    }
}

void text_json(FILE *f, const char *s, size_t n, bool as_is)
{
    fputc('"', f);
    text_json_part(f, s, n, as_is);
    fputc('"', f);
}

void text_plain(FILE *f, const char *s, size_t n)
{
    for (size_t k; n; s += k, n -= k) {
        unsigned char b = (unsigned char)*s;
        k = text_utf8(s, n);
        if (!k || b < 0x20 || b == 0x7f || (b == 0xc2 && (unsigned char)s[1] < 0xa0)) {
            fputc('?', f);
            k = k ? k : 1;
        } else {
            fwrite(s, 1, k, f);
        }
    }
}

void text_line(FILE *f, const char *fmt, ...)
{
    char *line;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&line, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    if (f == stderr)
        progress_wipe();
    for (char *next, *at = line; at; at = next) { /* indented lines go on: a text and its caret */
        next = strstr(at, "\n    ");
        text_plain(f, at, next ? (size_t)(next - at) : strlen(at));
        if (next)
            fputc(*next++, f);
    }
    fputc('\n', f);
    free(line);
}

void text_xml(FILE *f, const char *s)
{
    for (size_t k; *s; s += k) {
        k = strcspn(s, "&<>");
        text_plain(f, s, k);
        if (s[k])
            fputs(s[k] == '&' ? "&amp;" : s[k] == '<' ? "&lt;" : "&gt;", f);
        k += s[k] != 0;
    }
}
