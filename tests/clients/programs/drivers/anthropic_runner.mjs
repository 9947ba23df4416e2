// Anthropic's runner of tools: a conversation with calls, whole and streamed.
//
//     node anthropic_runner.mjs URL KEY MODEL

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";

const [url, key, model] = process.argv.slice(2);
const calls = [];
const getWeather = betaZodTool({
  name: "get_weather", description: "The weather of a city.", inputSchema: z.object({ city: z.string() }),
  run: ({ city }) => { calls.push(city); return `It rains in ${city}.`; } });
const { messages } = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 }).beta;
const given = { model, max_tokens: 200, tools: [getWeather],
  messages: [{ role: "user", content: "How is the weather in Paris?" }] };
const whole = await messages.toolRunner(given);
assert.match(whole.content[0].text, /done/);
let last;
for await (const stream of messages.toolRunner({ ...given, stream: true })) last = await stream.finalMessage();
assert.match(last.content[0].text, /done/);
assert.deepEqual(calls, ["Paris", "Paris", "Paris", "Paris"]);
