// The chat page. Whatever a server or a person says is set as textContent; the key stays in this tab's session storage.

import {drawTree} from "./tree.js";

const KEY = "eyas.key", FIGURES_MS = 1000;
const by = (id) => document.getElementById(id);
const turns = []; // {asked, said, question, article}: what the next request repeats, and where it stands in the log
let served = null; // the model's id
let running = null; // the answer that streams
let newest = null; // the newest round with a tree

class Refused extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    Object.assign(this, {status, retryAfter});
  }
}

// --- the server ------------------------------------------------------------------------------------------------------

/** A response of the server below this page, or Refused. */
async function ask(path, options = {}) {
  const key = by("key").value.trim();
  // A header is Latin-1: a key's UTF-8 bytes go out one by one, and the server compares bytes.
  const bytes = String.fromCharCode(...new TextEncoder().encode(key));
  const headers = {...options.headers, ...(key && {Authorization: `Bearer ${bytes}`})};
  const response = await fetch(path, {...options, headers, cache: "no-store"});
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `HTTP status ${response.status}`;
  throw new Refused(response.status, message, response.headers.get("Retry-After"));
}

/** The events of a stream as objects. Throws what the server tells in it, and if it ends before [DONE]. */
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
      if (event.error) throw new Refused(503, event.error.message, null);
      yield event;
    }
  }
}

async function findModel() {
  const models = await (await ask("v1/models")).json();
  const {id, max_model_len: context} = models.data[0];
  served = id;
  by("model").textContent = `${id}, context ${context}`;
  by("most").max = context - 1;
  by("most").value = Math.min(by("most").value, context - 1);
}

async function showSpeedUp() {
  const text = await (await ask("metrics")).text();
  const [now, low, high] = ["now", "low", "high"].map((name) => {
    const found = text.match(new RegExp(`^eyas_speedup_${name}\\{.*\\} (\\S+)$`, "m"));
    return found && Number(found[1]).toFixed(2);
  });
  by("speedup").textContent = now ? `${now}×` : "–";
  by("interval").textContent = now ? `(95 %: ${low} to ${high})` : "(not measured yet)";
}

// --- an answer -------------------------------------------------------------------------------------------------------

/** Ask for the answer of the last turn, and show it as it comes. */
async function answer() {
  const turn = turns.at(-1);
  const messages = turns.flatMap(({asked, said}) => [
    {role: "user", content: asked},
    ...(said ? [{role: "assistant", content: said}] : []),
  ]);
  const stop = new AbortController();
  running = {turn, stop, begun: null, newest: null, tokens: 0, drafted: 0, rounds: 0};
  turn.article = message("answer", "eyas");
  turn.article.setAttribute("aria-busy", "true");
  tell("Answering.");
  forget();
  showBusy();
  const poll = setInterval(() => showSpeedUp().catch(() => {}), FIGURES_MS);
  try {
    if (served === null) await findModel();
    const finish = await stream(messages, stop.signal);
    tell(finish === "length" ? `Ended at the most tokens, ${running.tokens}.` : `Done: ${running.tokens} tokens.`);
  } catch (error) {
    if (error.name === "AbortError") tell(turn.said ? "Stopped. What came is kept." : "Stopped.");
    else explain(error);
  } finally {
    clearInterval(poll);
    turn.article.setAttribute("aria-busy", "false");
    if (!turn.said) turn.article.remove();
    show();
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
    max_tokens: by("most").valueAsNumber,
    speculation: by("speculation").value,
    stream: true,
    stream_options: {include_rounds: true},
  };
  const headers = {"Content-Type": "application/json"};
  const response = await ask("v1/chat/completions", {method: "POST", headers, body: JSON.stringify(body), signal});
  let finish = null;
  for await (const event of events(response)) {
    const choice = event.choices[0];
    take(choice.round, choice.finish_reason, performance.now());
    finish = choice.finish_reason ?? finish;
  }
  return finish;
}

/** Add a round's tokens to the answer. The first chunk is the prompt's, not a round. */
function take(round, finish, now_ms) {
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
    span.className = round.drafted[i] ? "drafted" : "own";
    turn.article.lastChild.append(span);
    turn.said += text;
  });
  if (round.tree) {
    const own = round.texts.at(-1) || (finish === "stop" ? "(end)" : "");
    const bonus = round.drafted.at(-1) ? null : own;
    newest = {tree: round.tree, bonus, number: running.rounds};
  }
  if (!running.frame) running.frame = requestAnimationFrame(show);
}

