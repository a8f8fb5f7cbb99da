"""check_abi.py COMPILER FOLDER: compares python/espresso/_abi.py with espresso.h as the compiler sees it."""

import ctypes
import re
import subprocess
import sys

from espresso import _abi

compiler, folder = sys.argv[1:]
POINTERS = (ctypes.c_void_p, ctypes.c_char_p, _abi.allgather_fn, _abi.io_fn)
SCALARS = {
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "esp_status": ctypes.c_int32,
    "esp_dtype": ctypes.c_uint32,
    "esp_reduce": ctypes.c_uint32,
    "esp_stream": _abi.Stream,
    "esp_io_fn": _abi.io_fn,
}
STRUCTS = {s._c_name_: s for s in _abi.STRUCTS}


def numbers_of_c(names):
    """The values of C expressions."""
    rows = "".join(f'    printf("%lld\\n", (long long)({name}));\n' for name in names)
    source = f"{folder}/abi.c"
    with open(source, "w") as file:
        file.write(f'#include "espresso.h"\n#include <stdio.h>\nint main(void) {{\n{rows}    return 0;\n}}\n')
    subprocess.run([compiler, "-std=gnu11", "-I.", source, "-o", f"{folder}/abi"], check=True)
    return [int(n) for n in subprocess.run([f"{folder}/abi"], check=True, capture_output=True).stdout.split()]


def check_numbers():
    wanted = dict(_abi.STATUS)
    wanted.update({n: v for n, v in vars(_abi).items() if n.startswith("ESP_") and isinstance(v, int)})
    for struct in _abi.STRUCTS:
        name = struct._c_name_
        wanted[f"sizeof({name})"] = ctypes.sizeof(struct)
        for field, *_ in struct._fields_:
            wanted[f"offsetof({name}, {field})"] = getattr(struct, field).offset
            wanted[f"sizeof((({name} *)0)->{field})"] = getattr(struct, field).size
    found = dict(zip(wanted, numbers_of_c(wanted)))
    return [f"{n}: {found[n]} in C, {v} in Python" for n, v in wanted.items() if found[n] != v], len(wanted)


def same(c_type, python_type):
    """Does the ctypes type stand for the C type of an argument or a result?"""
    c_type = re.sub(r"\bconst\b", "", c_type).strip()
    base, stars = c_type.rstrip("* "), c_type.count("*")
    if not stars:
        return python_type is None if base == "void" else SCALARS.get(base) is python_type
    if isinstance(python_type, type) and issubclass(python_type, ctypes._Pointer):
        inner = python_type._type_
        return inner in POINTERS if stars > 1 else inner in (STRUCTS.get(base), SCALARS.get(base))
    if base == "char":
        return python_type is ctypes.c_char_p
    return stars == 1 and python_type is ctypes.c_void_p and base not in STRUCTS


def check_functions():
    preprocess = [compiler, "-E", "-P", "-I.", "espresso.h"]
    text = subprocess.run(preprocess, check=True, capture_output=True, text=True).stdout
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)\)", "", re.sub(r"\s+", " ", text))
    bad = []
    for name, (result, *arguments) in _abi.FUNCTIONS.items():
        found = re.search(rf"extern ([\w ]+[ *]+){name} ?\(([^)]*)\);", text)
        if not found:
            bad.append(f"{name}: not declared in espresso.h")
            continue
        if not same(found.group(1), result):
            bad.append(f"{name}: returns {found.group(1)} in C")
        declared = [re.sub(r"\w+$", "", a.strip()) for a in found.group(2).split(",") if a.strip() != "void"]
        if len(declared) != len(arguments):
            bad.append(f"{name}: {len(declared)} arguments in C, {len(arguments)} in Python")
        bad += [f"{name}: {c.strip()} in C, {p} in Python" for c, p in zip(declared, arguments) if not same(c, p)]
    return bad, len(_abi.FUNCTIONS)


def check_version():
    with open("espresso.h") as file:
        version = re.search(r'#define ESPRESSO_VERSION "(.*)"', file.read()).group(1)
    return [] if version == _abi.ESPRESSO_VERSION else [f"espresso.h is of version {version}"]


bad, numbers = check_numbers()
wrong, functions = check_functions()
bad += wrong + check_version()
print("\n".join(bad))
print(f"{numbers} numbers and {functions} functions compared, {len(bad)} differ")
sys.exit(bool(bad))
