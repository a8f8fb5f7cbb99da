# test_plan.sh: `espresso plan`: its outputs agree: plans, strategies, pages, traces, what-if, --explain.
. tests/cli/plan/plan.sh

plan --json
holds "2310.5 <= $(value bound_us) && $(value bound_us) <= $(value iteration_us) && $(value iteration_us) <= $(value fp32_us)"
holds "$(value compressed) == $(key option <"$top/1" | grep -c comp@) && $(value n_units) == $(key option <"$top/1" | grep -c .)"

# --machines overrides the system
plan --machines 2
plan --machines=1

# the strategy's text has the same step time as the search
small quiet plan --json -o p.strategy
grep -v '"plan_us"\|"strategy"' "$top/1" >made
cp p.strategy first.strategy
small quiet plan --json --strategy p.strategy
diff made "$top/1" | plain
# the strategy on stdout, the report on stderr
plan -o -
cmp "$top/1" first.strategy

# a page and a trace
small quiet plan --timeline t.html --trace t.json
for text in '<html' embed.weight '</html>'; do has t.html "$text"; done
sed -n '1,12p; $p' t.json

# a system of racks has another lane, in the text, the explanation, the page and the trace
racks
plan --system racks.json --timeline r.html --trace r.json
has r.html '"racks":2,"machines":2,"ranks":2,"cores":0}'
has r.json '"tid":4,"args":{"name":"outer"}'
has r.json '"name":"outer.allgather","pid":2,"tid":4,'
small quiet plan --system racks.json --explain head.weight
part '/^head.weight/,/^    intra/p'

# lanes that are cores: page and trace show how long ops occupy each
for n in 0 1 3; do
    cores $n
    plan --system cores.json
done
small quiet plan --system cores.json --json --timeline c.html --trace c.json
part '/"lanes_us"/,/}/p'
has c.html '"cores":3}'
has c.json '"tid":5,"args":{"name":"progress"}'
has c.json '"takes_us":'
has c.json '"name":"outer"'

# all outputs warn of times from a busy machine, and of costs for another number of ranks
cores 1
for ranks in 1 2 4; do # one, those of a machine, all
    noisy=true
    [ $ranks = 1 ] || noisy=false
    printf '{"espresso": 1, "model": "busy", "forward_us": 100, "ranks": %s, "noisy": %s, "tensors": [{"name": "a", "elements": 100000, "compute_us": 5000}]}' \
        $ranks $noisy >busy.json
    errors --model busy.json --system cores.json --timeline b.html --json
    part '/"noisy"/p; /busy.json/p'
    has b.html 'busy.json: measured on a busy machine'
done
sed 's/false/true/' busy.json >b && mv b busy.json
plan --model busy.json
small run compare --model busy.json --strategies fp32
