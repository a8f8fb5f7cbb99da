#!/usr/bin/env python3
"""translate.py: translates the PTX of one file of codecs/cuda to C++ that runs on the tests' CUDA emulator.

    translate.py NAME <NAME.ptx >NAME.cc

Each kernel becomes a function with a variable for each register; ptx.h has what C++ lacks. An instruction that it does
not know ends the translation with an error, so that a new one is not run in a wrong way."""
import re
import sys

sys.dont_write_bytecode = True
from parse import BITS, parse, split  # noqa: E402

CPP = {"u8": "uint8_t", "s8": "int8_t", "u16": "uint16_t", "s16": "int16_t", "u32": "uint32_t", "s32": "int32_t",
       "u64": "uint64_t", "s64": "int64_t", "b8": "uint8_t", "b16": "uint16_t", "b32": "uint32_t", "b64": "uint64_t",
       "f32": "float", "f64": "double", "pred": "bool"}
SPECIAL = {"%tid.x": "threadIdx.x", "%ctaid.x": "blockIdx.x", "%ctaid.y": "blockIdx.y", "%ntid.x": "blockDim.x",
           "%nctaid.x": "gridDim.x", "%nctaid.y": "gridDim.y", "%laneid": "(threadIdx.x & 31)",
           "%envreg0": "ptx_plant"}  # plant.py: which fault is on
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">",
           "hs": ">="}
ARITHMETIC = {"add": "+", "sub": "-", "div": "/", "mul": "*", "rem": "%", "and": "&", "or": "|", "xor": "^"}
ATOMIC = {"add": "atomicAdd", "or": "atomicOr", "max": "atomicMax", "min": "atomicMin", "exch": "atomicExch"}
SHUFFLE = {"up": "CUDA_HOST_UP", "down": "CUDA_HOST_DOWN", "bfly": "CUDA_HOST_XOR", "idx": "CUDA_HOST_LANE"}


def real(kind):
    return kind[0] == "f"


def unsigned(kind):
    return "u" + kind[1:]


