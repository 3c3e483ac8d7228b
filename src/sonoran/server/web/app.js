// The page: a chat over the server's own API, and what target and draft do meanwhile. Everything that a model or a
// server wrote gets into the document as text, never as markup.

const $ = (id) => document.getElementById(id);
const state = { messages: [], status: null, abort: null, rounds: [], ar: null, key: sessionStorage.getItem("key") };

function headers() {
  const found = { "Content-Type": "application/json" };
  if (state.key) found.Authorization = `Bearer ${state.key}`;
  return found;
}

async function call(path, options = {}) {
  for (;;) {
    const answer = await fetch(path, { ...options, headers: headers() });
    if (answer.status !== 401) return answer;
    await askForKey();
  }
}

function askForKey() {
  return new Promise((resolve) => {
    const dialog = $("keys");
    dialog.addEventListener("close", () => {
      state.key = $("key").value.trim();
      sessionStorage.setItem("key", state.key);
      resolve();
    }, { once: true });
    dialog.showModal();
  });
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const block = text.slice(0, end);
      text = text.slice(end + 2);
      if (!block.startsWith("data: ")) continue;
      if (block === "data: [DONE]") return;
      yield JSON.parse(block.slice(6));
    }
  }
}

// ---- Markdown: a small part of it, built as elements.

function inline(parent, text) {
  const pattern = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*/g;
  let last = 0;
  for (const match of text.matchAll(pattern)) {
    parent.append(text.slice(last, match.index));
    const [name, inner] = match[1] ? ["code", match[2]] : match[3] ? ["strong", match[3]] : ["em", match[4]];
    const element = document.createElement(name);
    element.textContent = inner;
    parent.append(element);
    last = match.index + match[0].length;
  }
  parent.append(text.slice(last));
}

