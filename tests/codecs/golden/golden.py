#!/usr/bin/env python3
"""golden.py: computes what codecs must send, in double precision and without the codecs' code.

Prints golden.inc, which test_blocks.c includes: for each codec the heads (numbers that a block of elements shares) and
the codes of the elements. Needs numpy. Run it after a change of a wire format:
    python3 tests/codecs/golden/golden.py >tests/codecs/golden/golden.inc
    python3 tests/codecs/golden/golden.py bodies >tests/codecs/golden/golden_bodies.inc
    python3 tests/codecs/golden/golden.py feedback >tests/codecs/golden/golden_feedback.inc
The second file has whole bodies, for test_variable.c and codecs whose payloads vary in size. The third one has what
error feedback keeps and sends over several steps, for test_feedback_golden.c.
"""
import struct
import sys

import numpy as np

N, SEED, KEY = 300, 42, 7


def philox(key, low, high):
    """Philox4x32-10 (Salmon et al., SC 2011): four 32-bit words for a 128-bit counter and a 64-bit key."""
    word = [low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF, high >> 32]
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * word[0], 0xCD9E8D57 * word[2]
        word = [q >> 32 ^ word[1] ^ k[0], q & 0xFFFFFFFF, p >> 32 ^ word[3] ^ k[1], p & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return word


def noise():
    """16 random bits an element, as espresso draws them for step 0, no earlier compression and rank 0."""
    w = philox(SEED, 0, KEY)
    w = philox(w[1] << 32 | w[0], 0, w[3] << 32 | w[2])
    key = w[1] << 32 | w[0]
    return np.array([philox(key, i // 8, 0)[i % 8 // 2] >> 16 * (i % 2) & 0xFFFF for i in range(N)], dtype=np.float64)


def vector():
    """Numbers with few bits, of both signs and several orders of magnitude, and some zeros."""
    x, state = [], 12345
    for i in range(N):
        state = (state * 1103515245 + 12345) % 2**31
        x.append(((state >> 12) % 2047 - 1023) / 2.0 ** (3 * (i % 4)))
    x[5] = x[77] = 0.0
    return np.array(x)


def blocks(x, block):
    return [x[i : i + block] for i in range(0, len(x), block)]


def fp8(x, u, block, mantissa):
    """Nearest number of the format by a search in a table of all of them; ties go to the even code."""
    bias, top = (7, 448.0) if mantissa == 3 else (15, 57344.0)
    size = np.arange(128)
    exponent, part = size >> mantissa, size & ((1 << mantissa) - 1)
    table = np.where(
        exponent > 0,
        (1 + part / 2**mantissa) * 2.0 ** (exponent - bias),
        part / 2**mantissa * 2.0 ** (1 - bias),
    )
    table = table[table <= top]
    heads, codes = [], []
    for b in blocks(x, block):
        unit = np.abs(b).max() / top
        y = np.abs(b) / unit
        distance = np.abs(table[None, :] - y[:, None]) + (np.arange(len(table)) % 2) * 1e-12
        heads += [unit * top]
        codes += list(distance.argmin(axis=1) | (b < 0) << 7)
    return heads, codes


def dynamic8(x, u, block):
    table = np.array([0.0] + [10.0 ** (i - 7) * (1 + 9 * (k + 0.5) / 2**i) for i in range(7) for k in range(2**i)])
    heads, codes = [], []
    for b in blocks(x, block):
        top = np.abs(b).max()
        at = np.abs(table[None, :] - np.abs(b)[:, None] / top).argmin(axis=1)
        heads += [top]
        codes += list(at | ((b < 0) & (at > 0)) << 7)
    return heads, codes


def qsgd(x, u, block, bits, norm, clip=0.0):
    most = 2 ** (bits - 1) - 1
    heads, codes = [], []
    for b, r in zip(blocks(x, block), blocks(u, block)):
        top = np.abs(b).max()
        if norm:
            top = np.sqrt((b * b).sum())
        elif clip:
            top = min(top, clip * np.sqrt((b * b).mean()))
        level = np.floor(np.minimum(np.abs(b) / (top / most) + (r + 0.5) / 65536, most)).astype(int)
        heads += [top / most]
        codes += list(np.where(b < 0, -level, level) & (2**bits - 1))
    return heads, codes


def qsgd_elias(x, block, bits, norm):
    """Elias gamma codes of |level| + 1, whose bits after the first follow from the lowest on, and signs."""
    heads, codes = qsgd(x, noise(), block, bits, norm)
    text = ""
    for c in codes:
        level = (int(c) ^ 1 << bits - 1) - (1 << bits - 1)
        binary = format(abs(level) + 1, "b")
        text += "0" * (len(binary) - 1) + "1" + binary[:0:-1] + ("" if level == 0 else "1" if level < 0 else "0")
    return 0, struct.pack("<%df" % len(heads), *heads) + int(text[::-1], 2).to_bytes((len(text) + 7) // 8, "little")


def natural(x, u):
    codes = []
    for v, r in zip(x, u):
        if v == 0:
            codes.append(0)
            continue
        mantissa, exponent = np.frexp(abs(v))
        up = (2 * mantissa - 1) + (r + 0.5) / 65536 >= 1
        code = exponent - 1 + int(up) + 127 - 18
        codes.append(code | int(v < 0) << 7)
    return [], codes


def maxmin(x, u, block, bits, random):
    heads, codes = [], []
    for b, r in zip(blocks(x, block), blocks(u, block)):
        step = (b.max() - b.min()) / (2**bits - 1)
        level = np.floor((b - b.min()) / step + ((r + 0.5) / 65536 if random else 0.5)).astype(int)
        heads += [b.min(), step]
        codes += list(np.minimum(level, 2**bits - 1))
    return heads, codes


def onebit(x, u, block):
    heads, codes = [], []
    for b in blocks(x, block):
        heads += [b[b < 0].mean(), b[b >= 0].mean()]
        codes += list((b < 0).astype(int))
    return heads, codes


def signsgd(x, u):
    return [], list((x < 0).astype(int))


def places(at):
    """16-bit indices or a bitmap of all elements, whichever is shorter; both describe one span of 65536."""
    size = (N + 31) // 32 * 4
    if size < 2 * len(at):
        return sum(1 << int(i) for i in at).to_bytes(size, "little")
    return struct.pack("<%dH" % len(at), *at)


def threshold(x, value):
    at = [i for i in range(N) if abs(x[i]) > value]
    return len(at), struct.pack("<%dfI" % len(at), *x[at], len(at)) + places(at)


def adaptive(x, ratio):
    means, held, where = [], [], b""
    for sign in (1, -1):
        side = [i for i in range(N) if x[i] * sign > 0]
        k = int(np.ceil(ratio * len(side)))
        at = sorted(sorted(side, key=lambda i: (-abs(x[i]), i))[:k])
        means, held, where = means + [x[at].mean()], held + [k], where + places(at)
    return 0, struct.pack("<2f2I", *means, *held) + where


def threelc(x, s):
    m = s * np.abs(x).max()
    digit = (np.sign(x) * (np.abs(x) >= m / 2)).astype(int) + 1
    part = (N + 4) // 5
    digit = np.concatenate([digit, np.ones(5 * part - N, dtype=int)]).reshape(5, part)
    text, sent, i = [int(b) for b in np.array([81, 27, 9, 3, 1]) @ digit], [], 0
    while i < part:
        run = 0
        while i + run < part and run < 14 and text[i + run] == 121:
            run += 1
        sent.append(text[i] if run < 2 else 243 + run - 2)
        i += max(run, 1)
    return 0, struct.pack("<Qf", 12 + len(sent), m) + bytes(sent)


def inceptionn(x, bound):
    unit = 2.0 ** (1 - bound)
    q = np.floor(np.abs(x.astype(np.float64)) / unit + 0.5).astype(int)
    width = np.where(q > 32767, 3, (q > 0).astype(int) + (q > 127))
    tags = np.concatenate([width, np.zeros(-N % 4, dtype=int)]).reshape(-1, 4) @ np.array([1, 4, 16, 64])
    sign = np.signbit(x).astype(int)
    one, two, four = (width == 1), (width == 2), (width == 3)
    body = (bytes(int(b) for b in tags) + bytes(int(b) for b in (q + 128 * sign)[one])
            + (q + 32768 * sign)[two].astype("<u2").tobytes() + x[four].astype("<f4").tobytes())
    return 0, struct.pack("<Q", 8 + len(body)) + body


def lossless(x):
    """One chunk, whose numbers have 10 bits of mantissa at most. Of equally light nodes the first ones are joined."""
    bits = x.astype("<f4").view("<u4").astype(int)
    exponent, rest = bits >> 23 & 255, bits >> 16 & 127 | bits >> 31 << 7
    lower = sum(int(v) << 3 * i for i, v in enumerate(bits >> 13 & 7)).to_bytes((3 * N + 7) // 8, "little")
    symbols, counts = np.unique(exponent, return_counts=True)
    nodes = [(int(c), (i,)) for i, c in enumerate(counts)]
    length = np.zeros(len(symbols), dtype=int)
    while len(nodes) > 1:
        light = sorted(range(len(nodes)), key=lambda i: nodes[i][0])[:2]
        joined = nodes[light[0]][1] + nodes[light[1]][1]
        length[list(joined)] += 1
        nodes = [n for i, n in enumerate(nodes) if i not in light] + [(sum(nodes[i][0] for i in light), joined)]
    word, code = {}, 0
    for n in range(1, length.max() + 1):
        code *= 2
        for symbol in symbols[length == n]:
            word[symbol] = format(code, f"0{n}b")
            code += 1
    lengths = dict(zip(symbols, length))
    halves = bytes(int(lengths.get(2 * i, 0) | lengths.get(2 * i + 1, 0) << 4) for i in range(128))
    streams = []
    for part in np.split(exponent, [75, 150, 225]):
        text = "".join(word[e] for e in part)
        streams.append(int(text[::-1], 2).to_bytes((len(text) + 7) // 8, "little"))
    sizes = struct.pack("<4I", *map(len, streams))
    chunk = bytes([11]) + halves + sizes + bytes(int(b) for b in rest) + lower + b"".join(streams)
    return 0, struct.pack("<I", len(chunk)) + chunk


def sketchml(x, bits):
    """N is below the sample's size, so that the sample has all elements."""
    size = 2**bits
    limits = np.sort(x)[[j * N // size for j in range(1, size)]]
    codes = [int((limits <= v).sum()) for v in x]
    means = [np.mean([v for v, c in zip(x, codes) if c == j] or [0]) for j in range(size)]
    packed = sum(c << bits * i for i, c in enumerate(codes))
    return 0, struct.pack("<%df" % size, *means) + packed.to_bytes((N * bits + 7) // 8, "little")


def mxnet1bit(x, limit):
    """MXNet's bits, the first element in a byte's highest bit, filled up to whole words of 32 bits."""
    return 0, np.packbits(np.concatenate([x > limit, np.zeros(-N % 32, dtype=bool)])).tobytes()


BODIES = {
    "mxnet1bit": (mxnet1bit, 0),
    "mxnet1bit:threshold=0.5": (mxnet1bit, 0.5),
    "threshold": (threshold, float(np.float32(0.01))),
    "threshold:value=2.5": (threshold, 2.5),
    "threshold:value=1022.5": (threshold, 1022.5),
    "threshold:value=900": (threshold, 900),
    "adaptive": (adaptive, 0.01),
    "adaptive:ratio=0.3": (adaptive, 0.3),
    "threelc": (threelc, 1),
    "threelc:s=1.75": (threelc, 1.75),
    "inceptionn": (inceptionn, 10),
    "inceptionn:bound=5": (inceptionn, 5),
    "inceptionn:bound=17": (inceptionn, 17),
    "lossless": (lossless,),
    "qsgd:elias=1,norm=0": (qsgd_elias, 128, 8, False),
    "qsgd:elias=1,bits=4,block=64,norm=0": (qsgd_elias, 64, 4, False),
    "sketchml": (sketchml, 6),
    "sketchml:bits=3": (sketchml, 3),
}

CASES = {
    "fp8": (8, fp8, 128, 3),
    "fp8:mantissa=2,block=64": (8, fp8, 64, 2),
    "dynamic8": (8, dynamic8, 1024),
    "qsgd": (8, qsgd, 128, 8, True),
    "qsgd:bits=4,block=64,norm=0": (4, qsgd, 64, 4, False),
    "terngrad": (2, qsgd, 1024, 2, False, 2.5),
    "terngrad:block=128,clip=0": (2, qsgd, 128, 2, False),
    "natural": (8, natural),
    "maxmin": (4, maxmin, 1024, 4, False),
    "maxmin:bits=3,block=128,random=1": (3, maxmin, 128, 3, True),
    "onebit:block=64": (1, onebit, 64),
    "signsgd": (1, signsgd),
    "signum:momentum=0.5": (1, signsgd),
}


def print_input(x):
    print("static const float golden_input[GOLDEN_N] = {%s};" % ", ".join(float(v).hex() + "f" for v in x))


def print_bodies():
    x = vector()
    print("/* golden_bodies.inc: written by golden.py. { spec, aux, bytes of the body, the body } for golden_input[] */")
    print_input(x)
    print("static const golden golden_bodies[] = {")
    for spec, (codec, *params) in BODIES.items():
        aux, body = codec(x, *params)
        print('    {"%s", %d, %d, {%s}},' % (spec, aux, len(body), ", ".join(str(b) for b in body) or "0"))
    print("};")


FEEDBACK_N, FEEDBACK_STEPS, FEEDBACK_RANKS = 96, 6, 4


def gradient(step, rank):
    return np.array([((3 * i * i + 17 * step + 29 * rank + i) % 61 - 30) / 16.0 for i in range(FEEDBACK_N)])


def loco(beta, reset, block):
    """Residuals of LoCo's moving average, after each step: codec onebit sends the means of both signs."""
    e, kept = np.zeros(FEEDBACK_N), []
    for step in range(FEEDBACK_STEPS):
        phi = e + gradient(step, 0)
        heads, codes = onebit(phi, None, block)
        sent = np.array([heads[2 * (i // block) + 1 - c] for i, c in enumerate(codes)])
        e = beta * e + (1 - beta) * (phi - sent)
        if (step + 1) % reset == 0:
            e = np.zeros(FEEDBACK_N)
        kept.append(e)
    return kept


def signs(x, error):
    """1-bit Adam's compression: signs times the norm divided by the root of the size, and what is missing."""
    x = x + error
    sent = np.where(x < 0, -1.0, 1.0) * np.linalg.norm(x) / np.sqrt(len(x))
    return sent, x - sent


def two_way():
    """Results of 1-bit Adam's all-reduce: rank k is the server of part k, and compresses its mean again."""
    part, ranks, results = FEEDBACK_N // FEEDBACK_RANKS, range(FEEDBACK_RANKS), []
    worker = np.zeros((FEEDBACK_RANKS, FEEDBACK_RANKS, part))
    server = np.zeros((FEEDBACK_RANKS, part))
    for step in range(FEEDBACK_STEPS):
        result = np.zeros(FEEDBACK_N)
        for k in ranks:
            place, mean = slice(k * part, (k + 1) * part), np.zeros(part)
            for rank in ranks:
                sent, worker[rank][k] = signs(gradient(step, rank)[place], worker[rank][k])
                mean += sent / FEEDBACK_RANKS
            result[place], server[k] = signs(mean, server[k])
        results.append(result)
    return results


def print_feedback():
    print("/* golden_feedback.inc: written by golden.py. Residuals and results after each step */")
    sizes = (FEEDBACK_N, FEEDBACK_STEPS, FEEDBACK_RANKS)
    print("enum { FEEDBACK_N = %d, FEEDBACK_STEPS = %d, FEEDBACK_RANKS = %d };" % sizes)
    for name, steps in (("loco", loco(0.75, 4, 32)), ("two_way", two_way())):
        print("static const double golden_%s[FEEDBACK_STEPS][FEEDBACK_N] = {" % name)
        for x in steps:
            print("    {%s}," % ", ".join("%.9g" % v for v in x))
        print("};")


def main():
    if sys.argv[1:] == ["feedback"]:
        return print_feedback()
    if sys.argv[1:] == ["bodies"]:
        return print_bodies()
    x, u = vector(), noise()
    print("/* golden.inc: written by golden.py. { spec, bits of a code, heads, codes } for golden_input[] */")
    print_input(x)
    print("static const golden golden_cases[] = {")
    for spec, (bits, codec, *params) in CASES.items():
        heads, codes = codec(x, u, *params)
        numbers = ", ".join(float(h).hex() for h in heads) or "0"
        print('    {"%s", %d, %d, {%s},' % (spec, bits, len(heads), numbers))
        print("     {%s}}," % ", ".join(str(int(c)) for c in codes))
    print("};")


if __name__ == "__main__":
    main()
