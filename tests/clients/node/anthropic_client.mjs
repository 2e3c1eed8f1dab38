// The anthropic package for Node: messages, streams, the loop of calls and results, `toolRunner`, counts and models.
import assert from "node:assert";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { apiKey, baseURL, cities, model, parameters, run } from "./check.mjs";

const client = new Anthropic({ apiKey, baseURL: baseURL.replace(/\/v1$/, ""), maxRetries: 0 });
const hello = { model, max_tokens: 200, messages: [{ role: "user", content: "hello" }] };
const tools = [{ name: "weather", description: "The weather.", input_schema: parameters }];
const forced = { ...hello, tools, tool_choice: { type: "any", disable_parallel_tool_use: true } };
const callOf = (message) => message.content.find((block) => block.type === "tool_use");

await run({
  async message() {
    assert((await client.messages.create(hello)).content[0].text);
  },
  async stream() {
    let pieces = 0;
    const stream = client.messages.stream(hello).on("text", () => (pieces += 1));
    assert(["end_turn", "max_tokens"].includes((await stream.finalMessage()).stop_reason));
    assert(pieces > 1);
  },
  async "tool loop"() {
    const asked = await client.messages.create(forced);
    const call = callOf(asked);
    assert(cities.includes(call.input.city));
    const told = { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "sunny" }] };
    const messages = [...hello.messages, { role: "assistant", content: asked.content }, told];
    assert((await client.messages.create({ ...hello, messages, tools })).content.length);
  },
  async "tool loop, streamed"() {
    assert(cities.includes(callOf(await client.messages.stream(forced).finalMessage()).input.city));
  },
  async "toolRunner runs the function"() {
    const called = [];
    const weather = betaTool({
      name: "weather",
      description: "The weather.",
      inputSchema: parameters,
      run: ({ city }) => (called.push(city), "sunny"),
    });
    const choice = { type: "tool", name: "weather", disable_parallel_tool_use: true };
    await client.beta.messages.toolRunner({ ...hello, tools: [weather], tool_choice: choice, max_iterations: 2 });
    assert(called.length > 0 && called.every((city) => cities.includes(city)));
  },
  async "count of tokens"() {
    assert((await client.messages.countTokens({ model, messages: hello.messages })).input_tokens > 0);
  },
  async models() {
    const listed = [];
    for await (const one of client.models.list()) listed.push(one);
    const found = listed.find((one) => one.id === model);
    assert(found.type === "model" && found.display_name);
  },
});
