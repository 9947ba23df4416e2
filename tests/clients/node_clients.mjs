// One npm library against a service that runs: plain chat, streamed chat, other servers' histories, tools, structured
// output, 50 at once.
//
//     node node_clients.mjs LIBRARY URL KEY MODEL
//
// Runs in a folder whose node_modules has the libraries, and prints one line of JSON. Retries are off: a refusal fails.

import { readFileSync } from "node:fs";
import { z } from "zod";

const QUESTION = [{ role: "user", content: "Name a primary color." }];
const BEFORE = { role: "user", content: "What is the capital of France?" };
const AFTER = { role: "user", content: "And of Italy?" };
const PLAIN = [BEFORE, { role: "assistant", content: "Paris." }, AFTER];
const [TOKENS, MANY, SECONDS] = [8, 50, 300];
const WEATHER = [{ role: "user", content: "How is the weather in Paris for the next three days?" }];
const LONGEST = 200; // tokens of a call or an object
const Reading = z.object({ city: z.enum(["Paris", "Rome"]), days: z.number().int().min(1).max(7) });
const getWeather = ({ city, days }) => `It rains in ${city} for ${days} days.`;
const [library, url, key, model] = process.argv.slice(2);

// The official library: messages go out as they are.
async function openai() {
  const { default: OpenAI } = await import("openai");
  const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0, timeout: SECONDS * 1000 });
  const asked = (messages) => ({ model, messages, max_tokens: TOKENS, temperature: 0 });
  const histories = JSON.parse(readFileSync(new URL("histories.json", import.meta.url)));
  return {
    whole: async (turns) => (await client.chat.completions.create(asked(turns))).choices[0].message.content,
    streamed: async (turns) => {
      let text = "";
      for await (const event of await client.chat.completions.create({
        ...asked(turns), stream: true, stream_options: { include_usage: true } })) {
        text += event.choices[0]?.delta.content ?? "";
      }
      return text;
    },
    histories: Object.fromEntries(
      Object.entries(histories).map(([name, answer]) => [name, [BEFORE, answer, AFTER]])),
    tools: async () => {
      const { zodFunction } = await import("openai/helpers/zod");
      const forced = { model, messages: WEATHER, tools: [zodFunction({ name: "get_weather", parameters: Reading })],
        tool_choice: "required", parallel_tool_calls: false, max_tokens: LONGEST, temperature: 0 };
      const { choices: [{ message }] } = await client.chat.completions.create(forced);
      const [call] = message.tool_calls;
      const called = JSON.parse(call.function.arguments);
      const after = await client.chat.completions.create({ ...forced, tool_choice: "auto", max_tokens: TOKENS,
        messages: [...WEATHER, message, { role: "tool", tool_call_id: call.id, content: getWeather(called) }] });
      if (!after.choices[0].message.content && !after.choices[0].message.tool_calls) throw new Error("nothing after");
      const stream = client.chat.completions.stream({
        ...forced, tool_choice: { type: "function", function: { name: "get_weather" } } });
      const final = await stream.finalChatCompletion();
      return { required: called,
        "named, streamed": final.choices[0].message.tool_calls[0].function.parsed_arguments };
    },
    structured: async () => {
      const { zodResponseFormat } = await import("openai/helpers/zod");
      const asked_for = { model, messages: WEATHER, max_tokens: LONGEST, temperature: 0,
        response_format: zodResponseFormat(Reading, "reading") };
      const parsed = await client.chat.completions.parse(asked_for);
      const final = await client.chat.completions.stream(asked_for).finalChatCompletion();
      return { parse: parsed.choices[0].message.parsed, stream: final.choices[0].message.parsed };
    },
  };
}

