// The chat page. All text is set as textContent, never as HTML. The API key stays in the session storage of this tab.

import {drawTree} from "./tree.js";

const KEY = "eyas.key", FIGURES_MS = 1000;
const by = (id) => document.getElementById(id);
const turns = []; // {prompt, text, question, article}: the conversation so far, with its elements
let served = null; // the model's id
let running = null; // the answer that is being generated
let newest = null; // the newest round with a tree

class HttpError extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    Object.assign(this, {status, retryAfter});
  }
}

// --- the server ------------------------------------------------------------------------------------------------------

/** Returns a response of the server, or throws HttpError. */
async function request(path, options = {}) {
  const key = by("key").value.trim();
  // Headers are Latin-1: the UTF-8 bytes of the key are sent one by one, and the server compares bytes.
  const bytes = String.fromCharCode(...new TextEncoder().encode(key));
  const headers = {...options.headers, ...(key && {Authorization: `Bearer ${bytes}`})};
  const response = await fetch(path, {...options, headers, cache: "no-store"});
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `HTTP status ${response.status}`;
  throw new HttpError(response.status, message, response.headers.get("Retry-After"));
}

/** Yields the events of a stream as objects. Throws on an error event, and if the stream ends before [DONE]. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) throw new TypeError("the stream ended early");
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new HttpError(503, event.error.message, null);
      yield event;
    }
  }
}

async function findModel() {
  const models = await (await request("v1/models")).json();
  const {id, max_model_len: context} = models.data[0];
  served = id;
  by("model").textContent = `${id}, context ${context}`;
  by("max-tokens").max = context - 1;
  by("max-tokens").value = Math.min(by("max-tokens").value, context - 1);
}

async function showSpeedUp() {
  const text = await (await request("metrics")).text();
  const [now, low, high] = ["now", "low", "high"].map((name) => {
    const found = text.match(new RegExp(`^eyas_speedup_${name}\\{.*\\} (\\S+)$`, "m"));
    return found && Number(found[1]).toFixed(2);
  });
  by("speedup").textContent = now ? `${now}×` : "–";
  by("interval").textContent = now ? `(95 %: ${low} to ${high})` : "(not measured yet)";
}

// --- answers --------------------------------------------------------------------------------------------------------

/** Generates the answer to the last prompt and shows it as it comes. */
async function generate() {
  const turn = turns.at(-1);
  const messages = turns.flatMap(({prompt, text}) => [
    {role: "user", content: prompt},
    ...(text ? [{role: "assistant", content: text}] : []),
  ]);
  const stop = new AbortController();
  running = {turn, stop, begun: null, newest: null, tokens: 0, drafted: 0, rounds: 0};
  turn.article = addMessage("answer", "eyas");
  turn.article.setAttribute("aria-busy", "true");
  setStatus("Generating.");
  clearFigures();
  showBusy();
  const poll = setInterval(() => showSpeedUp().catch(() => {}), FIGURES_MS);
  try {
    if (served === null) await findModel();
    const finish = await stream(messages, stop.signal);
    setStatus(finish === "length" ? `Stopped at the maximum of ${running.tokens} tokens.` : `Done: ${running.tokens} tokens.`);
  } catch (error) {
    if (error.name === "AbortError") setStatus(turn.text ? "Stopped. The partial answer is kept." : "Stopped.");
    else showError(error);
  } finally {
    clearInterval(poll);
    turn.article.setAttribute("aria-busy", "false");
    if (!turn.text) turn.article.remove();
    showFigures();
    running = null;
    showBusy();
    showSpeedUp().catch(() => {});
  }
}

async function stream(messages, signal) {
  const body = {
    model: served,
    messages,
    temperature: by("temperature").valueAsNumber,
    max_tokens: by("max-tokens").valueAsNumber,
    speculation: by("speculation").value,
    stream: true,
    stream_options: {include_rounds: true},
  };
  const headers = {"Content-Type": "application/json"};
  const response = await request("v1/chat/completions", {method: "POST", headers, body: JSON.stringify(body), signal});
  let finish = null;
  for await (const event of events(response)) {
    const choice = event.choices[0];
    addRound(choice.round, choice.finish_reason, performance.now());
    finish = choice.finish_reason ?? finish;
  }
  return finish;
}

/** Adds the tokens of a round to the answer. The first chunk comes from the prefill, not from a round. */
function addRound(round, finish, now_ms) {
  const {turn} = running;
  if (running.begun === null) running.begun = now_ms;
  else running.rounds += 1;
  running.newest = now_ms;
  running.tokens += round.drafted.length;
  running.drafted += round.drafted.filter(Boolean).length;
  round.texts.forEach((text, i) => {
    if (!text) return;
    const span = document.createElement("span");
    span.textContent = text;
    span.className = round.copied[i] ? "drafted copied" : round.drafted[i] ? "drafted" : "sampled";
    turn.article.lastChild.append(span);
    turn.text += text;
  });
  if (round.tree) {
    const last = round.texts.at(-1) || (finish === "stop" ? "(end)" : "");
    const bonus = round.drafted.at(-1) ? null : last;
    newest = {tree: round.tree, bonus, number: running.rounds};
  }
  if (!running.frame) running.frame = requestAnimationFrame(showFigures);
}

