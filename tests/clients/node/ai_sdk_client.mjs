// The AI SDK with its default provider, which uses responses: texts, streams, turns, steps with a tool, objects; also chat.
import assert from "node:assert";
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { apiKey, baseURL, cities, model, run } from "./check.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const openai = createOpenAI({ apiKey, baseURL });
const trip = z.object({ city: z.enum(cities), notes: z.record(z.string(), z.enum(["a", "b"])).optional() });
const weatherOf = (called) =>
  tool({
    description: "The weather.",
    inputSchema: z.object({ city: z.enum(cities) }),
    execute: async ({ city }) => (called.push(city), "sunny"),
  });
const checks = {};

for (const [name, of] of [["responses", openai], ["chat", openai.chat]]) {
  const settings = { model: of(model), maxOutputTokens: 200, maxRetries: 0 };
  checks[`text over ${name}`] = async () => assert((await generateText({ ...settings, prompt: "hello" })).text);
  checks[`stream over ${name}`] = async () => {
    let pieces = 0;
    for await (const _ of streamText({ ...settings, prompt: "hello" }).textStream) pieces += 1;
    assert(pieces > 1);
  };
  checks[`a second turn over ${name}`] = async () => {
    const asked = { role: "user", content: "hello" };
    const first = await generateText({ ...settings, messages: [asked] });
    const messages = [asked, ...first.response.messages, { role: "user", content: "and then?" }];
    assert((await generateText({ ...settings, messages })).finishReason !== "error");
  };
  checks[`a tool in two steps over ${name}`] = async () => {
    const called = [];
    const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
    const options = { ...settings, prompt: "the weather?", stopWhen: stepCountIs(2), prepareStep };
    const answer = await generateText({ ...options, tools: { weather: weatherOf(called) } });
    assert(answer.steps.length === 2 && called.length > 0);
    called.length = 0;
    const stream = streamText({ ...options, tools: { weather: weatherOf(called) } });
    await stream.consumeStream({ onError: (error) => assert.fail(String(error)) });
    assert((await stream.steps).length === 2 && called.every((city) => cities.includes(city)));
  };
  checks[`an object over ${name}`] = async () => {
    const strict = { openai: { strictJsonSchema: false } };
    const answer = await generateObject({ ...settings, schema: trip, prompt: "a trip", providerOptions: strict });
    assert(cities.includes(answer.object.city));
  };
}
await run(checks);