// The AI SDK; `served` is one of its models.
async function sdk(served, keeps = {}) {
  const { generateText, streamText, tool, Output } = await import("ai");
  const asked = (messages) => ({
    model: served, messages, maxOutputTokens: TOKENS, temperature: 0, maxRetries: 0, ...keeps });
  const answers = {
    "OpenAI": { role: "assistant", content: [{ type: "text", text: "Paris.",
      providerOptions: { openai: { itemId: "msg_1" } } }] },
    "Anthropic with thoughts": { role: "assistant", content: [
      { type: "reasoning", text: "France.", providerOptions: { anthropic: { signature: "c2ln" } } },
      { type: "text", text: "Paris." }] },
  };
  return {
    whole: async (turns) => (await generateText(asked(turns))).text,
    streamed: async (turns) => {
      let text = "";
      let failure;
      const { textStream } = streamText({ ...asked(turns), onError: ({ error }) => { failure = error; } });
      for await (const part of textStream) text += part;
      if (failure) throw failure;
      return text;
    },
    histories: Object.fromEntries(
      Object.entries(answers).map(([name, answer]) => [name, [BEFORE, answer, AFTER]])),
    tools: async () => {
      const forced = { ...asked(WEATHER), maxOutputTokens: LONGEST, toolChoice: { type: "tool", toolName: "get_weather" },
        tools: { get_weather: tool({ description: "The weather of a city.", inputSchema: Reading,
          execute: async (given) => getWeather(given) }) } };
      const { toolCalls, toolResults } = await generateText(forced);
      if (!toolResults[0].output.startsWith("It rains in")) throw new Error("no result");
      const streamed = streamText(forced);
      await streamed.consumeStream();
      return { named: toolCalls[0].input, "named, streamed": (await streamed.toolCalls)[0].input };
    },
    structured: async () => {
      const wanted = { ...asked(WEATHER), maxOutputTokens: LONGEST, output: Output.object({ schema: Reading }) };
      const streamed = streamText(wanted);
      await streamed.consumeStream();
      return { output: (await generateText(wanted)).output, "output, streamed": await streamed.output };
    },
  };
}

const LIBRARIES = {
  "openai": openai,
  "@ai-sdk/openai": async () =>
    sdk((await import("@ai-sdk/openai")).createOpenAI({ baseURL: url, apiKey: key }).chat(model)),
  "@ai-sdk/openai by default": async () =>
    sdk((await import("@ai-sdk/openai")).createOpenAI({ baseURL: url, apiKey: key })(model),
      { providerOptions: { openai: { store: false } } }), // else it sends earlier answers by their ids alone
  "@ai-sdk/anthropic": async () =>
    sdk((await import("@ai-sdk/anthropic")).createAnthropic({ baseURL: url, apiKey: key })(model)),
  "@ai-sdk/openai-compatible": async () =>
    sdk((await import("@ai-sdk/openai-compatible"))
      .createOpenAICompatible({ name: "appliance", baseURL: url, apiKey: key, supportsStructuredOutputs: true })(model)),
};

// What fails, by what was tried; an empty text for what works.
async function check(client) {
  const found = {};
  const attempt = async (name, call, wanted) => {
    try {
      const answer = await call();
      const right = wanted === undefined ? Boolean(answer.trim()) : answer === wanted;
      found[name] = right ? "" : `wanted ${JSON.stringify(wanted)}, got ${JSON.stringify(answer)}`;
      return answer;
    } catch (error) {
      found[name] = `${error?.name}: ${error?.message}`.slice(0, 500);
    }
  };
  const alone = await attempt("whole", () => client.whole(QUESTION));
  await attempt("streamed", () => client.streamed(QUESTION), alone ?? "");
  const plain = await attempt("history", () => client.whole(PLAIN));
  for (const [name, turns] of Object.entries(client.histories)) {
    await attempt(`history of ${name}`, () => client.whole(turns), plain ?? "");
  }
  const objects = async (name, call) => {
    try {
      for (const [way, value] of Object.entries(await call())) {
        const right = Reading.strict().safeParse(value).success;
        found[`${name} (${way})`] = right ? "" : `got ${JSON.stringify(value)}`;
      }
    } catch (error) {
      found[name] = `${error?.name}: ${error?.message}`.slice(0, 500);
    }
  };
  await objects("tools", client.tools);
  await objects("structured", client.structured);
  const began = Date.now();
  const answers = await Promise.allSettled(Array.from({ length: MANY }, () => client.whole(QUESTION)));
  const wrong = answers.filter((each) => each.value !== alone);
  found[`${MANY} at once, ${Math.round((Date.now() - began) / 1000)} s`] =
    wrong.length ? `${wrong.length} fail: ${String(wrong[0].reason ?? wrong[0].value).slice(0, 200)}` : "";
  return found;
}

const version = (name) => JSON.parse(
  readFileSync(new URL(`node_modules/${name.replace(/ by default$/, "")}/package.json`, import.meta.url))).version;
const found = await check(await LIBRARIES[library]());
const with_sdk = library.startsWith("@ai-sdk/") ? ` with ai ${version("ai")}` : "";
console.log(JSON.stringify({ library, version: version(library) + with_sdk, found }));
process.exit(Object.values(found).some(Boolean) ? 1 : 0);
