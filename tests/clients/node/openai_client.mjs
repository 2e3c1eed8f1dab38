// The openai package for Node: chats, streams, the loop of calls and results, plain and streamed, and responses.
import assert from "node:assert";
import OpenAI from "openai";
import { isCity, model, parameters, run } from "./check.mjs";

const client = new OpenAI();
const hello = { model, messages: [{ role: "user", content: "hello" }], max_tokens: 200, temperature: 0 };
const tools = [{ type: "function", function: { name: "weather", description: "The weather.", parameters } }];

await run({
  async chat() {
    assert((await client.chat.completions.create(hello)).choices[0].message.content);
  },
  async stream() {
    let pieces = 0;
    for await (const chunk of await client.chat.completions.create({ ...hello, stream: true })) pieces += chunk.choices.length;
    assert(pieces > 1);
  },
  async "tool loop"() {
    const asked = (await client.chat.completions.create({ ...hello, tools, tool_choice: "required" })).choices[0].message;
    assert(isCity(asked.tool_calls[0].function.arguments));
    const told = asked.tool_calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: "sunny" }));
    const messages = [...hello.messages, asked, ...told];
    assert((await client.chat.completions.create({ ...hello, messages, tools, tool_choice: "none" })).choices[0].message.content);
  },
  async "tool loop, streamed"() {
    const runner = client.chat.completions.stream({ ...hello, tools, tool_choice: "required" });
    const asked = (await runner.finalChatCompletion()).choices[0].message;
    assert(isCity(asked.tool_calls[0].function.arguments));
  },
  async "runTools runs the function"() {
    const called = [];
    const weather = {
      type: "function",
      function: { ...tools[0].function, parse: JSON.parse, function: ({ city }) => (called.push(city), "sunny") },
    };
    const choice = { type: "function", function: { name: "weather" } };
    await client.chat.completions.runTools({ ...hello, tools: [weather], tool_choice: choice }).done();
    assert(called.length === 1);
  },
  async "JSON schema"() {
    const response_format = { type: "json_schema", json_schema: { name: "trip", schema: parameters, strict: true } };
    assert(isCity((await client.chat.completions.create({ ...hello, response_format })).choices[0].message.content));
  },
  async "responses, streamed"() {
    const events = [];
    for await (const event of await client.responses.create({ model, input: "hello", max_output_tokens: 50, stream: true }))
      events.push(event.type);
    assert(["response.completed", "response.incomplete"].includes(events.at(-1)));
  },
  async "responses with a function"() {
    const flat = [{ type: "function", name: "weather", parameters, strict: true }];
    const answer = await client.responses.create({ model, input: "hello", tools: flat, tool_choice: "required" });
    assert(isCity(answer.output.find((item) => item.type === "function_call").arguments));
  },
});
