# Bash completion for the gpt tools: one file for all, from each command's own tables: a line for
# each option, words of an argument after '=', and a word for each verb, whose options are those
# after it.
# Installed under the name of each command; in a source tree, `. share/completion.bash`.

_gpt_tools()
{
    local cur=${COMP_WORDS[COMP_CWORD]} cmd=$1 option='' name arg words='' verbs='' verb='' of=''
    COMPREPLY=()
    # Readline breaks words at '=': "--name=va" comes as "--name" "=" "va".
    if [[ $cur = '=' ]]; then
        option=${COMP_WORDS[COMP_CWORD-1]} cur=
    elif ((COMP_CWORD >= 2)) && [[ ${COMP_WORDS[COMP_CWORD-1]} = '=' ]]; then
        option=${COMP_WORDS[COMP_CWORD-2]}
    elif ((COMP_CWORD >= 1)) && [[ ${COMP_WORDS[COMP_CWORD-1]} = -* ]]; then
        option=${COMP_WORDS[COMP_CWORD-1]}
    fi
    while IFS=$'\t' read -r name _; do
        [[ $name = [-=]* ]] || verbs+="$name "
    done < <("$cmd" --completion-words 2>/dev/null)
    if [[ -n $verbs ]] && ((COMP_CWORD == 1)) && [[ $cur != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$cur")
        return
    fi
    ((COMP_CWORD > 1)) && [[ " $verbs" = *" ${COMP_WORDS[1]} "* ]] && verb=${COMP_WORDS[1]}
    # Options are known before the words of their arguments; `of` is what is completed, '' an operand.
    [[ $cur = -* ]] && of=-
    while IFS=$'\t' read -r name arg; do
        case $name in
        --*) words+="$name " ;;
        "=$of") mapfile -t COMPREPLY < <(compgen -W "$arg" -- "$cur") ;;
        esac
        [[ -n $option && $name = "$option" && -n $arg ]] && of=$arg
    done < <("$cmd" ${verb:+"$verb"} --completion-words 2>/dev/null)
    case $of in
    -) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur") ;;
    *'|'*) mapfile -t COMPREPLY < <(compgen -W "${of//|/ }" -- "$cur") ;;
    DIR) mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    KEY=VALUE) compopt -o nospace 2>/dev/null ;;
    ''|FILE|PATH|SHARDS|TABLE|RECIPE)
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$cur") ;;
    esac
}

complete -o filenames -F _gpt_tools gpt-tokshard gpt-train gpt-sample gpt-logdiff gpt-ckpt ns-coeffs
