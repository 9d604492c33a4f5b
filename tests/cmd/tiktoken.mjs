// tiktoken.mjs - the npm package tiktoken, for the tests that hold gpt-tokshard against it.
//
//   node tests/cmd/tiktoken.mjs FOLDER units         tests/golden/bpe-units.tsv: text as JSON, tokens
//   node tests/cmd/tiktoken.mjs FOLDER encode        .jsonl on stdin -> 50256 and tokens, uint16, on stdout
//   node tests/cmd/tiktoken.mjs FOLDER speed         the same, timed: "BYTES SECONDS" on stdout
//   node tests/cmd/tiktoken.mjs - unicode | random | worst      text to compare on, as .jsonl
//   node tests/cmd/tiktoken.mjs - files FILE...      files as .jsonl
//
// FOLDER is where `npm install tiktoken` was run (tests/cmd/npm-folder).
import { createRequire } from "node:module";
import fs from "node:fs";
import path from "node:path";

const [folder, mode, ...files] = process.argv.slice(2);
const gpt2 = folder === "-" ? null
    : createRequire(path.resolve(folder, "x.js"))("tiktoken").get_encoding("gpt2");

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

// Deterministic random numbers: a linear congruential generator of 2^32, its high bits.
let state = 1;
const below = (n) => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0, Math.floor(state / 2 ** 32 * n));
const line = (text) => console.log(JSON.stringify({ text }));

// Every code point but the surrogates, each in a word, a number, between spaces, behind a symbol,
// before a contraction, behind a line break and before two spaces; some 32 to a document. Planes 4 to 13,
// where nothing is assigned, and those for private use are of one class: one in 61 of them.
function everyCodePoint() {
    let doc = "";
    for (let c = 0; c < 0x110000; c++) {
        if ((c >= 0xd800 && c < 0xe000) || (c >= 0x40000 && c >> 16 !== 14 && c % 61 && c < 0x10ffff))
            continue;
        const x = String.fromCodePoint(c);
        doc += `a${x}b ${x} 1${x}2!${x}'s\n${x}  `;
        if (doc.length > 800) {
            line(doc);
            doc = "";
        }
    }
    line(doc);
}

const pieces = ["a", "The", "the", " the", " a", "s", "'s", "'t", "'ll", "'re", "'d", "'D", "'", "\u2019s", "1", "42",
    "007", ".", ",", "...", "!", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u2028", "\u3000", "\u200b",
    "\ufeff", "\u00e9", "e\u0301", "\u00df", "\u4e2d", "\u6587", "\u3042", "\ud55c", "\u0661", "\u00b2", "\u0915\u094d",
    "\u{1f600}", "\u{1f468}\u200d\u{1f469}", "\u{1f1e9}\u{1f1ea}", "(", ")", "{", "}", "=", "==", "-", "--", "_", "#",
    "<|endoftext|>", "http://", "ing", "tion", "_x", "\u0000", "\u001c", "\u0085"];

function randomStrings() {
    for (let i = 0; i < 100000; i++) {
        let s = "";
        for (let n = below(12); n > 0; n--)
            s += below(8) ? pieces[below(pieces.length)] : String.fromCodePoint(below(0xd800));
        line(s);
    }
}

// tiktoken takes the square of their length, so these are short.
function worstCases() {
    for (const unit of ["a", "^", " ", "\n", "\u{1f600}", "\u6f22", "ab", "=", "\u00a0", "0", "'s", " a", "\u0000"])
        for (const n of [1, 2, 3, 5, 63, 64, 65, 127, 128, 129, 1000, 4001])
            line(unit.repeat(n));
    // Runs of one script, which is one pre-token, with and without tokens over several characters.
    const scripts = [[0x4e00, 6000], [0x3041, 180], [0x30a1, 90], [0xac00, 11000], [0x430, 32], [0x627, 36],
        [0x905, 53], [0x1f600, 60], [0x61, 5], [0x21, 15]];
    for (let i = 0; i < 2000; i++) {
        let s = "";
        for (let n = below(400); n > 0; n--) {
            const [first, count] = scripts[below(16) ? i % scripts.length : below(scripts.length)];
            s += String.fromCodePoint(first + below(count));
        }
        line(s);
    }
}

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
        const start = process.hrtime.bigint(), cpu = process.cpuUsage();
        for (const text of docs)
            gpt2.encode_ordinary(text);
        const used = process.cpuUsage(cpu);      // the less of clock and processor: a busy machine
        best = Math.min(best, Number(process.hrtime.bigint() - start) / 1e9, (used.user + used.system) / 1e6);
    }
    console.log(bytes + " " + best);
} else if (mode === "files") {
    for (const f of files)
        line(fs.readFileSync(f, "utf8"));
} else {
    ({ unicode: everyCodePoint, random: randomStrings, worst: worstCases })[mode]();
}
