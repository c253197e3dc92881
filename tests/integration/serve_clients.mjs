// OpenAI's own client against the server: node serve_clients.mjs PORT, from a folder with the package.
import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const require = createRequire(process.cwd() + "/");
const {default: OpenAI} = await import(pathToFileURL(require.resolve("openai")).href);
const base = `http://127.0.0.1:${process.argv[2]}`;
const client = new OpenAI({baseURL: base + "/v1", apiKey: "any", maxRetries: 0});
const model = (await client.models.list()).data[0].id;
const messages = [{role: "user", content: "Permission is hereby granted"}];
const metric = async name => {
  const text = await (await fetch(base + "/metrics")).text();
  return text.split("\n").filter(l => l.startsWith(name)).reduce((sum, l) => sum + Number(l.split(" ").pop()), 0);
};

// A stream is the whole answer in pieces, and tells its usage.
const whole = await client.chat.completions.create({model, messages, max_tokens: 40, temperature: 0});
assert.equal(whole.choices[0].finish_reason, "length");
let text = "", usage = null;
const stream = await client.chat.completions.create(
  {model, messages, max_tokens: 40, temperature: 0, stream: true, stream_options: {include_usage: true}});
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, whole.choices[0].message.content);
assert.deepEqual([usage.completion_tokens, usage.prompt_tokens], [40, whole.usage.prompt_tokens]);

// The client's accumulator of streams puts calls together.
const tools = [{type: "function", function: {name: "weather", parameters: {
  type: "object", properties: {city: {enum: ["Bern", "Rome"]}, days: {type: "integer", minimum: 1, maximum: 9}},
  required: ["city", "days"], additionalProperties: false}}}];
const runner = client.chat.completions.stream({model, messages, tools, tool_choice: "required", parallel_tool_calls: false, temperature: 0});
const made = (await runner.finalChatCompletion()).choices[0];
assert.equal(made.finish_reason, "tool_calls");
assert.equal(made.message.tool_calls[0].function.name, "weather");
assert.ok(["Bern", "Rome"].includes(JSON.parse(made.message.tool_calls[0].function.arguments).city));
// The result of a call goes back; the template of this test writes contents alone.
const back = await client.chat.completions.create({model, temperature: 0, max_tokens: 5, tools, messages: [
  ...messages, made.message, {role: "tool", tool_call_id: made.message.tool_calls[0].id, content: "sun"}]});
assert.equal(back.choices[0].message.role, "assistant");

const schema = {type: "object", properties: {a: {type: "integer", minimum: 3, maximum: 5}}, required: ["a"], additionalProperties: false};
const parsed = await client.chat.completions.parse({model, messages, temperature: 1.5,
  response_format: {type: "json_schema", json_schema: {name: "n", strict: true, schema}}});
assert.ok([3, 4, 5].includes(parsed.choices[0].message.parsed.a));

// It asks for base64 and decodes it.
const vectors = await client.embeddings.create({model, input: ["free software", "warranty"]});
assert.equal(vectors.data.length, 2);
assert.ok(Math.abs(vectors.data[0].embedding.reduce((s, x) => s + x * x, 0) - 1) < 1e-4);
const plain = await client.embeddings.create({model, input: "warranty", encoding_format: "float"});
assert.deepEqual(Array.from(vectors.data[1].embedding), plain.data[0].embedding.map(Math.fround));

// The same chats in the form of "Responses".
const asked = {model, input: messages[0].content, max_output_tokens: 40, temperature: 0};
const response = await client.responses.create({...asked, metadata: {who: "test"}});
assert.equal(response.output_text, whole.choices[0].message.content);
assert.deepEqual([response.status, response.incomplete_details.reason, response.output[0].type, response.metadata.who],
  ["incomplete", "max_output_tokens", "message", "test"]);
assert.deepEqual([response.usage.input_tokens, response.usage.output_tokens], [whole.usage.prompt_tokens, 40]);
const told = client.responses.stream(asked);
let deltas = "", events = [];
for await (const event of told) {
  if (event.type === "response.output_text.delta") deltas += event.delta;
  assert.equal(event.sequence_number, events.length);
  events.push(event.type);
}
assert.deepEqual(events.filter(e => !e.endsWith(".delta")), ["response.created", "response.in_progress", "response.output_item.added",
  "response.content_part.added", "response.output_text.done", "response.content_part.done", "response.output_item.done",
  "response.incomplete"]);
const final = await told.finalResponse();
assert.equal(deltas, response.output_text);
assert.deepEqual([final.output_text, final.usage.output_tokens, final.status], [response.output_text, 40, "incomplete"]);
const flat = tools.map(t => ({type: "function", strict: true, ...t.function}));
const caller = client.responses.stream({model, input: asked.input, tools: flat, tool_choice: "required", parallel_tool_calls: false, temperature: 0});
const call = (await caller.finalResponse()).output[0];
assert.deepEqual([call.type, call.name, call.arguments], ["function_call", "weather", made.message.tool_calls[0].function.arguments]);
const answered = await client.responses.create({model, temperature: 0, max_output_tokens: 5, tools: flat, input: [
  {role: "user", content: asked.input}, call, {type: "function_call_output", call_id: call.call_id, output: "sun"}]});
assert.equal(answered.output_text, back.choices[0].message.content);
const bound = await client.responses.parse({model, input: asked.input, temperature: 1.5,
  text: {format: {type: "json_schema", name: "n", strict: true, schema}}});
assert.deepEqual([bound.status, [3, 4, 5].includes(bound.output_parsed.a)], ["completed", true]);
const likely = await client.responses.create({...asked, include: ["message.output_text.logprobs"], top_logprobs: 2});
const shares = likely.output[0].content[0].logprobs;
assert.deepEqual([shares.length, shares[0].top_logprobs.length, shares.map(l => l.token).join("")], [40, 2, likely.output_text]);
await assert.rejects(client.responses.create({...asked, previous_response_id: response.id}),
  e => e instanceof OpenAI.BadRequestError && e.param === "previous_response_id");

// Cancelling a stream ends the request in the server.
const before = await metric('bellmetal:request_success_total{model_name="' + model + '",finished_reason="abort"}');
const long = await client.completions.create({model, prompt: "a", max_tokens: 480, n: 16, stream: true});
for await (const _ of long) { long.controller.abort(); break; }
for (let i = 0; await metric("bellmetal:num_requests_running") + await metric("bellmetal:num_requests_waiting") > 0; ++i) {
  assert.ok(i < 1000);
  await new Promise(r => setTimeout(r, 10));
}
assert.ok(await metric('bellmetal:request_success_total{model_name="' + model + '",finished_reason="abort"}') > before);

await assert.rejects(client.chat.completions.create({model: "none", messages}), OpenAI.NotFoundError);
await assert.rejects(client.chat.completions.create({model, messages, temperature: 9}),
  e => e instanceof OpenAI.BadRequestError && e.param === "temperature" && e.code === "invalid_value");
console.log("openai", JSON.parse(readFileSync("node_modules/openai/package.json")).version, "passed");
