# test_profile.sh: `espresso profile`: costs files that espresso plan and replay read, as one file or in parts. Times
# are not checked, since other programs run here, too.
# runs: quiet slow asan-long
. tests/cli/plan/plan.sh
trainer="$programs/trainer" endless='1000000 last:100 first:100'
varies='/^2> .*noisy/d; s/[0-9][0-9.]* [mun]*s\b/TIME/g; s/[0-9]* core(*s*)*/N cores/g; s/[0-9.]* [kMGTP]*B\/s/RATE/g; s/cores, .*/cores, ON/'
# Prints the structure of a costs file, without values that depend on this machine.
form() { # FILE
    sed -E 's/, "(gap|core)": \[\[[^"]*\]\]//g; s/(\[[0-9]+), [0-9.e+-]*[1-9][0-9.e+-]*\]/\1, T]/g; s/("dispatch_us": \{).*/\1...}/
        /decompress_more/s/(\[[0-9]+), [0-9.e+-]*\]/\1, T]/g
        s/"(device|made|costs|interpolate)": "[^"]*"/"\1": "..."/g; s/, "spread": [0-9.e+-]+//; s/[0-9]+ core\(s\)/N cores/; s/"noisy": [a-z]+/"noisy": .../
        s/"([a-z_]*_us|[a-z_]*spread|cores|cores_per_rank|cpu_workers|error)": [0-9.e+-]+/"\1": N/g' "$1"
}

# a trainer that would run for ever is measured and ended; the file is enough for a plan
quiet profile -n 4 --machines 2 --inter 1gbit,50us --codecs 'dgc:ratio=0.01; fp16' --up-to 16384 --budget 30s --steps 6 -o all.json -- "$trainer" $endless
plain <"$top/1" | sed -E 's/ +[0-9.]+ +TIME +TIME +TIME$/ .../; s/: NOISY//'
has "$top/2" ' left, after' | sed 's/.* lacks/stderr lacks/'
ls -A
form all.json
holds "$(sed -n 's/.*"dispatch_us".*"cpu": \([^,]*\),.*/\1/p' all.json) > 0"
set -- $(key error <all.json) && holds "$1 > 0.1 && $2 < 1e-5"
quiet plan --costs all.json

# files of the parts give the same plan, and each flag of plan finds its part in the costs file
awk '/^  "system": \{/ { print "{" > "s.json"; on = 1; next } on && /^  \}/ { print "}" > "s.json"; exit } on { print > "s.json" }' all.json
awk '/^  "codecs": \[\{/ { n = 1; print "{" > "1.json"; next } n && /^  \}, \{/ { print "}" > n ".json"; n++; print "{" > n ".json"; next }
    n && /^  \}\]/ { print "}" > n ".json"; exit } n { print > n ".json" }' all.json
small quiet plan --gc 1.json --gc 2.json --system s.json -o 0.strategy
grep 'was measured with\|unknown' "$top/2"
quiet plan --model m.json --costs all.json -o 1.strategy
small quiet plan --gc 1.json --gc 2.json --system all.json -o 2.strategy
cmp 0.strategy 1.strategy && cmp 0.strategy 2.strategy
small quiet plan --model all.json
part 1p
errors --gc 2.json --system paper-pcie --forbid '*gpu*'
errors --gc 2.json --system s.json --machines 8
quiet compare --model m.json --costs all.json --gc fp16 --system one-box
sed -n '/noisy/!s/^/2> /p' "$top/2"

# replay takes it
replay() { run replay --model m.json --elements-scale 0.001 --costs "$@"; } # COSTS FLAGS
quiet replay --model m.json --elements-scale 0.001 --costs all.json --strategy fp32 --steps 1
grep -o '^fp32' "$top/1"
replay all.json -n 2 --machines 1
replay all.json --gc bf16
replay m.json
replay none.json

# ---- a file with one part: a plan needs others for the rest ------------------------------------------
quiet profile --only model --steps 3 -o model.json -- "$trainer" $endless
form model.json
quiet profile --only codecs -n 1 --codecs efsignsgd --up-to 1024 --budget 1s -o codecs.json
form codecs.json
for ranks in 2 3; do
    quiet profile --only links -n $ranks --up-to 2048 --budget 1s -o links.json
    [ "$(key ranks_per_machine <links.json)" = $ranks ] || echo "not $ranks ranks per machine"
    # one thread of a rank computes
    cores=$(key cores <links.json | head -n 1)
    each=$((cores / ranks < 1 ? 1 : cores / ranks > 3 ? 3 : cores / ranks))
    [ "$(key cores_per_rank <links.json)" = $each ] || echo "$cores cores, $ranks ranks: not $each cores per rank"
done
quiet profile --only links -n 2 --machines 2 --up-to 2048 --budget 1s -o shared.json
[ "$(key cpu_workers <shared.json)" = $((cores < 4 ? 1 : cores / 2)) ] || echo "$cores cores: emulated machines share them"
rm shared.json
form links.json | grep -v '"all\|"reduce\|"broadcast\|"gather'
quiet plan --costs codecs.json --system links.json --model model.json
run plan --costs codecs.json --system one-box
run plan --costs model.json --gc fp16
run replay --costs model.json -n 2 --gc fp16
run plan --costs links.json --model bert-base

# ---- ranks of a launcher measure together, rank 0 writes the file, and ranks do not start ranks ----------------------
quiet run -n 2 --no-prefix -- "$ESPRESSO_COMMAND" profile --only links --up-to 4096 --budget 5s -o launched.json
grep -c 'to start an op; ' "$top/1"
form launched.json | sed -n '/"ranks"/p; /"machines"/p; /"flat"/,/allgather/p'
ls -A
launched() { # FLAGS
    quiet run -n 2 --no-prefix -- "$ESPRESSO_COMMAND" profile "$@"
    grep '^espresso profile' "$top/2" | sort -u
}
launched --only links --machines 2 -o x
launched --only links -o /no/such/folder/x.json
launched --only links -n 2 -o x
launched -o x ./train
ls -A | grep -c .

# ---- output on a terminal --------------------------------------------------------------------------------------------
script -qec "'$ESPRESSO_COMMAND' profile -n 2 --codecs 'fp16;int8;topk;dgc' --up-to 4194304 --budget 12s --steps 2000 -o p.json -- '$trainer' $endless >out" shown </dev/null >said
echo "[exit $?]"
for text in 'trainer: step ' ' of 2005: about ' ', round ' ' of 3: at most ' ' s left, after'; do has shown "$text"; done
