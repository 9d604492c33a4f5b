#compdef gpt-ckpt gpt-logdiff gpt-sample gpt-tokshard gpt-train ns-coeffs
# Zsh completion for the gpt tools, from each command's own tables, as share/completion.bash.
# Installed as _gpt_tools in site-functions.

local cmd=$words[1] verb='' option='' line of=''
local -a verbs options
local -A arguments
for line in ${(f)"$($cmd --completion-words 2>/dev/null)"}; do
    [[ $line = [-=]* ]] || verbs+=$line
done
if (( $#verbs && CURRENT == 2 )) && [[ $PREFIX != -* ]]; then
    compadd -a verbs
    return
fi
(( $#verbs && CURRENT > 2 )) && verb=${verbs[(r)$words[2]]}
for line in ${(f)"$($cmd $verb --completion-words 2>/dev/null)"}; do
    arguments[${line%%$'\t'*}]=${line#*$'\t'}
    [[ $line = --* ]] && options+=${line%%$'\t'*}
done
if compset -P 1 '--*='; then
    option=${IPREFIX%=}
elif [[ $words[CURRENT-1] = -* ]]; then
    option=$words[CURRENT-1]
fi
[[ -n $option ]] && of=${arguments[$option]}
if [[ -z $of && $PREFIX = -* ]]; then
    compadd -a options
    return
fi
case $of in
*'|'*) compadd -- ${(s:|:)of}; return ;;
DIR) _files -/; return ;;
KEY=VALUE) compadd -S '' -- ${=arguments[=$of]}; return ;;
''|FILE|PATH|SHARDS|TABLE|RECIPE) compadd -- ${=arguments[=$of]}; _files ;;
esac
