// An attempt turn by turn: the prompt, what the policy wrote, what tools and environments answered.
import { html, useState } from "./dom.js";
import { compact, counted, duration, whole } from "./numbers.js";
import { LongText, oneLine, visible, written } from "./text.js";
import { Tokens } from "./tokens.js";

const LONG_MESSAGE = 600; // characters of a prompt's message before it is folded

/** A message's text; parts that are not text are written as JSON. */
function content(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value) && value.every((part) => typeof part?.text === "string" || part?.type === "image")) return value.map((part) => part.text ?? "").join("");
  return written(value);
}

// Kinds that are pixels and nothing else. The server has checked that the bytes are of the kind.
const PICTURE = /^data:image\/(png|jpeg|gif|bmp|webp);base64,/;

/** Images that a prompt, a tool or an environment showed. */
function Pictures({ urls }) {
  const shown = urls.filter((url) => typeof url === "string" && PICTURE.test(url));
  return shown.length > 0 && html`<div class="pictures">${shown.map((url, n) => html`<img key=${n} src=${url} alt=${`image ${n + 1}`} />`)}</div>`;
}

/** `view` is {colouring, scale, onToken}; `onWhole` asks the server for texts that it cut. */
export function Conversation({ attempt, task, view, onWhole, prompt = true }) {
  const messages = prompt ? task?.prompt ?? [] : [];
  const opening = attempt.segments.filter((segment) => segment.source === "prompt" && !segment.branch);
  const turns = attempt.segments.filter((segment) => segment.source !== "prompt" || segment.branch);
  return html`<div class="conversation">
    ${prompt && view.colouring === "mask"
      ? opening.map((segment, n) => html`<${Segment} key=${`p${n}`} segment=${segment} view=${view} onWhole=${onWhole} />`)
      : messages.map((message, n) => html`<${Message} key=${`m${n}`} message=${message} />`)}
    ${prompt && !messages.length && view.colouring !== "mask" && opening.map((segment, n) => html`<${Segment} key=${`p${n}`} segment=${segment} view=${view} onWhole=${onWhole} />`)}
    ${turns.map((segment, n) => html`<${Segment} key=${n} segment=${segment} view=${view} onWhole=${onWhole} />`)}
    ${attempt.failure && html`<div class="segment failure"><span class="who">${visible(attempt.failure.kind)} failure</span><${LongText} text=${attempt.failure.message} /></div>`}
  </div>`;
}

function Message({ message }) {
  const text = content(message.content);
  const long = text.length > LONG_MESSAGE;
  const [open, setOpen] = useState(!long);
  const urls = Array.isArray(message.content) ? message.content.map((part) => part?.image) : [];
  return html`<div class="segment prompt">
    <span class="who">${visible(message.role ?? "prompt")}${long && html` <button class="quiet" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "fold" : `${whole(text.length)} characters: unfold`}</button>`}</span>
    ${open ? html`<${LongText} text=${text} />` : html`<pre class="text soft">${oneLine(text, 160)}</pre>`}
    <${Pictures} urls=${urls} />
  </div>`;
}

function Segment({ segment, view, onWhole }) {
  const { reward, tokens, turn } = segment;
  const coloured = view.colouring !== "none" && tokens?.texts && !segment.cut;
  const who = [segment.source, turn && `turn ${turn}`, segment.branch, tokens?.count && counted(tokens.count, "token"), reward !== null && reward !== undefined && `reward ${compact(reward)}`];
  return html`<div class=${`segment ${segment.source}`}>
    <span class="who">${visible(who[0])} <small>${who.slice(1).filter(Boolean).join(" · ")}</small></span>
    ${segment.calls?.length > 0 && html`<ul class="calls">${segment.calls.map((call, n) => html`<${Call} key=${n} call=${call} />`)}</ul>`}
    <${Pictures} urls=${segment.images ?? []} />
    ${coloured ? html`<${Tokens} segment=${segment} ...${view} />` : segment.text ? html`<${LongText} text=${segment.text} cut=${segment.cut ?? 0} onWhole=${onWhole} />` : html`<p class="soft">(${counted(tokens?.count ?? 0, "token")} without text)</p>`}
  </div>`;
}

function Call({ call }) {
  const words = call.name ? `${visible(call.name)}(${oneLine(written(call.arguments ?? ""), 400)})` : "a call that could not be read";
  return html`<li><code>${words}</code> ${typeof call.seconds === "number" && html`<small>${duration(call.seconds)}</small>`} ${call.trouble && html`<b class="bad">${visible(String(call.trouble)).replaceAll("_", " ")}</b>`}</li>`;
}
