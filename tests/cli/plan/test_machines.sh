# test_machines.sh: `espresso plan --machines 1,2,8`: the table and the JSON agree with plans for one number of
# machines.
. tests/cli/plan/plan.sh

# each row equals the plan for that number of machines
small quiet plan --json --machines 1,2,4,8,16
part p
holds "$(value alone_us) == 100 + 500 + 50 + 50 + 700.5 + 900 + 10"
for name in iteration_us fp32_us bound_us memory_bytes fp32_scaling scaling_at_most; do
    sed -n '/"scaling": \[/,$p' "$top/1" | key $name >rows.$name
done
alone=$(value alone_us)
key scaling <"$top/1" | sed 1d >rows.scaling
paste rows.fp32_scaling rows.scaling rows.scaling_at_most rows.fp32_us | awk -v alone="$alone" '
    $1 > $2 || $2 > $3 || $3 > 1 || NR > 1 && $1 > before || ($1 - alone / $4) ^ 2 > 1e-18 { print "wrong: " $0; bad = 1 }
    { before = $1 }
    END { exit bad }' || exit 1
set -- $(cat rows.scaling)
row=0
for n in 1 2 4 8 16; do
    row=$((row + 1))
    small launch plan --json --machines $n
    for name in iteration_us fp32_us bound_us memory_bytes; do
        [ "$(value $name)" = "$(sed -n ${row}p "rows.$name")" ] || echo "$n machines: the row has another $name"
    done
    holds "($1 - $alone / $(value iteration_us)) ^ 2 < 1e-18"
    shift
done

# in the user's order, up to the maximum of a million ranks
plan --strategy fp32 --machines 3,131072,5
plan --machines 1,64,4096

for list in 0,1 1,x 1,,2 ,1 1, 1,2000000 '1, 2' 1,-2 1,...,8 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17; do errors --machines "$list"; done
errors --machines 1,2 -o x
errors --machines 1,2 --explain norm.bias
errors --machines 1,2 --what-if inter=2x
small run compare --machines 1,2
errors --machines 1,262144
errors --machines 2,4 --max-volume 0.00001
cores 2
errors --machines 1,2 --system cores.json
