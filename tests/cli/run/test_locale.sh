# test_locale.sh: settings and files have decimal points also in a program with a locale of decimal commas.
. tests/cli/lib.sh
if ! command -v localedef >"$top/which" || [ ! -e /usr/share/i18n/locales/de_DE ]; then
    echo "skipped: the locale de_DE is not there (Debian: locales)" && exit 77
fi
localedef -i de_DE -f UTF-8 "$top/de_DE.UTF-8" 2>"$top/2"
export LOCPATH=$top LC_ALL=de_DE.UTF-8
env printf '%.1f is half of three\n' 1,5
trains() { # VARIABLE: of a short training, whose statistics and profile are read again
    rm -f s.jsonl p.json
    env "$1" ESPRESSO_STATS=s.jsonl,every=0.5s ESPRESSO_PROFILE=p.json,steps=3 "$ESPRESSO_COMMAND" run -n 2 --machines 2 \
        -- "$programs/trainer" 8 fc.weight:90000 >"$top/1" 2>&1 || { echo "$1: failed:" && cat "$top/1"; }
    quiet top --once s.jsonl
    quiet plan --model p.json --gc fp16 --system paper-pcie
}
trains ESPRESSO_OPTIMIZER=adam:0.9
trains 'ESPRESSO_CODEC=topk:ratio=0.01,feedback=(residual:beta=0.9)'
trains ESPRESSO_INTER_LINK=1.5gbit,50us
trains ESPRESSO_STRATEGY=auto:min_gain=0.1
