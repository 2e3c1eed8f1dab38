// openai-agents for Node: texts, streams, typed output and an agent with a function, over responses and over chat.
import assert from "node:assert";
import { Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";
import { cities, model, run } from "./check.mjs";

setTracingDisabled(true);
const client = new OpenAI({ maxRetries: 0 });
const kinds = { responses: OpenAIResponsesModel, chat: OpenAIChatCompletionsModel };
const checks = {};

for (const [name, Kind] of Object.entries(kinds)) {
  const agent = (settings) =>
    new Agent({ name: "a", model: new Kind(client, model), modelSettings: { maxTokens: 200, temperature: 0 }, ...settings });
  const runner = new Runner();
  checks[`text over ${name}`] = async () => assert((await runner.run(agent({}), "hello")).finalOutput);
  checks[`stream over ${name}`] = async () => {
    let events = 0;
    const stream = await runner.run(agent({}), "hello", { stream: true });
    for await (const _ of stream) events += 1;
    await stream.completed;
    assert(events > 1);
  };
  checks[`typed output over ${name}`] = async () => {
    const typed = agent({ outputType: z.object({ city: z.enum(cities) }) });
    assert(cities.includes((await runner.run(typed, "a trip")).finalOutput.city));
  };
  checks[`agent with a function over ${name}`] = async () => {
    const called = [];
    const weather = tool({
      name: "weather",
      description: "The weather.",
      parameters: z.object({ city: z.enum(cities) }),
      execute: ({ city }) => (called.push(city), "sunny"),
    });
    const modelSettings = { maxTokens: 200, temperature: 0, toolChoice: "required", parallelToolCalls: false };
    await runner.run(agent({ tools: [weather], modelSettings }), "the weather?");
    assert(called.length > 0 && called.every((city) => cities.includes(city)));
  };
}
await run(checks);
