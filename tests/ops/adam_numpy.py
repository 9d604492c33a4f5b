#!/usr/bin/env python3
"""Adam by NumPy in float64, against what the CPU has stored.

    adam_numpy.py FORMS.safetensors    (adam_cases writes it)

Every number of every form: the weight with its master or codes, both moments, the scales, the bf16
that products read. Allowed: half a unit of the type that holds the number, a whole one where the
rounding is drawn or cut, and sixteen roundings of f32, 2^-24 each, of the sizes of the terms: an
update has no more.
"""
import json
import sys

import numpy as np

BITS = {"f32": (23, -126), "bf16": (7, -126), "f16": (10, -14), "e4m3": (3, -6)}
MOST = {"f16": 65504.0, "e4m3": 448.0}
ARITHMETIC = 16 * 2.0**-24


def e4m3_table():
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    size[code & 127 == 127] = np.nan
    return np.where(code & 128, -size, size)


E4M3 = e4m3_table()


def decoded(a, dtype):
    if dtype == "bf16":
        return (a.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "e4m3":
        return E4M3[a]
    return a.astype(np.float64)


def as_bf16(x):
    """The nearest, ties to even."""
    u = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def unit(dtype, x, scale):
    """The step of the type at x, which is stored in units of scale."""
    bits, least = BITS[dtype]
    exponent = np.frexp(x / scale)[1] - 1
    return scale * 2.0 ** (np.maximum(exponent, least) - bits)


# What NumPy has for the bits: bf16 as u16, e4m3 as u8.
ARRAY = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "U16": "<u2", "F8_E4M3": "u1"}


