// SPDX-License-Identifier: MIT
// Tokens of many texts by Hugging Face's tokenizers library: a judge that nobody here wrote.
//   node huggingface_tokens.mjs NODE_MODULES tokenizer.json TEXTS      TEXTS: separated by NUL; a line of ids each
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import path from "node:path";

const [modules, file, textsFile] = process.argv.slice(2);
const require = createRequire(path.resolve(modules) + "/");
const { Tokenizer } = require("tokenizers");
const tokenizer = Tokenizer.fromString(readFileSync(file, "utf8"));
for (const text of readFileSync(textsFile, "utf8").split("\0")) {
  const encoding = await tokenizer.encode(text, null, { addSpecialTokens: true });
  console.log(Array.from(encoding.getIds()).join(","));
}
