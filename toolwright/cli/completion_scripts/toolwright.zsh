#compdef toolwright
# Completion of toolwright for zsh.
_toolwright_runs() {
    local file
    for file in runs/*/config.yaml(N) runs/*/*/config.yaml(N); do
        print -rn -- "${${file#runs/}%/config.yaml} "
    done
}

_toolwright_words() {
    local listed= values= said=$1
@CASES@
    if [[ $2 == *=* ]]; then print -r -- "$values"; else print -r -- "$listed"; fi
}

_toolwright() {
    local current=$PREFIX known
    known=$(_toolwright_words "${words[2]} ${words[3]}" "$current")
    (( CURRENT > 3 )) && [[ -n $known ]] || known=$(_toolwright_words "${words[2]}" "$current")
    (( CURRENT > 2 )) || known=$(_toolwright_words "" "$current")
    local -a every=(${=known})
    compadd -S '' -- ${(M)every:#*=} && return
    compadd -- ${every:#*=} ${(M)every:#*=?*} || _files
}

(( $+functions[compdef] )) && compdef _toolwright toolwright
