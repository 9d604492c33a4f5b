#!/usr/bin/env python3
"""Validation loss of an exported model of record 61's topology, in NumPy alone.

    numpy_loss.py MODEL.safetensors VAL-SHARD.bin TOKENS CHUNK

MODEL is `gpt-ckpt export --dtype bf16` of a run's last checkpoint; TOKENS and CHUNK are
the recipe's val_tokens and val_chunk. export-to-numpy.sh shows the use.
"""
import json, re, sys
try:
    import numpy as np
except ImportError:
    sys.exit("numpy_loss.py: NumPy is missing (Debian: apt install python3-numpy)")

def tensors(path):                                           # safetensors: a JSON object, then the data
    file = open(path, "rb").read()
    data = 8 + int.from_bytes(file[:8], "little")
    head = json.loads(file[8:data])
    meta, values = head.pop("__metadata__"), {}
    for name, t in head.items():
        a, b = t["data_offsets"]
        x = np.frombuffer(file[data + a:data + b], "<u2" if t["dtype"] == "BF16" else "<f4")
        if t["dtype"] == "BF16":                             # the upper half of a float
            x = (x.astype("u4") << 16).view("f4")
        values[name] = x.reshape(t["shape"])
    return values, meta

m, meta = tensors(sys.argv[1])
ids = np.fromfile(sys.argv[2], "<u2", offset=1024).astype(int)
tokens, T = int(sys.argv[3]), int(sys.argv[4])
recipe = meta["gpt.recipe"]
block = int(re.search(r"^block = (\d+)", recipe, re.M)[1])
def W(name, i=None): return m[f"{name}.weight" if i is None else f"layers.{i}.{name}.weight"]
H, d = len(W("attn_gate", 0)), W("embed").shape[1]; dh = d // H
def norm(x): return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(2**-23))
def sigmoid(x): return 1 / (1 + np.exp(-x))
def bf16(x): u = x.view("u4"); return (u + 0x7fff + (u >> 16 & 1) & 0xffff0000).view("f4")

f, scale = (1 / np.float32(1024)) ** np.linspace(0, 1, dh // 4, dtype="f4"), 0.1
for old, new in ((3, 7), (7, 8)):                          # YaRN, as the long window grew
    ramp = np.clip((block * old * f / (2 * np.pi) - 1) / 31, 0, 1)
    f = (f * (old / new + ramp * (1 - old / new))).astype("f4")
    scale *= 1 + .2 * np.log(new / old)

def rotate(x, position):                                     # by -angle, half of the channels
    angle = position[..., None].astype("f4") * f
    c, s, y = bf16(np.cos(angle)), bf16(np.sin(angle)), x.copy()
    a, b = x[..., 0:dh//2:2], x[..., 1:dh//2:2]
    y[..., 0:dh//2:2], y[..., 1:dh//2:2] = c * a + s * b, c * b - s * a
    return y

def attend(q, k, v, document, window):                       # (rows, heads, channels)
    row = np.arange(len(q)); back = row[:, None] - row
    seen = (document[:, None] == document) & (back >= 0) & (back <= window)
    q, k, v = (x.swapaxes(0, 1) for x in (q, k, v))
    p = np.where(seen, np.float32(scale) * (q @ k.swapaxes(1, 2)), np.float32("-inf"))
    p = np.exp(p - p.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True) @ v).swapaxes(0, 1)

def attention(y, i, tok, document):
    paired, far, table = i in (0, 2, 5, 9), i in (3, 10), {0: 1, 1: 2, 8: 0, 9: 1, 10: 2}.get(i)
    q, k, v = ((y @ (W("qkv", i) * W("attn." + n, i)).T).reshape(-1, H, dh) for n in "qkv")
    position = np.arange(len(y))[:, None] * (1 + paired) + paired * (np.arange(H) % 2)
    q, k = rotate(norm(q), position), rotate(norm(k), position)
    if far:                                                  # some channels look one key back
        c = np.r_[dh//4:dh//2, 3*dh//4:dh]; k[1:, :, c] = k[:-1, :, c]
    if table is not None:
        gate = 2 * sigmoid(y[:, :12] @ W("ve_gate", i).T)
        v = v + gate[..., None] * W(f"ve{table}")[tok].reshape(-1, H, dh)
    if paired:                                               # two rows a token, half the heads
        q, k, v = (x.reshape(-1, H // 2, dh) for x in (q, k, v))
    o = attend(q, k, v, document.repeat(1 + paired), block * (20 if far else 4)).reshape(-1, H, dh)
    o = o * sigmoid(y[:, :12] @ W("attn_gate", i).T)[..., None]
    return o.reshape(-1, d) @ (W("out", i) * W("attn.o", i)).T

def loss(tok, target):
    e = W("embed")[tok]; s, out, document = e.copy(), {}, np.cumsum(tok == ids[0])
    s[1:] += W("smear") * sigmoid(e[1:, :12] @ W("smear_gate").T) * e[:-1]
    x = x0 = norm(s)
    for i in range(11):
        if i == 6:
            x = x + 2 * sigmoid(W("skip")) * sigmoid(x0[:, :12] @ W("skip_gate").T) * out[3]
        x = W("residual", i) * x + W("x0", i) * x0
        if i != 6:
            x = x + attention(norm(x), i, tok, document)
        x = out[i] = x + np.maximum(norm(x) @ W("mlp.fc", i).T, 0) ** 2 @ W("mlp.proj", i)
    z = 23 * sigmoid((norm(x - W("backout") * out[7]) @ W("lm_head") + 5) / 7.5)
    return (np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), target]).mean()

print(np.mean([loss(ids[at:at + T], ids[at + 1:at + T + 1]) for at in range(0, tokens, T)]))
