# Completion of toolwright for bash.
_toolwright_runs() {
    local file
    for file in runs/*/config.yaml runs/*/*/config.yaml; do
        [[ -f $file ]] && file=${file#runs/} && printf '%q ' "${file%/config.yaml}"
    done
}

_toolwright_words() {
    local listed= values= said=$1
@CASES@
    if [[ $2 == *=* ]]; then echo "$values"; else echo "$listed"; fi
}

_toolwright() {
    local line=${COMP_LINE:0:COMP_POINT} said current known
    current=${line##*[[:space:]]}
    read -ra said <<< "${line%"$current"}"
    known=$(_toolwright_words "${said[1]} ${said[2]}" "$current")
    [[ -n $known ]] || known=$(_toolwright_words "${said[1]}" "$current")
    COMPREPLY=($(compgen -W "$known" -- "$current"))
    # Readline replaces what follows the last of its word breaks.
    if [[ $current == *=* && $COMP_WORDBREAKS == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*=}"}"}")
    elif [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}

complete -o default -F _toolwright toolwright
