# recipe_keys.awk - the keys of lib/recipe/keys.c as the first lines of gpt-recipe(5)'s entries:
#   awk -f tests/check/recipe_keys.awk lib/recipe/rule.h lib/recipe/recipe.h lib/recipe/keys.c
# A row of the table, { "section", "key", KIND, field, lo, hi, default, choices }, becomes
# "key = TYPE[, LO to HI] (default: X)", or "(required)" where the default is NULL.

function limit(text,    part, n, i, v) {
    n = split(text, part, " ")
    text = ""
    for (i = 1; i <= n; i++)
        text = text (i > 1 ? " " : "") (part[i] in constant ? constant[part[i]] : part[i])
    if (match(text, /^[0-9]+ << [0-9]+$/)) {
        split(text, part, " << ")
        text = part[1] * 2 ^ part[2]
    } else if (match(text, /^[0-9]+ - [0-9]+$/)) {
        split(text, part, " - ")
        text = part[1] - part[2]
    }
    if (text !~ /^-?[0-9.]+(e-?[0-9]+)?$/) {
        print "unknown limit: " text
        exit 1
    }
    v = text + 0
    text = sprintf("%g", v)
    if (text + 0 != v)
        text = sprintf("%.0f", v)
    sub(/e\+0*/, "e", text)
    sub(/e-0*/, "e-", text)
    return text
}

BEGIN {
    split("K_NAME name K_INT integer K_I64 integer K_REAL number K_REAL3 three_numbers K_RANGE number_or_A>B " \
          "K_EVERY integer_or_N>M@P K_HASH hash " \
          "K_INT2 two_integers K_SCALE row_|_delayed_|_number K_BOOL yes_|_no K_COEFFS rows_or_file " \
          "K_COUNTS counts K_WINDOWS windows K_TIED two_labels K_ORDER labels K_LABELS labels", word, " ")
    for (i = 1; i in word; i += 2) {
        gsub("_", " ", word[i + 1])
        type[word[i]] = word[i + 1]
    }
    ranged = " K_INT K_I64 K_REAL K_REAL3 K_RANGE K_EVERY K_INT2 K_SCALE K_COUNTS K_WINDOWS "
    or_none = " K_HASH K_INT2 K_COUNTS K_WINDOWS K_TIED K_LABELS "
}

# enum { NAME = 12 or 1 << 26 ...
{
    line = $0
    while (match(line, /[A-Z][A-Z_]+ = [0-9]+( << [0-9]+)?/)) {
        found = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        split(found, part, " = ")
        split(part[2], factor, " << ")
        constant[part[1]] = sprintf("%.0f", factor[1] * 2 ^ factor[2])
    }
}

/static const char [A-Z_]+\[\] = "/ {
    split($0, part, "\"")
    split($4, name, "[")
    choices[name[1]] = part[2]
}

/^static const struct key keys\[\]/ { inside = 1; next }
inside && /^};/ { exit }
inside {
    row = row $0
    if (row !~ /},$/)
        next
    gsub(/^ *{ *| *},$/, "", row)
    gsub(/ +/, " ", row)
    n = split(row, f, /, /)
    for (i = 1; i <= n; i++)
        gsub(/"/, "", f[i])
    # A default may have commas in itself.
    words = f[n]
    dflt = f[7]
    for (i = 8; i < n; i++)
        dflt = dflt "," f[i]
    row = ""
    kind = f[3]
    if (kind == "K_UNREAD")
        next
    if (words in choices)
        words = choices[words]
    if (kind in type)
        text = type[kind]
    else {
        text = words
        gsub(/\|/, " | ", text)
    }
    if (index(ranged, " " kind " "))
        text = text ", " limit(f[5]) " to " limit(f[6])
    if (index(or_none, " " kind " "))
        text = text ", or -"
    print f[2] " = " text " (" (dflt == "NULL" ? "required" : "default: " dflt) ")"
}