export function markdown(text) {
  const root = document.createDocumentFragment();
  const lines = text.split("\n");
  let list = null, paragraph = null;
  const add = (name, content, parent = root) => {
    const element = document.createElement(name);
    inline(element, content);
    parent.append(element);
    return element;
  };
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i];
    const fence = line.match(/^\s*(`{3,}|~{3,})/);
    if (fence) {
      const code = [];
      while (++i < lines.length && !lines[i].trimStart().startsWith(fence[1])) code.push(lines[i]);
      const pre = document.createElement("pre"), element = document.createElement("code");
      element.textContent = code.join("\n");
      pre.tabIndex = 0;
      pre.append(element);
      root.append(pre);
      list = paragraph = null;
      continue;
    }
    const heading = line.match(/^(#{1,6})\s+(.*)/), item = line.match(/^\s*(?:([-*+])|\d+[.)])\s+(.*)/);
    if (heading) {
      add(`h${Math.min(6, heading[1].length + 2)}`, heading[2]);
      list = paragraph = null;
    } else if (item) {
      const kind = item[1] ? "UL" : "OL";
      if (!list || list.tagName !== kind) {
        list = document.createElement(kind);
        root.append(list);
      }
      add("li", item[2], list);
      paragraph = null;
    } else if (!line.trim()) {
      list = paragraph = null;
    } else if (paragraph) {
      paragraph.append("\n");
      inline(paragraph, line);
    } else {
      paragraph = add("p", line);
      list = null;
    }
  }
  return root;
}

// ---- The chat.

function article(role) {
  const element = document.createElement("article"), text = document.createElement("div");
  element.className = role;
  text.className = "text";
  element.append(text);
  document.querySelector(".hint")?.remove();
  $("log").append(element);
  return { element, text };
}

function body() {
  const found = {
    model: state.status.names[0],
    messages: state.messages.map(({ role, content }) => ({ role, content })),
    temperature: Number($("temperature").value),
    seed: Number($("seed").value),
    max_completion_tokens: Number($("limit").value),
    stream: true,
    stream_options: { include_usage: true, include_speculation: true },
  };
  if ($("mode").value === "ar") found.speculative = false;
  else if ($("k").value !== "") found.num_speculative_tokens = Number($("k").value);
  return found;
}

function token([id, text, origin], sample) {
  const span = document.createElement("span");
  span.className = `tok ${origin}`;
  span.textContent = text;
  const drafted = sample.proposed?.length ?? 0;
  span.title = `${origin} · token ${id} · ${sample.accepted ?? 0} of ${drafted} drafted tokens accepted` +
    (sample.round_ms ? ` · round ${sample.round_ms.toFixed(1)} ms` : "");
  return span;
}

async function send() {
  const content = $("message").value.trim();
  if (!content || state.abort || !state.status) return;
  $("message").value = "";
  state.messages.push({ role: "user", content });
  article("user").text.textContent = content;
  const request = body();
  const { element, text } = article("assistant");
  const stream = document.createElement("div");
  stream.className = "stream";
  text.append(stream);
  const log = $("log");
  const answer = { content: "", ids: [], spans: [], counts: [], hits: 0, lookups: 0, finish: null, metrics: null };
  busy(true);
  const begin = performance.now();
  let first = null, error = null, queued = [];
  const flush = () => {
    const near = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    stream.append(...queued);
    queued = [];
    if (near) log.scrollTop = log.scrollHeight;
  };
  let frame = null;
  try {
    state.abort = new AbortController();
    const reply = await call("/v1/chat/completions", {
      method: "POST", body: JSON.stringify(request), signal: state.abort.signal,
    });
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    for await (const chunk of events(reply)) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.metrics) answer.metrics = chunk.metrics;
      for (const choice of chunk.choices) {
        answer.content += choice.delta.content ?? "";
        if (choice.finish_reason) answer.finish = choice.finish_reason;
      }
      const sample = chunk.speculation;
      if (!sample) continue;
      first ??= performance.now();
      for (const one of sample.tokens) {
        const span = token(one, sample);
        answer.ids.push(one[0]);
        answer.spans.push(span);
        queued.push(span);
      }
      if (sample.proposed?.length) {
        answer.counts[sample.accepted] = (answer.counts[sample.accepted] ?? 0) + 1;
        answer.lookups += 1;
        answer.hits += sample.origin === "primary";
      }
      show(answer, begin, first);
      frame ??= requestAnimationFrame(() => { frame = null; flush(); });
    }
  } catch (problem) {
    if (problem.name !== "AbortError") error = problem;
    else answer.finish = "stopped";
  }
  flush();
  state.abort = null;
  busy(false);
  if (error) fail(error.message);
  if (!answer.content) {
    state.messages.pop();
    if (!answer.ids.length) element.remove();
    return;
  }
  state.messages.push({ role: "assistant", content: answer.content });
  if (request.speculative === false && answer.metrics?.mean_itl_ms) setAr(1000 / answer.metrics.mean_itl_ms);
  finish(element, text, stream, answer, request);
}

function finish(element, text, stream, answer, request) {
  const foot = document.createElement("div");
  foot.className = "foot";
  const note = document.createElement("span");
  const speed = answer.metrics?.mean_itl_ms ? `, ${(1000 / answer.metrics.mean_itl_ms).toFixed(1)} tokens/s` : "";
  note.textContent = `${answer.ids.length} tokens${speed}, ${answer.finish ?? "?"}`;
  const view = document.createElement("button");
  view.type = "button";
  view.textContent = "Markdown";
  const rendered = document.createElement("div");
  rendered.append(markdown(answer.content));
  rendered.hidden = true;
  text.append(rendered);
  view.addEventListener("click", () => {
    rendered.hidden = !rendered.hidden;
    stream.hidden = !stream.hidden;
    view.textContent = rendered.hidden ? "Markdown" : "Tokens";
  });
  const prove = document.createElement("button");
  prove.type = "button";
  prove.className = "prove";
  prove.textContent = "Prove it";
  prove.title = "Generate the same message without speculation and compare token by token";
  const verdict = document.createElement("span");
  verdict.setAttribute("role", "status");
  verdict.className = "verdict";
  prove.addEventListener("click", () => proof(prove, verdict, answer, request, () => {
    rendered.hidden = true;
    stream.hidden = false;
    view.textContent = "Markdown";
  }));
  const curl = document.createElement("button");
  curl.type = "button";
  curl.textContent = "curl";
  curl.title = "Copy the request as a command";
  curl.addEventListener("click", () => {
    const data = JSON.stringify({ ...request, stream: false, stream_options: undefined }).replaceAll("'", "'\\''");
    const auth = state.key ? " -H \"Authorization: Bearer $KEY\"" : "";
    navigator.clipboard?.writeText(
      `curl ${location.origin}/v1/chat/completions -H 'Content-Type: application/json'${auth} -d '${data}'`);
  });
  foot.append(note, view, prove, curl, verdict);
  element.append(foot);
  $("log").scrollTop = $("log").scrollHeight;
}

async function proof(button, verdict, answer, request, reveal) {
  if (state.abort) return;
  reveal();
  button.disabled = true;
  busy(true);
  for (const span of answer.spans) span.classList.remove("proved", "differs");
  verdict.className = "verdict";
  let at = 0, wrong = -1;
  const again = { ...request, speculative: false, max_completion_tokens: answer.ids.length };
  delete again.num_speculative_tokens;
  try {
    state.abort = new AbortController();
    const reply = await call("/v1/chat/completions", {
      method: "POST", body: JSON.stringify(again), signal: state.abort.signal,
    });
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    for await (const chunk of events(reply)) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.metrics?.mean_itl_ms) setAr(1000 / chunk.metrics.mean_itl_ms);
      for (const [id] of chunk.speculation?.tokens ?? []) {
        const same = id === answer.ids[at];
        answer.spans[at]?.classList.add(same ? "proved" : "differs");
        if (!same && wrong < 0) wrong = at;
        at += 1;
      }
      verdict.textContent = `AR: ${at} of ${answer.ids.length}`;
    }
    const all = wrong < 0 && at === answer.ids.length;
    verdict.textContent = all ? `✓ the same ${at} tokens without speculation`
      : `✗ ${wrong < 0 ? `${at} tokens instead of ${answer.ids.length}` : `token ${wrong + 1} differs`}`;
    verdict.classList.add(all ? "ok" : "bad");
  } catch (problem) {
    verdict.textContent = problem.name === "AbortError" ? `stopped after ${at}` : problem.message;
  }
  state.abort = null;
  button.disabled = false;
  busy(false);
}

function busy(is) {
  $("send").disabled = is;
  $("stop").disabled = !is;
  if (is) $("error").hidden = true;
}

function fail(message) {
  $("error").textContent = message;
  $("error").hidden = false;
}

// ---- Numbers and pictures.

function setAr(speed) {
  state.ar = speed;
  $("ar").textContent = speed.toFixed(1);
}

function show(answer, begin, first) {
  $("ttft").textContent = ((first - begin) / 1000).toFixed(2);
  const seconds = (performance.now() - first) / 1000;
  if (seconds > 0.1) $("speed").textContent = (answer.ids.length / seconds).toFixed(1);
  const rounds = answer.counts.reduce((sum, n) => sum + (n ?? 0), 0);
  if (!rounds) return;
  const accepted = answer.counts.reduce((sum, n, j) => sum + j * (n ?? 0), 0);
  $("length").textContent = (1 + accepted / rounds).toFixed(2);
  const cached = state.status.engine.drafter?.connection;  // a worker, which has a speculation cache
  $("hits").textContent = cached ? `${Math.round((100 * answer.hits) / answer.lookups)} %` : "–";
  histogram(answer.counts);
}

function histogram(counts) {
  const k = Math.max(state.status?.num_speculative_tokens ?? 0, counts.length - 1);
  const most = Math.max(1, ...Array.from(counts, (n) => n ?? 0));
  const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg");
  const make = (name, attributes, text) => {
    const element = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    svg.append(element);
  };
  const width = 300 / (k + 1);
  svg.setAttribute("viewBox", "0 0 300 88");
  svg.setAttribute("preserveAspectRatio", "none");
  for (let j = 0; j <= k; j++) {
    const n = counts[j] ?? 0, height = (60 * n) / most;
    make("rect", { class: "bar", x: j * width + 3, y: 72 - height, width: width - 6, height, rx: 2 });
    make("text", { class: "count", x: (j + 0.5) * width, y: 68 - height }, n || "");
    make("text", { class: "count", x: (j + 0.5) * width, y: 84 }, j);
  }
  $("histogram").replaceChildren(svg);
  $("histogram").setAttribute("aria-label",
    `Accepted tokens: ${Array.from({ length: k + 1 }, (_, j) => `${j}: ${counts[j] ?? 0}`).join(", ")}`);
}

const SPAN_MS = 3000;

function lanes() {
  const canvas = $("lanes"), rounds = state.rounds, scale = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width) return;
  if (canvas.width !== Math.round(width * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const draw = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`);
  draw.setTransform(scale, 0, 0, scale, 0, 0);
  draw.clearRect(0, 0, width, height);
  draw.font = "10px system-ui, sans-serif";
  draw.fillStyle = colour("soft");
  draw.fillText("target", 4, 14);
  draw.fillText("draft", 4, height / 2 + 14);
  if (!rounds.length) return;
  const end = rounds[rounds.length - 1].t[4], x = (t) => width + ((t - end) / SPAN_MS) * width;
  const block = (from, to, y, name) => {
    draw.fillStyle = colour(name);
    draw.fillRect(x(from), y, Math.max(1, x(to) - x(from) - 0.5), 22);
  };
  for (const round of rounds) {
    const [begin, drafted, packed, ran] = round.t;
    block(packed, ran, 18, "verify");
    const drafts = round.samples.filter((s) => s.proposed > 0);
    if (!drafts.length) continue;
    const hit = drafts.every((s) => s.origin === "primary"), y = height / 2 + 18;
    if (round.hidden === null) block(begin, drafted, y, "draft");
    else {
      block(drafted, drafted + round.hidden, y, "draft");
      if (round.exposed > 0) block(begin, begin + round.exposed, y, "draft");
      draw.strokeStyle = colour(hit ? "hit" : "miss");
      draw.lineWidth = 1.5;
      draw.beginPath();
      draw.moveTo(x(drafted), y);
      draw.lineTo(x(packed), 40);
      draw.stroke();
    }
  }
  canvas.setAttribute("aria-label", `Lanes of target and draft, ${rounds.length} rounds in the last 3 seconds`);
}

