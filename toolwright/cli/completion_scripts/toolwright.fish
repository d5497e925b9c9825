# Completion of toolwright for fish.
function __toolwright_runs
    for file in runs/*/config.yaml runs/*/*/config.yaml
        string replace -r '^runs/(.*)/config.yaml$' '$1' -- $file
    end
end

function __toolwright_words
    set -l said $argv[1]
    set -l words
    set -l values
    switch $said
@CASES@
    end
    if string match -q '*=*' -- $argv[2]
        printf '%s\n' $values
    else
        printf '%s\n' $words
    end
end

function __toolwright
    set -l said (commandline -opc)
    set -l current (commandline -ct)
    set -l known (__toolwright_words "$said[2] $said[3]" $current)
    test -n "$known"; or set known (__toolwright_words "$said[2]" $current)
    printf '%s\n' $known
end

complete -c toolwright -a '(__toolwright)'
