// tiktoken.mjs - the npm package tiktoken, for the tests that hold gpt-tokshard against it.
//
//   node tests/tiktoken.mjs FOLDER units         tests/golden/bpe-units.tsv: text as JSON, tokens
//   node tests/tiktoken.mjs FOLDER encode        .jsonl on stdin -> 50256 and tokens, uint16, on stdout
//   node tests/tiktoken.mjs FOLDER speed         the same, timed: "BYTES SECONDS" on stdout
//
// FOLDER is where `npm install tiktoken` was run.
import { createRequire } from "node:module";
import fs from "node:fs";
import path from "node:path";

const [folder, mode] = process.argv.slice(2);
const { get_encoding } = createRequire(path.resolve(folder, "x.js"))("tiktoken");
const gpt2 = get_encoding("gpt2");

const units = [
    "Hello world",
    "don't I'M we'll you're they've I'd it's O'Reilly's",
    "'s 'S 't're''ll'x",
    "DON'T it\u2019s",
    "'ve'VE ' s 're-'d 'lling 'sam",
    "  two  spaces",
    "a\n\nb \n c\t\td\r\n",
    "a\u00a0b \u00a0 c\u00a0\u00a0d \u00a0",
    "can't\u00a0've \u00a0's",
    "x \u2028y\u2029z\u0085w",
    "\u1680\u2003\u205f\u202fx\u3000",
    "\u3000\u3000\u6f22\u5b57\u304b\u306a\u4ea4\u3058\u308a\u6587\u3002",
    "\u200bzero\ufeffwidth\u2060",
    "\u{1f600}\u{1f468}\u200d\u{1f469}\u200d\u{1f467}\u{1f1e9}\u{1f1ea} \u{1f44d}\u{1f3fd}",
    "e\u0301 n\u0303o \u0915\u094d\u0937",
    "\u0661\u0662\u0663 \u00b2\u00bd \u2167 12345 3.14",
    "\u1c89\u{10d40}\u{2ebf0} \u{1e4d0}'s",
    "<|endoftext|>",
    "trailing   ",
    "   ",
    "\n",
    "a b\u001cc\u001fd",
    "___ *** --- ====",
    "\u00dcn\u00efc\u00f6d\u00e9 \u00c0\u00c9\u00ce \u00df \u017f \u0149",
    "foo(bar);\n\n\tif (x != NULL) {\n        return 0;\n    }\n",
    "\u0000\u0001\u007f",
    "\ud7ff\ue000\uffff\u{10ffff}",
    "",
];

const ascii = (s) => JSON.stringify(s).replace(/[\u007f-\uffff]/g,
    (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

function documents() {
    return fs.readFileSync(0, "utf8").split("\n").filter((l) => l.trim()).map((l) => JSON.parse(l).text);
}

if (mode === "units") {
    for (const s of units)
        console.log(ascii(s) + "\t" + [...gpt2.encode_ordinary(s)].join(" "));
} else if (mode === "encode") {
    for (const text of documents()) {
        const t = gpt2.encode_ordinary(text);
        const out = new Uint16Array(t.length + 1);
        out[0] = 50256;
        out.set(t, 1);
        fs.writeSync(1, Buffer.from(out.buffer));
    }
} else if (mode === "speed") {
    const docs = documents();
    const bytes = docs.reduce((n, s) => n + Buffer.byteLength(s), 0);
    let best = Infinity;
    for (let run = 0; run < 3; run++) {
        const start = process.hrtime.bigint();
        for (const text of docs)
            gpt2.encode_ordinary(text);
        best = Math.min(best, Number(process.hrtime.bigint() - start) / 1e9);
    }
    console.log(bytes + " " + best);
}