function about(status) {
  const first = !state.status;
  state.status = status;
  const parts = [status.names[0], status.draft ? `draft ${status.draft}` : null,
    `${status.mode ?? "?"}${status.num_speculative_tokens ? ` K=${status.num_speculative_tokens}` : ""}`];
  const connection = status.engine.drafter?.connection;
  if (connection) parts.push(`worker ${connection.state}`);
  if (status.cores) parts.push(`${status.cores} cores`);
  parts.push(`context ${status.max_model_len}`);
  $("about").textContent = parts.filter(Boolean).join(" · ");
  const { num_running: running, num_waiting: waiting } = status.engine;
  $("running").textContent = `${running} running, ${waiting} waiting, KV memory ${Math.round(100 * status.engine.kv_usage)} %`;
  const spec = status.engine.speculative_decoding;
  const all = (spec?.draft_hidden_s ?? 0) + (spec?.draft_exposed_s ?? 0);
  if (all > 0) $("hidden").textContent = `${Math.round((100 * spec.draft_hidden_s) / all)} %`;
  if (first) {
    $("k").max = $("k").value = status.num_speculative_tokens;
    if (!status.num_speculative_tokens) {
      $("mode").value = "ar";
      $("mode").disabled = $("k").disabled = true;
    }
    histogram([]);
  }
}

async function watch() {
  for (;;) {
    try {
      const answer = await call("/v1/status/stream");
      if (!answer.ok) throw new Error((await answer.json()).error.message);
      for await (const news of events(answer)) {
        if (news.status) about(news.status);
        if (news.rounds.length) {
          state.rounds.push(...news.rounds);
          const from = state.rounds[state.rounds.length - 1].t[4] - SPAN_MS;
          state.rounds = state.rounds.filter((round) => round.t[4] >= from);
          requestAnimationFrame(lanes);
        }
      }
    } catch (problem) {
      $("about").textContent = `no connection: ${problem.message}`;
    }
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") state.abort?.abort();
});
$("stop").addEventListener("click", () => state.abort?.abort());
$("clear").addEventListener("click", () => {
  state.abort?.abort();
  state.messages = [];
  $("log").replaceChildren();
  $("message").focus();
});
$("colours").addEventListener("change", (event) => $("log").classList.toggle("plain", !event.target.checked));
addEventListener("resize", () => requestAnimationFrame(lanes));
watch();
