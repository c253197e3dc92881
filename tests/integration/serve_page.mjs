// The page in headless Chromium: node serve_page.mjs PORT CHROMIUM, from a folder with puppeteer-core.
import assert from "node:assert/strict";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const require = createRequire(process.cwd() + "/");
const {default: puppeteer} = await import(pathToFileURL(require.resolve("puppeteer-core")).href);
const [port, executablePath] = process.argv.slice(2);
const base = `http://127.0.0.1:${port}`;
const browser = await puppeteer.launch({executablePath, headless: true, args: ["--no-sandbox", "--disable-dev-shm-usage"]});
try {
  const page = await browser.newPage();
  const problems = [], elsewhere = [];
  page.on("console", m => m.type() === "error" && problems.push(m.text()));
  page.on("pageerror", e => problems.push(String(e)));
  page.on("request", r => r.url().startsWith(base + "/") || elsewhere.push(r.url()));
  await page.goto(base + "/");
  await page.waitForFunction(() => document.getElementById("model").options.length > 0);
  const models = (await (await fetch(base + "/v1/models")).json()).data.map(m => m.id);
  assert.deepEqual(await page.$$eval("#model option", o => o.map(x => x.value)), models);

  // Continuing a text streams, and the chart follows.
  await page.click("#plain");
  await page.type("#text", "Permission is hereby granted");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.getElementById("chart").dataset.points > 3);
  await page.waitForSelector("article.assistant[data-finished]");
  const text = await page.$eval("article.assistant span", e => e.textContent);
  assert.ok(text.length > 20, text);
  assert.match(await page.$eval("#numbers", e => e.textContent), /first \d+ ms, gap p50 [\d.]+, p99 [\d.]+ ms/);
  const painted = await page.$eval("#chart", c => c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some(x => x > 0));
  assert.ok(painted);

  // A chat, stopped by hand; markup is text.
  await page.click("#plain");
  await page.click("#clear");
  await page.type("#text", "<b>one</b>");
  await page.click("#send");
  await page.waitForFunction(() => !document.getElementById("stop").disabled &&
    document.querySelector("article.assistant span").textContent.length > 0);
  await page.click("#stop");
  await page.waitForSelector("article.assistant[data-finished]");
  assert.equal(await page.$eval("article.user span", e => e.innerHTML), "&lt;b&gt;one&lt;/b&gt;");
  assert.deepEqual([await page.$$eval("article.error", e => e.length), problems, elsewhere], [0, [], []]);
  console.log(await browser.version(), "passed");
} finally {
  await browser.close();
}