/** Nothing on the page is of an earlier answer. */
function forget() {
  newest = null;
  for (const name of ["tpot", "acceptance", "share"]) by(name).textContent = "–";
  by("caption").textContent = "None yet in this answer.";
  by("tree").replaceChildren();
  by("treekey").hidden = true;
}

/** Figures and tree, at most once a frame. */
function show() {
  const {begun, newest: end, tokens, drafted, rounds} = running;
  cancelAnimationFrame(running.frame);
  running.frame = null;
  if (tokens > 1) by("tpot").textContent = `${((end - begun) / (tokens - 1)).toFixed(2)} ms`;
  if (rounds) by("acceptance").textContent = ((tokens - 1) / rounds).toFixed(2);
  if (tokens) by("share").textContent = `${Math.round((100 * drafted) / tokens)} %`;
  if (newest) {
    const {tree, bonus, number} = newest;
    const count = `${tree.texts.length - 1} drafted, ${tree.path.length} accepted`;
    by("caption").textContent = `Round ${number} of the answer: ${count}.`;
    by("tree").replaceChildren(drawTree(tree, bonus));
    by("treekey").hidden = false;
  }
  follow();
}

// --- what went wrong -------------------------------------------------------------------------------------------------

/** Say what to do about it; what came of the answer is kept. */
function explain(error) {
  const kept = running?.turn.said ? " What came is kept." : "";
  const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  let reason = `The connection broke off.${kept} Ask again for a whole answer.`;
  if (error.status === 401) {
    reason = by("key").value ? "The server refused this API key." : "This server wants an API key.";
    by("key").setAttribute("aria-invalid", "true");
    if (running || document.activeElement === document.body) by("key").focus(); // else somebody is at work elsewhere
  } else if (error.status === 429) reason = `The server is full.${wait || " Try again soon."}`;
  else if (error.status === 503) reason = `The server cannot answer now: ${error.message}.${kept}${wait}`;
  else if (error instanceof Refused) reason = `The server refused: ${error.message}.${kept}`;
  else if (!(error instanceof TypeError)) reason = `The server said what this page cannot read: ${error.message}`;
  else if (running === null || running.begun === null) reason = "The server does not answer. Is it running?";
  tell("");
  by("reason").textContent = reason;
  by("trouble").hidden = false;
  by("retry").hidden = running === null;
  if (running) running.turn.article.classList.add("broken");
}

function tell(text) {
  by("status").textContent = text;
  by("trouble").hidden = true;
}

// --- the page --------------------------------------------------------------------------------------------------------

/** An article of the log: who speaks, and a paragraph for the words. */
function message(kind, who, words = "") {
  const article = document.createElement("article"), name = document.createElement("h2");
  const text = document.createElement("p");
  article.className = kind;
  name.textContent = who;
  text.textContent = words;
  article.append(name, text);
  by("log").append(article);
  by("log").scrollTop = by("log").scrollHeight;
  return article;
}

/** Keep the end in sight of who reads there. */
function follow() {
  const log = by("log");
  if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
}

function showBusy() {
  by("send").disabled = by("clear").disabled = running !== null;
  by("stop").disabled = running === null;
}

function send() {
  const asked = by("words").value.trim();
  if (running !== null || !asked || !by("settings").reportValidity()) return;
  // Of a question without any answer nothing is repeated: templates want the two in turn.
  if (turns.length && !turns.at(-1).said) turns.pop().question.remove();
  by("empty")?.remove();
  by("words").value = "";
  turns.push({asked, said: "", question: message("question", "You", asked), article: null});
  answer();
}

by("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
by("words").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
by("stop").addEventListener("click", () => running?.stop.abort());
by("retry").addEventListener("click", () => {
  const turn = turns.at(-1);
  if (running !== null || !by("settings").reportValidity()) return;
  turn.article.remove();
  turn.said = "";
  answer();
});
by("clear").addEventListener("click", () => {
  turns.length = 0;
  by("log").replaceChildren();
  tell("");
  by("words").focus();
});
by("settings").addEventListener("submit", (event) => event.preventDefault());
by("key").addEventListener("change", () => {
  sessionStorage.setItem(KEY, by("key").value);
  by("key").removeAttribute("aria-invalid");
  begin();
});

/** Find out whether the server lets us in. */
async function begin() {
  try {
    await findModel();
    if (turns.length === 0) tell("");
    else by("reason").textContent = "The server answers now.";
    await showSpeedUp();
  } catch (error) {
    if (running === null) explain(error);
  }
}

by("key").value = sessionStorage.getItem(KEY) ?? "";
begin();
