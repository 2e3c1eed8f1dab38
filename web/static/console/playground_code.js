// Writes a request of the playground as a curl command and as a Python program; pure functions.
"use strict";

const playgroundCode = (() => {
  // The arguments of OpenAI's client. Other fields are passed as extra_body.
  const ARGUMENTS = new Set([
    "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "messages", "metadata", "modalities", "model", "n",
    "parallel_tool_calls", "prediction", "presence_penalty", "reasoning_effort", "response_format", "seed", "service_tier", "stop", "store",
    "stream", "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity",
  ]);
  const END = "END_OF_REQUEST";

  // A text of JSON is a text of Python too: both have the same escapes. Only half a pair must be written as JSON does.
  function literal(value, indent = "") {
    const deeper = `${indent}    `;
    if (value === null) return "None";
    if (value === true) return "True";
    if (value === false) return "False";
    if (typeof value !== "object") return JSON.stringify(value);
    const isList = Array.isArray(value);
    const items = isList
      ? value.map((item) => literal(item, deeper))
      : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, deeper)}`);
    const [open, close] = isList ? ["[", "]"] : ["{", "}"];
    return items.length === 0 ? open + close : `${open}\n${items.map((item) => `${deeper}${item},\n`).join("")}${indent}${close}`;
  }

  // The names of headers and of tenants have no characters that a shell or Python treats specially: letters, digits, - and _.
  function curl(request, { base, tenant, usesKeys }) {
    const lines = [`curl -sS${request.stream ? "N" : ""} '${base}/chat/completions'`, "  -H 'Content-Type: application/json'"];
    if (usesKeys) lines.push('  -H "Authorization: Bearer $PENSTOCK_API_KEY"');
    if (tenant) lines.push(`  -H 'X-Tenant: ${tenant}'`);
    // No line of JSON is the word that ends the text, which the shell passes on as it is.
    return `${lines.join(" \\\n")} \\\n  --data-binary @- <<'${END}'\n${JSON.stringify(request, null, 2)}\n${END}\n`;
  }

  function python(request, { base, tenant, usesKeys }) {
    const fields = Object.entries(request);
    const known = fields.filter(([name]) => ARGUMENTS.has(name));
    const others = fields.filter(([name]) => !ARGUMENTS.has(name));
    if (!("model" in request)) known.unshift(["model", null]);
    const lines = known.map(([name, value]) => `    ${name}=${literal(value, "    ")},`);
    if (others.length) lines.push(`    extra_body=${literal(Object.fromEntries(others), "    ")},`);
    const headers = tenant ? `, default_headers={"X-Tenant": "${tenant}"}` : "";
    const key = usesKeys ? 'os.environ["PENSTOCK_API_KEY"]' : '"any"';
    const read = request.stream
      ? [
        "for chunk in answer:",
        "    for choice in chunk.choices:",
        '        print(choice.delta.content or choice.delta.tool_calls or "", end="", flush=True)',
        "print()",
      ]
      : ["for choice in answer.choices:", "    print(choice.message.content or choice.message.tool_calls)"];
    return [
      ...(usesKeys ? ["import os", ""] : []),
      "from openai import OpenAI",
      "",
      `client = OpenAI(base_url="${base}", api_key=${key}${headers})`,
      "answer = client.chat.completions.create(",
      ...lines,
      ")",
      ...read,
      "",
    ].join("\n");
  }

  return { curl, python };
})();
