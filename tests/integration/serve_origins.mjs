// A page of another origin in headless Chromium: node serve_origins.mjs PORT CHROMIUM PAGE_PORT, from a folder with
// puppeteer-core. The server allows http://localhost:PAGE_PORT.
import assert from "node:assert/strict";
import http from "node:http";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const require = createRequire(process.cwd() + "/");
const {default: puppeteer} = await import(pathToFileURL(require.resolve("puppeteer-core")).href);
const [port, executablePath, pagePort] = process.argv.slice(2);
const pages = http.createServer((_, answer) => answer.setHeader("Content-Type", "text/html").end("<title>page</title>"));
await new Promise(done => pages.listen(Number(pagePort), "127.0.0.1", done));
const browser = await puppeteer.launch({executablePath, headless: true, args: ["--no-sandbox", "--disable-dev-shm-usage"]});
// What a page there reads of an answer here; null where the browser keeps it away.
const ask = async (origin, path, options) => {
  const page = await browser.newPage();
  try {
    await page.goto(origin + "/");
    return await page.evaluate(async (url, options) => {
      try {
        const answer = await fetch(url, options);
        return {status: answer.status, id: answer.headers.get("X-Request-Id"), text: await answer.text()};
      } catch {
        return null;
      }
    }, `http://127.0.0.1:${port}${path}`, options);
  } finally {
    await page.close();
  }
};
const headers = {"Content-Type": "application/json", "Authorization": "Bearer any", "X-Stainless-OS": "Linux"};
const post = body => ({method: "POST", headers, body: JSON.stringify(body)});
const allowed = `http://localhost:${pagePort}`, other = `http://127.0.0.1:${pagePort}`;
try {
  const whole = await ask(allowed, "/v1/responses", post({input: "a", max_output_tokens: 4, temperature: 0}));
  assert.equal(whole.status, 200);
  assert.ok(whole.id && JSON.parse(whole.text).output[0].content[0].text);
  const stream = await ask(allowed, "/v1/responses", post({input: "a", max_output_tokens: 4, temperature: 0, stream: true}));
  assert.match(stream.text, /event: response\.incomplete\n/);
  const wrong = await ask(allowed, "/v1/responses", post({input: "a", store: true}));
  assert.deepEqual([wrong.status, JSON.parse(wrong.text).error.param], [400, "store"]);
  assert.equal((await ask(allowed, "/v1/models")).status, 200);
  assert.equal(await ask(allowed, "/v1/models", {credentials: "include"}), null);
  assert.equal(await ask(other, "/v1/responses", post({input: "a", max_output_tokens: 4})), null);
  assert.equal(await ask(other, "/v1/models"), null);
  console.log(await browser.version(), "lets the pages ask that may");
} finally {
  await browser.close();
  pages.close();
}