def tensors(path):
    """The arrays of a safetensors file, and its metadata."""
    with open(path, "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    notes = head.pop("__metadata__")
    arrays = {}
    for name, t in head.items():
        begin, end = t["data_offsets"]
        arrays[name] = np.frombuffer(data[begin:end], ARRAY[t["dtype"]]).reshape(t["shape"])
    return arrays, notes


class Form:
    def __init__(self, arrays, number, text):
        self.o = dict(pair.split("=") for pair in text.split())
        self.side = {
            s: {k.split(".")[2]: arrays[k] for k in arrays if k.startswith(f"{number}.{s}.")}
            for s in ("before", "after")
        }
        self.wrong = []

    def flag(self, key):
        return self.o[key] == "1"

    def number(self, key):
        return float(self.o[key])

    def code_scale(self, side):
        s = self.side[side]
        return s["w_scale"].astype(np.float64) if self.flag("code_rows") else self.number("scale_inv")

    def value(self, side):
        """P as it is held, its type, and the scale of that."""
        s, master = self.side[side], self.o["master"]
        if master == "u16":
            low = s["master"] if self.flag("truncate") else s["master"].view(np.int16)
            bits = (s["w"].astype(np.int64) << 16) + low.astype(np.int64)
            return bits.astype(np.uint32).view(np.float32).astype(np.float64), "f32", 1.0
        if master != "none":
            scale = s["master_scale"].astype(np.float64) if master == "f16" else 1.0
            return decoded(s["master"], master) * scale, master, scale
        if self.o["w"] != "none":
            return decoded(s["w"], self.o["w"]), self.o["w"], 1.0
        return decoded(s["codes"], "e4m3") * self.code_scale(side), "e4m3", self.code_scale(side)

    def moment(self, name, side):
        s, dtype = self.side[side], self.o[name]
        scale = s[name + "_scale"].astype(np.float64) if dtype in MOST else 1.0
        return decoded(s[name], dtype) * scale, dtype, scale

    def near(self, what, got, want, allowed):
        off = np.abs(got - want)
        if not np.all(off <= allowed):  # false with a NaN
            self.wrong.append(f"{what}: {np.sum(~(off <= allowed))} of {off.size} off")

    def check_moment(self, name, want, terms):
        got, dtype, scale = self.moment(name, "after")
        drawn = self.flag("drawn") and dtype != "f32"
        allowed = (1.0 if drawn else 0.5) * 1.0001 * unit(dtype, want, scale) + ARITHMETIC * terms
        if name == "v" and dtype in MOST:  # v > 0 does not become 0
            least = 2.0 ** (BITS[dtype][1] - BITS[dtype][0]) * scale
            want = np.where((want > 0) & (want < least), least, want)
        self.near(name, got, want, allowed)
        if dtype in MOST and not self.flag("whole"):
            self.check_scale(name, scale, np.abs(got), MOST[dtype])

    def check_scale(self, what, scale, size, most):
        """The least power of two with which the row's largest number, as it is stored, fits."""
        top = size.max(axis=1, keepdims=True)
        fits = (np.frexp(scale)[0] == 0.5) & (top <= most * scale)
        tight = (scale == 2.0**-126) | (top >= 0.99 * most / 2 * scale)
        if not np.all(fits & tight):
            self.wrong.append(f"{what}: scales do not fit")

    def check(self):
        p, _, _ = self.value("before")
        m, v = self.moment("m", "before")[0], self.moment("v", "before")[0]
        g = decoded(self.side["before"]["g"], self.o["g"]) * self.number("factor")
        beta1, beta2, eps = self.number("beta1"), self.number("beta2"), self.number("eps")
        decay, rate, size = self.o["decay"], self.number("weight_decay"), np.abs(g)
        if decay == "2":  # L2
            g, size = g + rate * p, size + rate * np.abs(p)
        terms_m = beta1 * np.abs(m) + (1 - beta1) * size
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        self.check_moment("m", m, terms_m)
        self.check_moment("v", v, v + (1 - beta2) * size * size)
        root = np.sqrt(v + eps) if self.flag("eps_inside") else np.sqrt(v) + eps
        delta = m / root * self.number("step_size")
        terms = np.abs(p) + terms_m / root * self.number("step_size")
        # the root's relative error where v's terms cancel in g
        terms += np.abs(delta) * (1 - beta2) * size * size / np.maximum(v, eps * eps)
        either = np.zeros_like(p)  # what a cautious decay adds where m's sign is not certain
        if decay == "1":  # AdamW
            delta = delta + rate * p
        elif decay == "0":  # cautious
            either = np.where(np.abs(m) <= ARITHMETIC * terms_m, rate * np.abs(p), 0)
            delta = delta + np.where(delta * p > 0, rate * p, 0)
        want = p - delta
        got, dtype, scale = self.value("after")
        held = np.clip(want, -448 * scale, 448 * scale) if dtype == "e4m3" else want
        within = ARITHMETIC * terms + either
        self.near("P", got, held, 0.5001 * unit(dtype, held, scale) + within)
        if self.o["master"] == "f16":
            self.check_scale("master", scale, np.abs(got), MOST["f16"])
        if self.o["master"] != "none" and self.o["w"] != "none":
            whole = self.flag("truncate") and self.o["master"] == "u16"
            self.near(
                "w",
                decoded(self.side["after"]["w"], self.o["w"]),
                want,
                (1.0001 if whole else 0.5001) * unit(self.o["w"], want, 1.0) + within,
            )
        if "compute" in self.side["after"]:
            after = self.side["after"]
            stored = (
                decoded(after["w"], "f16")
                if self.o["w"] == "f16"
                else decoded(after["codes"], "e4m3") * self.code_scale("after")
            )
            self.near("compute", after["compute"].astype(float), as_bf16(stored).astype(float), 0)
        return p.size


def main():
    arrays, notes = tensors(sys.argv[1])
    elements = wrong = 0
    for number in sorted(notes, key=int):
        form = Form(arrays, number, notes[number])
        elements += form.check()
        if form.wrong:
            wrong += 1
            print(f"form {number}, {notes[number]}: {'; '.join(form.wrong)}")
    print(f"{len(notes)} forms, {elements} elements, {wrong} forms off")
    sys.exit(1 if wrong or not elements else 0)


main()
