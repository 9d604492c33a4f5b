# small-world.awk - sentences about a small world in random order, as JSON lines; or questions about it.
#   awk -v seed=1 -v documents=6000 -f examples/small-world.awk        the text
#   awk -v seed=1 -v ask=seen -f examples/small-world.awk              questions: question, number of the right
#   awk -v seed=1 -v ask=unseen -f examples/small-world.awk            answer, four answers; tabs between
# Each fact has three frames. Of every fourth fact ("unseen") the text never has the first one, in which
# questions are asked; of the others it has all.
function load(kind, text,   word, n, i) {
    n = split(text, word, " ")
    for (i = 1; i < n; i += 2) {
        facts[kind]++
        subject[kind, facts[kind]] = word[i]
        answer[kind, facts[kind]] = word[i + 1]
    }
}
function say(frame, kind, a, b) {
    if (kind == "opposite")
        return frame == 1 ? "The opposite of " a " is " b "." : frame == 2 ? "What is not " a " is " b "." : "Not " a " but " b "."
    if (kind == "sound")
        return frame == 1 ? "The " a " says " b "." : frame == 2 ? "Who says " b "? The " a "." : "We heard the " a ": " b "!"
    if (kind == "colour")
        return frame == 1 ? "The " a " is " b "." : frame == 2 ? "What is " b "? The " a "." : "Look at the " a ": " b "!"
    return frame == 1 ? "After " a " comes " b "." : frame == 2 ? "Before " b " comes " a "." : a ", then " b "."
}
# Another answer of the kind than those in `used`.
function other(kind, used,   b) {
    do
        b = answer[kind, 1 + int(facts[kind] * rand())]
    while (index(used, " " b " "))
    return b
}
function question(kind, i,   text, line, right, used, b, k) {
    text = say(1, kind, subject[kind, i], "")
    sub(/ ?\.$/, "", text)
    right = 1 + int(4 * rand())
    used = " " answer[kind, i] " "
    line = text "\t" right
    for (k = 1; k <= 4; k++) {
        b = k == right ? answer[kind, i] : other(kind, used)
        used = used b " "
        line = line "\t " b "."
    }
    print line
}
function document(   text, s, kind, i, frame) {
    for (s = 0; s < 8; s++) {
        kind = kinds[1 + int(4 * rand())]
        i = 1 + int(facts[kind] * rand())
        do
            frame = 1 + int(3 * rand())
        while (frame == 1 && i % 4 == 0)
        text = text (s ? " " : "") say(frame, kind, subject[kind, i], answer[kind, i])
    }
    print "{\"text\": \"" text "\"}"
}
BEGIN {
    load("opposite", "hot cold big small old new fast slow high low wet dry good bad dark light long short hard soft full empty rich poor")
    load("sound", "dog woof cat meow cow moo duck quack sheep baa frog croak bee buzz owl hoot snake hiss lion roar pig oink bird tweet")
    load("colour", "sky blue grass green snow white coal black blood red sun yellow rose pink mud brown ash grey plum purple")
    load("next", "one two two three three four four five five six six seven seven eight eight nine nine ten")
    load("next", "Monday Tuesday Tuesday Wednesday Wednesday Thursday Thursday Friday Friday Saturday Saturday Sunday")
    split("opposite sound colour next", kinds, " ")
    srand(seed)
    if (ask)
        print "question\tanswer\t1\t2\t3\t4"
    for (k = 1; ask && k <= 4; k++)
        for (i = ask == "unseen" ? 4 : 2; i <= facts[kinds[k]]; i += 4)
            question(kinds[k], i)
    for (d = 0; d < documents; d++)
        document()
}
