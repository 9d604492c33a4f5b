// tokenizers.mjs - Hugging Face's tokenizers, for the test that holds gpt-tokshard's ids of a tokenizer.json
// against theirs.
//
//   node tests/cmd/tokenizers.mjs make RANKS FORM            a tokenizer.json of a rank file's vocabulary:
//       plain     ids are ranks, <|endoftext|> behind them, merges as strings
//       permuted  four special tokens, <s> at 0, and ids in another order, as RoBERTa's; merges as pairs
//       split     GPT-2's pattern apart from the bytes, specials behind a gap
//   node tests/cmd/tokenizers.mjs encode FOLDER FILE START   .jsonl on stdin -> START and ids, uint16
//
// FOLDER is where `npm install @anush008/tokenizers` was run (tests/cmd/npm-folder): the Rust library.
import { createRequire } from "node:module";
import fs from "node:fs";
import path from "node:path";

const [mode, ...args] = process.argv.slice(2);
const pattern = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// The printable letter of each byte.
const letters = [];
for (let b = 0, n = 0; b < 256; b++)
    letters.push(String.fromCodePoint((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : 256 + n++));

// The two tokens that a token is the merge of: its bytes, merged by all lower ranks.
function halves(name, rank) {
    const own = rank.get(name), part = [...name];
    while (part.length > 2) {
        let best = own, at = -1;
        for (let i = 0; i + 1 < part.length; i++) {
            const r = rank.get(part[i] + part[i + 1]);
            if (r !== undefined && r < best)
                [best, at] = [r, i];
        }
        part.splice(at, 2, part[at] + part[at + 1]);
    }
    return part;
}

function make(file, form) {
    const names = fs.readFileSync(file, "latin1").trim().split("\n")
        .map((line) => [...Buffer.from(line.split(" ")[0], "base64")].map((b) => letters[b]).join(""));
    const rank = new Map(names.map((name, i) => [name, i])), n = names.length;
    const special = { plain: { "<|endoftext|>": n }, permuted: { "<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3 },
        split: { "<|endoftext|>": n + 5, "<pad>": n + 9 } }[form];
    const id = (i) => form === "permuted" ? 4 + (i * 7919) % n : i;       // 7919 is prime, n no multiple
    const vocab = { ...(form === "plain" ? special : {}) };
    names.forEach((name, i) => { vocab[name] = id(i); });
    const merges = names.slice(256).map((name) => halves(name, rank));
    const level = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: form !== "split" };
    const steps = [{ type: "Split", pattern: { Regex: pattern }, behavior: "Isolated", invert: false }, level];
    return {
        version: "1.0", truncation: null, padding: null,
        added_tokens: Object.entries(special).map(([content, i]) => ({ id: i, content, single_word: false,
            lstrip: false, rstrip: false, normalized: false, special: true })),
        normalizer: null,
        pre_tokenizer: form === "split" ? { type: "Sequence", pretokenizers: steps } : level,
        post_processor: { type: "ByteLevel", add_prefix_space: true, trim_offsets: false, use_regex: true },
        decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
        model: { type: "BPE", dropout: null, unk_token: null, continuing_subword_prefix: "",
            end_of_word_suffix: "", fuse_unk: false, byte_fallback: false, ignore_merges: form === "split",
            vocab, merges: form === "plain" ? merges.map((m) => m.join(" ")) : merges },
    };
}

async function encode(folder, file, start) {
    const { Tokenizer } = createRequire(path.resolve(folder, "x.js"))("@anush008/tokenizers");
    const theirs = Tokenizer.fromFile(file);
    for (const line of fs.readFileSync(0, "utf8").split("\n").filter((l) => l.trim())) {
        const text = JSON.parse(line).text;
        const ids = text ? (await theirs.encode(text, null, { addSpecialTokens: false })).getIds() : [];
        fs.writeSync(1, Buffer.from(Uint16Array.from([Number(start), ...ids]).buffer));
    }
}

if (mode === "make")
    fs.writeFileSync(1, JSON.stringify(make(...args)));
else
    await encode(...args);
