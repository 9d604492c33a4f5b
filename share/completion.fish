# Fish completion for the gpt tools, from each command's own tables, as share/completion.bash.
# Installed under the name of each command.

function __gpt_tools
    set -l words (commandline -opc)
    set -l cur (commandline -ct)
    set -l cmd $words[1]
    set -l verbs ($cmd --completion-words 2>/dev/null | string match -rv '^[-=]')
    set -l verb
    set -l option
    set -l of ''
    if test (count $verbs) -gt 0
        if test (count $words) -eq 1; and not string match -q -- '-*' $cur
            printf '%s\n' $verbs
            return
        end
        contains -- "$words[2]" $verbs; and set verb $words[2]
    end
    set -l table ($cmd $verb --completion-words 2>/dev/null)
    set -l before ''
    if string match -q -- '--*=*' $cur
        set option (string split -m 1 = -- $cur)[1]
        set before "$option="
    else if string match -q -- '-*' $words[-1]
        set option $words[-1]
    end
    for line in $table
        set -l row (string split -m 1 \t -- $line)
        test -n "$option"; and test "x$row[1]" = "x$option"; and set of $row[2]
    end
    if test -z "$of"; and string match -q -- '-*' $cur
        string match -r -- '^--[^\t]*' $table
        return
    end
    for line in $table
        set -l row (string split -m 1 \t -- $line)
        test "x$row[1]" = "x=$of"; and printf "$before%s\n" (string split -n ' ' -- $row[2])
    end
    switch $of
        case '*|*'
            printf "$before%s\n" (string split '|' -- $of)
        case DIR
            __fish_complete_directories (string replace -- "$before" '' $cur) | string replace -r '^' "$before"
        case '' FILE PATH SHARDS TABLE RECIPE
            __fish_complete_path (string replace -- "$before" '' $cur) | string replace -r '^' "$before"
    end
end

for cmd in gpt-ckpt gpt-logdiff gpt-sample gpt-tokshard gpt-train ns-coeffs
    complete -c $cmd -f -a '(__gpt_tools)'
end
