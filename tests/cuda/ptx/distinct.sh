# distinct.sh: of the programs $(BUILD)/ptx-sm_N/cuda/test_NAME, prints those that equal none before them.
for program in "$@"; do
    for before in "$@"; do
        if [ "$before" = "$program" ]; then
            echo "$program"
            break
        fi
        if cmp -s "$before" "$program"; then
            echo "$program: the same as $before" >&2
            break
        fi
    done
done
