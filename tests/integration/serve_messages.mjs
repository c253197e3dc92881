// Anthropic's own client against the server: node serve_messages.mjs PORT, from a folder with the package.
import assert from "node:assert/strict";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const require = createRequire(process.cwd() + "/");
const {default: Anthropic} = await import(pathToFileURL(require.resolve("@anthropic-ai/sdk")).href);
const client = new Anthropic({baseURL: `http://127.0.0.1:${process.argv[2]}`, apiKey: "any", maxRetries: 0});
const model = (await (await fetch(`http://127.0.0.1:${process.argv[2]}/v1/models`)).json()).data[0].id;
const messages = [{role: "user", content: "Permission is hereby granted"}];
const asked = {model, messages, max_tokens: 40, temperature: 0};

// A stream is the whole answer in pieces, by the client's own account.
const whole = await client.messages.create(asked);
assert.deepEqual([whole.type, whole.role, whole.stop_reason, whole.content.length], ["message", "assistant", "max_tokens", 1]);
let text = "";
const stream = client.messages.stream(asked).on("text", piece => { text += piece; });
const made = await stream.finalMessage();
assert.equal(text, whole.content[0].text);
assert.deepEqual([made.content[0].text, made.stop_reason, made.usage.output_tokens], [text, "max_tokens", 40]);
const counted = await client.messages.countTokens({model, messages});
assert.equal(counted.input_tokens, made.usage.input_tokens + made.usage.cache_read_input_tokens);

// It puts the arguments of calls together, and the result of one goes back.
const tools = [{name: "weather", description: "", input_schema: {
  type: "object", properties: {city: {enum: ["Bern", "Rome"]}, days: {type: "integer", minimum: 1, maximum: 9}},
  required: ["city", "days"], additionalProperties: false}}];
const calling = {...asked, max_tokens: 200, tools, tool_choice: {type: "tool", name: "weather"}};
const called = await client.messages.stream(calling).finalMessage();
const use = called.content.find(block => block.type === "tool_use");
assert.equal(called.stop_reason, "tool_use");
assert.ok(["Bern", "Rome"].includes(use.input.city) && use.input.days >= 1, JSON.stringify(use));
assert.deepEqual((await client.messages.create(calling)).content.map(block => block.input), [use.input]);
const back = await client.messages.create({...asked, max_tokens: 5, tools, messages: [
  ...messages, {role: "assistant", content: called.content},
  {role: "user", content: [{type: "tool_result", tool_use_id: use.id, content: [{type: "text", text: "sun"}]}]}]});
assert.equal(back.usage.output_tokens, 5);

const stopped = await client.messages.create({...asked, stop_sequences: [text.slice(4, 6)]});
assert.deepEqual([stopped.stop_reason, stopped.stop_sequence], ["stop_sequence", text.slice(4, 6)]);
// What is wrong is an error of the client's own classes.
await assert.rejects(client.messages.create({...asked, messages: [{role: "user", content: [{type: "image", source: {type: "url", url: "x"}}]}]}),
                     error => error instanceof Anthropic.BadRequestError && error.message.includes("messages[0].content[0]"));
await assert.rejects(client.messages.create({...asked, model: "none"}), error => error instanceof Anthropic.NotFoundError);
console.log("messages: as Anthropic's client expects");
