# plan.sh: for the scripts of `espresso plan`: a small model, a system with cores, and functions with the usual flags.
. tests/cli/lib.sh
varies='s/found in [0-9.]* [mun]*s/found in TIME/; s/\( [kMGT]*B\) *[0-9.]* [mun]*s$/\1  TIME/; s/"plan_us": [0-9.]*/"plan_us": TIME/'
# the last digits of some numbers depend on the compiler
varies="$varies; s/\\(\": [0-9]*\\.[0-9]\\{6\\}\\)[0-9]*/\\1/"
cat >m.json <<'END'
{"espresso": 1, "model": "small", "forward_us": 100, "update_us": 10, "dtype": "f32", "tensors": [
  {"name": "head.weight", "elements": 4000000, "compute_us": 500},
  {"name": "norm.bias", "elements": 1000, "compute_us": 50},
  {"name": "norm.weight", "elements": 1000, "compute_us": 50},
  {"name": "body.weight", "elements": 2500000, "compute_us": 700.5},
  {"name": "embed.weight", "elements": 9000000, "compute_us": 900}
]}
END
# A system whose collectives occupy a core for a part of their time, and their link not to the end.
cores() { # CORES
    tables=
    for c in allreduce reduce_scatter allgather alltoall gather broadcast reduce; do
        tables="$tables${tables:+, }\"$c\": {\"points\": [[1000, 300], [10000000, 20000]], \"gap\": [[1000, 100], [10000000, 15000]], \"core\": [[1000, 20], [10000000, 4000]]}"
    done
    link='"alpha_us": 100, "bytes_per_us": 500, '
    printf '{"espresso": 1, "system": "cores", "machines": 2, "ranks_per_machine": 2, "devices": ["cpu"], "cores_per_rank": %s' "$1" >cores.json
    printf ', "%s": {%s"tables": {%s}}' intra "$link" "$tables" inter "$link" "$tables" flat "" "$tables" >>cores.json
    echo "}" >>cores.json
}
# A system of two racks.
racks() {
    echo '{"espresso": 1, "system": "two-racks", "racks": 2, "machines": 2, "ranks_per_machine": 2, "devices": ["cpu"], "intra": {"alpha_us": 1, "bytes_per_us": 20000}, "inter": {"alpha_us": 10, "bytes_per_us": 3000}, "outer": {"alpha_us": 50, "bytes_per_us": 125}}' >racks.json
}
small() { # run|quiet SUBCOMMAND FLAGS: the default is the small model with dgc on paper-pcie
    how=$1 what=$2
    shift 2
    case " $* " in *" --system "*) ;; *) set -- --system paper-pcie "$@" ;; esac
    case " $* " in *" --gc "*) ;; *) set -- --gc dgc:ratio=0.01 "$@" ;; esac
    case " $* " in *" --model "*) ;; *) set -- --model m.json "$@" ;; esac
    "$how" "$what" "$@"
}
plan() { small run plan "$@"; }
# FLAGS: shows the exit status and errors, but no plan
errors() {
    small quiet plan "$@"
    sed 's/^/2> /' "$top/2" | plain
}
part() { sed -n "$1" "$top/1" | plain; } # SED: a part of the last output
value() { key "$1" <"$top/1" | head -n 1; } # KEY: its first value in the last output
