"""parse.py: reads PTX, as nvcc writes it for codecs/cuda, into kernels with registers, shared and local memory and statements."""
import re
from collections import namedtuple

# line: of the PTX; place: "file:line" of the source; label: NAME, or None; guard: ("!" or "", register), or None
Statement = namedtuple("Statement", "line place label guard opcode operands")

BITS = {"u8": 8, "s8": 8, "b8": 8, "u16": 16, "s16": 16, "b16": 16, "u32": 32, "s32": 32, "b32": 32, "f32": 32,
        "u64": 64, "s64": 64, "b64": 64, "f64": 64}


class Kernel:
    def __init__(self, name):
        self.name, self.parameters = name, 0
        self.registers = {}  # "%r7" to "b32"
        self.shared = {}     # name to (alignment, bytes)
        self.local = {}      # a thread's own memory: name to bytes
        self.code = []


def split(operands):
    """"%r1, [%rd2+4], {%f1, %f2}" to its three operands"""
    found, depth, now = [], 0, ""
    for c in operands:
        depth += (c in "{[") - (c in "}]")
        if c == "," and depth == 0:
            found.append(now.strip())
            now = ""
        else:
            now += c
    return found + ([now.strip()] if now.strip() else [])


def numbered(text):
    """Lines without comments, and their numbers; a scope in one line, "{ .reg .b32 t; mov ...; }", becomes four."""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.split("//")[0].strip()
        scope = re.match(r"\{(.+;)\s*\}$", line)
        for part in ["{"] + [p.strip() + ";" for p in scope.group(1).split(";")[:-1]] + ["}"] if scope else [line]:
            yield number, part


class Reader:
    def __init__(self, text):
        self.lines, self.at, self.place = list(numbered(text)), 0, "?"
        self.files = {number: path.split("/")[-1] for number, path in re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', text)}
        self.kernels, self.kernel, self.scopes = [], None, []

    def next(self):
        self.number, line = self.lines[self.at]
        self.at += 1
        return line

    def read(self):
        while self.at < len(self.lines):
            line = self.next()
            if line:
                self.directive(line) or self.statement(line)
        return self.kernels

    def directive(self, line):
        """Is the line no statement of a kernel?"""
        entry = re.match(r"(?:\.visible\s+)?(?:\.weak\s+)?\.entry\s+(\w+)\(", line)
        if entry:
            self.begin(entry.group(1), line)
            return True
        if re.match(r"\.loc\s", line):
            self.location(line)
            return True
        if self.kernel is None:
            return True
        return self.scope(line) or self.declaration(line) or line[0] in ".)"

    def location(self, line):
        """The line of the source; for the functions of memory.h that of their caller."""
        at = re.match(r"\.loc\s+(\d+)\s+(\d+)(?:.*inlined_at\s+(\d+)\s+(\d+))?", line)
        file, number, caller, from_line = at.groups()
        if caller and self.files.get(file) == "memory.h":
            file, number = caller, from_line
        if number != "0":
            self.place = "%s:%s" % (self.files.get(file, "?"), number)

    def begin(self, name, line):
        self.kernel = Kernel(name)
        self.kernels.append(self.kernel)
        while not line.endswith(")"):
            self.kernel.parameters += ".param" in line
            line = self.next()

    def scope(self, line):
        """Registers that are declared within braces hide others of the same names."""
        if line == "{":
            self.scopes.append({})
        elif line == "}":
            self.scopes.pop()
            if not self.scopes:
                self.kernel = None
        return line in "{}"

    def declaration(self, line):
        k = self.kernel
        many = re.match(r"\.reg\s+\.(\w+)\s+(%\w+)<(\d+)>;", line)
        one = re.match(r"\.reg\s+\.(\w+)\s+(%?\w+);", line)
        local = re.match(r"\.local\s+\.align\s+\d+\s+\.b8\s+(\w+)\[(\d+)\];", line)
        shared = re.match(r"\.shared\s+\.align\s+(\d+)\s+\.(\w+)\s+([^\[;]+)(?:\[(\d+)\])?;", line)
        if many:
            k.registers.update({many.group(2) + str(i): many.group(1) for i in range(int(many.group(3)))})
        elif one:
            name = "%%own%d_%s" % (len(k.registers), one.group(2).strip("%"))
            k.registers[name] = one.group(1)
            self.scopes[-1][one.group(2)] = name
        elif shared:
            kind = shared.group(2)
            k.shared[shared.group(3)] = (int(shared.group(1)), BITS[kind] // 8 * int(shared.group(4) or 1))
        elif local:
            k.local[local.group(1)] = int(local.group(2))
        return bool(many or one or shared or local)

    def statement(self, line):
        number = self.number
        label = re.match(r"(\$?\w+):$", line)
        if label:
            self.kernel.code.append(Statement(number, self.place, label.group(1).replace("$", ""), None, None, None))
            return
        while ";" not in line:
            line += " " + self.next()
        line = re.sub(r"[%$\w]+", lambda m: self.meant(m.group(0)), line.split(";")[0].strip())
        guard = re.match(r"@(!?)(%\w+)\s+(.*)", line)
        if guard:
            line = guard.group(3)
        opcode, _, operands = line.replace("\t", " ").partition(" ")
        guard = guard and guard.group(1, 2)
        self.kernel.code.append(Statement(number, self.place, None, guard, opcode, split(operands)))

    def meant(self, register):
        for scope in reversed(self.scopes):
            if register in scope:
                return scope[register]
        return register


def parse(text):
    return Reader(text).read()