class Function:
    """The C++ function of a kernel."""

    def __init__(self, kernel, name, places):
        self.kernel, self.name, self.places = kernel, name, places
        self.shared, self.bytes = {}, 0
        for symbol, (align, size) in kernel.shared.items():
            self.bytes = (self.bytes + align - 1) // align * align
            self.shared[symbol] = self.bytes
            self.bytes += size

    # ---- operands ----------------------------------------------------------------------------------------------------
    def kind(self, operand):
        return self.kernel.registers.get(operand)

    def value(self, x, kind):
        """The operand as an expression of the C++ type of a PTX type"""
        to, held = CPP[kind], self.kind(x)
        if x[0] == "!":
            return "!" + self.value(x[1:], kind)
        if held:
            return convert(x[1:], held, kind)
        if x in SPECIAL:
            return "(%s)%s" % (to, SPECIAL[x])
        if re.match(r"0[fF][0-9a-fA-F]{8}$", x):
            return "ptx_bits<float>(0x%su)" % x[2:]
        if re.match(r"0[dD][0-9a-fA-F]{16}$", x):
            return "ptx_bits<double>(0x%sull)" % x[2:]
        if re.match(r"-?(0x[0-9a-fA-F]+|\d+)U?$", x) and not real(kind):
            number = int(x.rstrip("U"), 0)
            if kind == "pred":
                return str(bool(number)).lower()
            return "(%s)0x%xull" % (to, number & ((1 << BITS[kind]) - 1))
        if x in self.shared:
            return "(%s)%d" % (to, self.shared[x])
        if x in self.kernel.local:
            return "(uint64_t)(uintptr_t)%s" % x
        parameter = re.match(re.escape(self.kernel.name) + r"_param_(\d+)$", x)
        if parameter:
            return "(uint64_t)(uintptr_t)parameters[%s]" % parameter.group(1)
        raise ValueError("operand " + x)

    def set(self, register, kind, expression):
        """register = expression, which has the C++ type of the PTX type `kind`"""
        if register == "_":
            return "(void)(%s);" % expression
        held = self.kind(register)
        bits = BITS.get(held, 1)
        wide = kind if bits == BITS.get(kind, 1) else (kind[0] if kind[0] in "sf" else "u") + str(bits)
        e = "(%s)(%s)" % (CPP[kind], expression)
        if wide != kind:
            e = "(%s)%s" % (CPP[wide], e)
        return "%s = %s;" % (register[1:], convert(e, wide, held))

    def address(self, operand, space):
        base, _, offset = operand[1:-1].replace(" ", "").partition("+")
        if space == "shared" and BITS.get(self.kind(base)) == 32:  # a sum of 32 bits, too: it may pass 0
            return "shared + (uint32_t)(%s + (%s))" % (self.value(base, "u32"), offset or "0")
        if space == "shared":
            where = "shared + (int64_t)%s" % self.value(base, self.kind(base) or "u64")
        else:
            where = "(unsigned char *)(uintptr_t)%s" % self.value(base, "u64")
        return "%s + (%s)" % (where, offset or "0")

    def touch(self, statement, space, bytes_, what):
        """The checks of an access: alignment and, if asked for, order"""
        if space in ("param", "local"):
            return ""
        place = len(self.places)
        self.places.append(statement.place)
        return "ptx_touch(at, %d, %s, %d, base + %du);" % (bytes_, what, space == "shared", place)

    # ---- instructions ------------------------------------------------------------------------------------------------
    def statement(self, s):
        if s.label:
            return s.label + ":;"
        parts = s.opcode.split(".")
        method = getattr(self, "do_" + parts[0], None)
        if not method:
            raise ValueError("instruction " + s.opcode)
        text = method(s, parts, parts[-1], s.operands)
        return "if (%s%s) %s" % (s.guard[0], s.guard[1][1:], text) if s.guard else text

    def do_bra(self, _s, _parts, _kind, a):
        return "goto %s;" % a[0].replace("$", "")

    def do_ret(self, _s, _parts, _kind, _a):
        return "return;"

    def do_mov(self, _s, _parts, kind, a):
        if a[0][0] == "{":
            to = split(a[0][1:-1])
            bits = BITS[kind] // len(to)
            each = [self.set(x, "b%d" % bits, "(%s)(all >> %d)" % (CPP["b%d" % bits], bits * i))
                    for i, x in enumerate(to) if x != "_"]
            return "{ const uint64_t all = %s; %s }" % (self.value(a[1], kind), " ".join(each))
        if a[1][0] == "{":
            parts = split(a[1][1:-1])
            bits = BITS[kind] // len(parts)
            return self.set(a[0], kind, " | ".join("(uint64_t)%s << %d" % (self.value(x, "b%d" % bits), bits * i)
                                                   for i, x in enumerate(parts)))
        return self.set(a[0], kind, self.value(a[1], kind))

    def arithmetic(self, _s, parts, kind, a):
        if parts[0] in ("mul", "mad") and not real(kind):
            return self.multiply(parts, kind, a)
        if real(kind) and ("rn" not in parts or "ftz" in parts):
            raise ValueError("rounding of " + ".".join(parts))
        # signed numbers may wrap around in PTX
        inner = unsigned(kind) if kind[0] == "s" and parts[0] in ("add", "sub") else kind
        e = "%s %s %s" % (self.value(a[1], inner), ARITHMETIC[parts[0]], self.value(a[2], inner))
        return self.set(a[0], kind, "ptx_nan(%s)" % e if real(kind) else "(%s)(%s)" % (CPP[inner], e))

    do_add = do_sub = do_div = do_mul = do_rem = do_and = do_or = do_xor = do_mad = arithmetic

    def multiply(self, parts, kind, a):
        bits, result = BITS[kind], kind
        if "wide" in parts:
            result = kind[0] + str(2 * bits)
            e = "(%s)%s * (%s)%s" % (CPP[result], self.value(a[1], kind), CPP[result], self.value(a[2], kind))
        elif "hi" in parts:
            double = {"u16": "uint32_t", "s16": "int32_t", "u32": "uint64_t", "s32": "int64_t", "u64": "unsigned __int128", "s64": "__int128"}[kind]
            x, y = self.value(a[1], kind), self.value(a[2], kind)
            e = "(%s)((%s)%s * %s >> %d)" % (CPP[kind], double, x, y, bits)
        else:
            result = unsigned(kind)
            e = "%s * %s" % (self.value(a[1], result), self.value(a[2], result))
        return self.set(a[0], result, e + (" + " + self.value(a[3], result) if parts[0] == "mad" else ""))

    def do_fma(self, _s, _parts, kind, a):
        raise ValueError("a fused multiplication: CPU and GPU would give different bytes")

    def do_min(self, _s, parts, kind, a):
        x, y = self.value(a[1], kind), self.value(a[2], kind)
        if real(kind):
            if len(parts) > 2:
                raise ValueError("min or max with NaN or flushed denormals")
            form = "ptx_min(%s, %s)" if parts[0] == "min" else "ptx_nan(-ptx_min(-(%s), -(%s)))"
            return self.set(a[0], kind, form % (x, y))
        return self.set(a[0], kind, "%s %s %s ? %s : %s" % (x, "<" if parts[0] == "min" else ">", y, x, y))

    do_max = do_min

    def do_not(self, _s, _parts, kind, a):
        return self.set(a[0], kind, ("!" if kind == "pred" else "~") + self.value(a[1], kind))

    def do_neg(self, _s, _parts, kind, a):
        if real(kind):
            return self.set(a[0], kind, "-" + self.value(a[1], kind))
        return self.set(a[0], kind, "0 - " + self.value(a[1], unsigned(kind)))

    def do_abs(self, _s, _parts, kind, a):
        if not real(kind):
            raise ValueError("abs of integers")
        bits = "b%d" % BITS[kind]
        return self.set(a[0], bits, "%s & ~((%s)1 << %d)" % (self.value(a[1], bits), CPP[bits], BITS[kind] - 1))

    def do_shl(self, _s, parts, kind, a):
        return self.set(a[0], kind, "ptx_%s<%s>(%s, %s)" % (
            parts[0], CPP[kind], self.value(a[1], kind), self.value(a[2], "u32")))

    do_shr = do_shl

    def do_shf(self, _s, parts, kind, a):
        low, high, by = (self.value(x, "u32") for x in a[1:4])
        most = 31 if "wrap" in parts else 32
        return self.set(a[0], kind, "ptx_funnel_%s(%s, %s, %s, %d)" % (parts[1], low, high, by, most))

    def do_popc(self, _s, _parts, kind, a):
        return self.set(a[0], "u32", "(uint32_t)__builtin_popcountll(%s)" % self.value(a[1], kind))

    def do_brev(self, _s, _parts, kind, a):
        return self.set(a[0], kind, "__brev(%s)" % self.value(a[1], kind))

    def do_bfind(self, _s, parts, kind, a):
        if "shiftamt" not in parts:
            raise ValueError("bfind without shiftamt")
        return self.set(a[0], "u32", "ptx_leading<%s>(%s)" % (CPP[kind], self.value(a[1], kind)))

    def do_clz(self, _s, _parts, kind, a):
        x = self.value(a[1], kind)
        return self.set(a[0], "u32", "%s ? ptx_leading<%s>(%s) : %du" % (x, CPP[kind], x, BITS[kind]))

    def do_bfi(self, _s, _parts, kind, a):
        at, length = self.value(a[3], "u32"), self.value(a[4], "u32")
        return self.set(a[0], kind, "ptx_insert<%s>(%s, %s, %s, %s)" % (
            CPP[kind], self.value(a[1], kind), self.value(a[2], kind), at, length))

    def do_bfe(self, _s, _parts, kind, a):
        if kind[0] == "s":
            raise ValueError("bfe of signed numbers")
        return self.set(a[0], kind, "ptx_extract<%s>(%s, %s, %s)" % (
            CPP[kind], self.value(a[1], kind), self.value(a[2], "u32"), self.value(a[3], "u32")))

    def do_prmt(self, _s, _parts, _kind, a):
        return self.set(a[0], "b32", "ptx_permute(%s, %s, %s)" % tuple(self.value(x, "b32") for x in a[1:4]))

    def do_setp(self, _s, parts, kind, a):
        x, y, c = self.value(a[1], kind), self.value(a[2], kind), parts[1]
        if len(parts) != 3 + ("ftz" in parts) or "ftz" in parts:
            raise ValueError("comparison " + ".".join(parts))
        nan, number = "(%s != %s || %s != %s)" % (x, x, y, y), "(%s == %s && %s == %s)" % (x, x, y, y)
        if c in ("nan", "num"):
            e = nan if c == "nan" else number
        elif real(kind) and c[-1] == "u" and c[:-1] in COMPARE:
            e = "%s || %s %s %s" % (nan, x, COMPARE[c[:-1]], y)
        else:
            e = ("%s && " % number if real(kind) and c == "ne" else "") + "%s %s %s" % (x, COMPARE[c], y)
        return self.set(a[0], "pred", e)

    def do_selp(self, _s, _parts, kind, a):
        return self.set(a[0], kind, "%s ? %s : %s" % (
            self.value(a[3], "pred"), self.value(a[1], kind), self.value(a[2], kind)))

    def do_cvta(self, _s, parts, _kind, a):
        if "shared" in parts and "to" not in parts:
            raise ValueError("a generic address of shared memory")
        return self.set(a[0], "u64", self.value(a[1], "u64"))

    def do_cvt(self, _s, parts, kind, a):
        to = parts[-2]
        if parts[1:] == ["rzi", "s32", "f32"]:
            return self.set(a[0], to, "ptx_whole(%s)" % self.value(a[1], kind))
        if parts[1:] == ["rzi", "u64", "f64"]:
            return self.set(a[0], to, "ptx_whole64(%s)" % self.value(a[1], kind))
        if set(parts[1:-2]) - {"rn"} or kind not in CPP or to not in CPP or (real(kind) and not real(to)):
            raise ValueError("conversion " + ".".join(parts))
        e = "(%s)%s" % (CPP[to], self.value(a[1], kind))
        return self.set(a[0], to, "ptx_nan(%s)" % e if real(kind) else e)

    def do_rcp(self, _s, parts, kind, a):
        return self.one_real(parts, kind, a, "1 / %s")

    def do_sqrt(self, _s, parts, kind, a):
        return self.one_real(parts, kind, a, "sqrtf(%s)" if kind == "f32" else "sqrt(%s)")

    def one_real(self, parts, kind, a, form):
        if parts[1:-1] != ["rn"]:
            raise ValueError("rounding of " + ".".join(parts))
        return self.set(a[0], kind, "ptx_nan(%s)" % (form % self.value(a[1], kind)))

    # ---- memory ------------------------------------------------------------------------------------------------------
    def do_ld(self, s, parts, kind, a):
        space = space_of(parts)
        to, size = split(a[0][1:-1]) if a[0][0] == "{" else [a[0]], BITS[kind] // 8
        loads = [self.set(x, kind, "ptx_load<%s>(at + %d)" % (CPP[kind], size * i)) for i, x in enumerate(to)]
        return "{ const unsigned char *at = %s; %s %s }" % (
            self.address(a[1], space), self.touch(s, space, size * len(to), "PTX_READ"), " ".join(loads))

    def do_st(self, s, parts, kind, a):
        space = space_of(parts)
        of, size = split(a[1][1:-1]) if a[1][0] == "{" else [a[1]], BITS[kind] // 8
        stores = ["ptx_store<%s>(at + %d, %s);" % (CPP[kind], size * i, self.value(x, kind)) for i, x in enumerate(of)]
        what = "PTX_ATOMIC" if "volatile" in parts else "PTX_WRITE"
        return "{ unsigned char *at = %s; %s %s }" % (
            self.address(a[0], space), self.touch(s, space, size * len(of), what), " ".join(stores))

    def do_atom(self, s, parts, kind, a):
        space = space_of(parts)
        function = next((ATOMIC[x] for x in parts if x in ATOMIC), None)
        if not function:
            raise ValueError("atomic " + ".".join(parts))
        where, x = (a[1], a[2]) if parts[0] == "atom" else (a[0], a[1])
        call = "%s((%s *)(void *)at, %s)" % (function, CPP[kind], self.value(x, kind))
        return "{ unsigned char *at = %s; %s %s }" % (
            self.address(where, space), self.touch(s, space, BITS[kind] // 8, "PTX_ATOMIC"),
            self.set(a[0], kind, call) if parts[0] == "atom" else "(void)%s;" % call)

    do_red = do_atom

    def do_membar(self, _s, _parts, _kind, _a):
        return "ptx_fence();"

    do_fence = do_membar

    # ---- operations of warps and blocks ------------------------------------------------------------------------------
    def do_bar(self, s, parts, _kind, a):
        if "warp" in parts:
            return "ptx_warp_barrier(file, %d, %s);" % (s.line, self.value(a[0], "u32"))
        if "red" not in parts:
            return "(void)ptx_barrier(file, %d, CUDA_HOST_SYNC, 0);" % s.line
        vote = self.value(a[-1], "pred")
        if "popc" in parts:
            return self.set(a[0], "u32", "(uint32_t)ptx_barrier(file, %d, CUDA_HOST_SUM, %s)" % (s.line, vote))
        how = "CUDA_HOST_OR" if "or" in parts else "CUDA_HOST_AND"
        return self.set(a[0], "pred", "ptx_barrier(file, %d, %s, %s) != 0" % (s.line, how, vote))

    do_barrier = do_bar

    def warp(self, s, how, mask, x, by="0", width="32"):
        return "(uint32_t)cuda_host_warp(file, %d, %s, %s, %s, %s, %s)" % (
            s.line, how, self.value(mask, "u32"), x, by, width)

    def do_vote(self, s, parts, _kind, a):
        in_ = self.warp(s, "CUDA_HOST_BALLOT", a[2], self.value(a[1], "pred"))
        if "ballot" in parts:
            return self.set(a[0], "b32", in_)
        return self.set(a[0], "pred", in_ + (" != 0" if "any" in parts else " == " + self.value(a[2], "u32")))

    def do_shfl(self, s, parts, _kind, a):
        width = "32 - (%s >> 8 & 31)" % self.value(a[3], "u32")
        return self.set(a[0].split("|")[0], "b32", self.warp(
            s, SHUFFLE[parts[2]], a[4], self.value(a[1], "b32"), self.value(a[2], "u32"), width))

    def do_redux(self, s, parts, kind, a):
        if "max" not in parts or kind != "u32":
            raise ValueError("reduction " + ".".join(parts))
        return self.set(a[0], "u32", "ptx_warp_max(file, %d, %s, %s)" % (
            s.line, self.value(a[2], "u32"), self.value(a[1], "u32")))

    # ---- the whole ---------------------------------------------------------------------------------------------------
    def text(self):
        out, k = [], self.kernel
        if self.bytes:
            out.append("alignas(16) static unsigned char shared_%s[%d] __attribute__((section(\"cuda_shared\")));"
                       % (self.name, (self.bytes + 15) // 16 * 16))
        out.append("static void %s(const void *const *parameters) {" % self.name)
        out.append("    static const char file[] = \"%s\";" % k.name)
        out.append("    unsigned char *const shared = %s;" % ("shared_" + self.name if self.bytes else "NULL"))
        for kind in sorted(set(k.registers.values())):
            names = [r[1:] for r, held in k.registers.items() if held == kind]
            out.append("    %s %s;" % (CPP[kind], ", ".join(names)))
        for symbol, size in k.local.items():  # uninitialised on a GPU: not zeros
            out.append("    alignas(16) unsigned char %s[%d];" % (symbol, size))
            out.append("    memset(%s, 0xA5, sizeof %s);" % (symbol, symbol))
        out.append("    (void)file, (void)shared, (void)parameters;")
        out.append("    ptx_enter(base_kernel + %s);" % self.name.split("_")[-1])
        for s in k.code:
            try:
                out.append("    " + self.statement(s))
            except (ValueError, KeyError, IndexError) as e:
                sys.exit("%s, line %d of the PTX (%s): %s: %r" % (k.name, s.line, s.place, s.opcode, e))
        return "\n".join(out) + "\n}\n"


def space_of(parts):
    """The memory that an instruction uses; "global" stands for generic addresses too, which here are never of shared memory (do_cvta)."""
    return next((x for x in parts if x in ("global", "shared", "param", "local")), "global")


def convert(expression, held, kind):
    """An expression of the C++ type of one PTX type as that of another: bits stay, unless both are integers"""
    if held == kind or CPP[held] == CPP[kind]:
        return expression
    if kind == "pred" or held == "pred" or real(held) == real(kind):
        return "(%s)%s" % (CPP[kind], expression)
    return "ptx_bits<%s>(%s)" % (CPP[kind], expression)


def main():
    name = sys.argv[1]
    places, texts, entries = [], [], []
    for i, kernel in enumerate(parse(sys.stdin.read())):
        function = Function(kernel, "%s_%d" % (name, i), places)
        texts.append(function.text())
        entries.append("    {\"%s\", %s}," % (kernel.name, function.name))
    print("/* translated from PTX by tests/cuda/ptx/translate.py */\n#include \"tests/cuda/ptx/ptx.h\"\n")
    print("static uint32_t base, base_kernel;\n")
    print("\n".join(texts))
    print("static const ptx_kernel kernels[] = {\n%s\n};" % "\n".join(entries or ["    {NULL, NULL},"]))
    print("static const char *const places[] = {\n%s\n};" % "\n".join("    \"%s\"," % p for p in places or [""]))
    print("static const ptx_unit unit(kernels, %d, &base_kernel, places, %d, &base);" % (len(entries), len(places)))


if __name__ == "__main__":
    main()