/** Clears the figures and the tree of the last answer. */
function clearFigures() {
  newest = null;
  for (const name of ["tpot", "acceptance", "share"]) by(name).textContent = "–";
  by("caption").textContent = "No tree in this answer yet.";
  by("tree").replaceChildren();
  by("treekey").hidden = true;
}

/** Shows the figures and the tree, at most once a frame. */
function showFigures() {
  const {begun, newest: end, tokens, drafted, rounds} = running;
  cancelAnimationFrame(running.frame);
  running.frame = null;
  if (tokens > 1) by("tpot").textContent = `${((end - begun) / (tokens - 1)).toFixed(2)} ms`;
  if (rounds) by("acceptance").textContent = ((tokens - 1) / rounds).toFixed(2);
  if (tokens) by("share").textContent = `${Math.round((100 * drafted) / tokens)} %`;
  if (newest) {
    const {tree, bonus, number} = newest;
    const count = `${tree.texts.length - 1} drafted, ${tree.path.length} accepted`;
    by("caption").textContent = `Round ${number} of this answer: ${count}.`;
    by("tree").replaceChildren(drawTree(tree, bonus));
    by("treekey").hidden = false;
  }
  scrollDown();
}

// --- errors ----------------------------------------------------------------------------------------------------------

/** Shows an error and what to do about it. A partial answer is kept. */
function showError(error) {
  const kept = running?.turn.text ? " The partial answer is kept." : "";
  const wait = error.retryAfter ? ` Retry in ${error.retryAfter} s.` : "";
  let reason = `The connection was lost.${kept} Press Retry for a whole answer.`;
  if (error.status === 401) {
    reason = by("key").value ? "The API key is not valid." : "This server needs an API key.";
    by("key").setAttribute("aria-invalid", "true");
    if (running || document.activeElement === document.body) by("key").focus(); // else the user is typing elsewhere
  } else if (error.status === 429) reason = `The server is full.${wait || " Retry soon."}`;
  else if (error.status === 503) reason = `The server is not available: ${error.message}${kept}${wait}`;
  else if (error instanceof HttpError) reason = `The request failed: ${error.message}${kept}`;
  else if (!(error instanceof TypeError)) reason = `The response cannot be read: ${error.message}`;
  else if (running === null || running.begun === null) reason = "The server does not answer. Is it running?";
  setStatus("");
  by("error-text").textContent = reason;
  by("error").hidden = false;
  by("retry").hidden = running === null;
  if (running) running.turn.article.classList.add("incomplete");
}

function setStatus(text) {
  by("status").textContent = text;
  by("error").hidden = true;
}

// --- the page --------------------------------------------------------------------------------------------------------

/** Adds a message to the log and returns its element. */
function addMessage(kind, author, words = "") {
  const article = document.createElement("article"), name = document.createElement("h2");
  const text = document.createElement("p");
  article.className = kind;
  name.textContent = author;
  text.textContent = words;
  article.append(name, text);
  by("log").append(article);
  by("log").scrollTop = by("log").scrollHeight;
  return article;
}

/** Scrolls to the end if the user was near it. */
function scrollDown() {
  const log = by("log");
  if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
}

function showBusy() {
  by("send").disabled = by("clear").disabled = running !== null;
  by("stop").disabled = running === null;
}

function send() {
  const prompt = by("prompt").value.trim();
  if (running !== null || !prompt || !by("settings").reportValidity()) return;
  // A prompt without an answer is dropped: chat templates need prompts and answers in turn.
  if (turns.length && !turns.at(-1).text) turns.pop().question.remove();
  by("empty")?.remove();
  by("prompt").value = "";
  turns.push({prompt, text: "", question: addMessage("question", "You", prompt), article: null});
  generate();
}

by("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
by("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
by("stop").addEventListener("click", () => running?.stop.abort());
by("retry").addEventListener("click", () => {
  const turn = turns.at(-1);
  if (running !== null || !by("settings").reportValidity()) return;
  turn.article.remove();
  turn.text = "";
  generate();
});
by("clear").addEventListener("click", () => {
  turns.length = 0;
  by("log").replaceChildren();
  setStatus("");
  by("prompt").focus();
});
by("settings").addEventListener("submit", (event) => event.preventDefault());
by("key").addEventListener("change", () => {
  sessionStorage.setItem(KEY, by("key").value);
  by("key").removeAttribute("aria-invalid");
  connect();
});

/** Loads the model and the speed-up, which also checks the API key. */
async function connect() {
  try {
    await findModel();
    if (turns.length === 0) setStatus("");
    else by("error-text").textContent = "Connected.";
    await showSpeedUp();
  } catch (error) {
    if (running === null) showError(error);
  }
}

by("key").value = sessionStorage.getItem(KEY) ?? "";
connect();
