// One npm library against a service that runs: plain chat, streamed chat, other servers' histories, 50 at once.
//
//     node node_clients.mjs LIBRARY URL KEY MODEL
//
// Runs in a folder whose node_modules has the libraries, and prints one line of JSON. Retries are off: a refusal fails.

import { readFileSync } from "node:fs";

const QUESTION = [{ role: "user", content: "Name a primary color." }];
const BEFORE = { role: "user", content: "What is the capital of France?" };
const AFTER = { role: "user", content: "And of Italy?" };
const PLAIN = [BEFORE, { role: "assistant", content: "Paris." }, AFTER];
const [TOKENS, MANY, SECONDS] = [8, 50, 300];
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
  };
}

// The AI SDK; `served` is one of its models.
async function sdk(served) {
  const { generateText, streamText } = await import("ai");
  const asked = (messages) => ({
    model: served, messages, maxOutputTokens: TOKENS, temperature: 0, maxRetries: 0 });
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
  };
}

const LIBRARIES = {
  "openai": openai,
  "@ai-sdk/openai": async () =>
    sdk((await import("@ai-sdk/openai")).createOpenAI({ baseURL: url, apiKey: key }).chat(model)),
  "@ai-sdk/openai-compatible": async () =>
    sdk((await import("@ai-sdk/openai-compatible"))
      .createOpenAICompatible({ name: "appliance", baseURL: url, apiKey: key })(model)),
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
  const began = Date.now();
  const answers = await Promise.allSettled(Array.from({ length: MANY }, () => client.whole(QUESTION)));
  const wrong = answers.filter((each) => each.value !== alone);
  found[`${MANY} at once, ${Math.round((Date.now() - began) / 1000)} s`] =
    wrong.length ? `${wrong.length} fail: ${String(wrong[0].reason ?? wrong[0].value).slice(0, 200)}` : "";
  return found;
}

const version = (name) =>
  JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
const found = await check(await LIBRARIES[library]());
const with_sdk = library.startsWith("@ai-sdk/") ? ` with ai ${version("ai")}` : "";
console.log(JSON.stringify({ library, version: version(library) + with_sdk, found }));
process.exit(Object.values(found).some(Boolean) ? 1 : 0);
