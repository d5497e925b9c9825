// Text that others wrote: agents, tools, data sets. It reaches the page as text nodes alone, and nothing in it hides.
import { html, useEffect, useRef, useState } from "./dom.js";

// Control characters but newline and tab; what turns the direction of text; what has no width: as `observe/attempt.py`.
const UNSEEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\ud800-\\udfff" +
    "\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164" +
    "\\ufe00-\\ufe0e\\ufeff\\uffa0\\ufff0-\\ufffb\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}]",
  "gu",
);
const SHORT = 6_000; // characters shown of a long text
const BLOCK = 8_000; // characters of one block of a text shown whole
const BLOCKS_A_FRAME = 40;

function picture(character) {
  const code = character.codePointAt(0);
  if (code < 32) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "␡";
  if (code < 0xa0 || (code >= 0xd800 && code < 0xe000)) return "\ufffd";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** Replace what a reader could not see by a picture, such as ␛ or ⟨U+202E⟩. */
export function visible(text) {
  return String(text ?? "").replaceAll("\r\n", "\n").replace(UNSEEN, picture);
}

/** On one line, at most `most` characters. */
export function oneLine(text, most = 200) {
  const line = visible(String(text ?? "").slice(0, most * 4)).replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** A value of JSON as text. */
export function written(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Text of any length. A long one shows its start and its end until somebody asks for all of it. */
export function LongText({ text, cut = 0, onWhole = null }) {
  const [whole, setWhole] = useState(false);
  const total = text.length + cut;
  if (total <= SHORT * 1.2) return html`<pre class="text">${visible(text)}</pre>`;
  if (whole && !cut) return html`<${Blocks} text=${text} />`;
  const start = text.slice(0, (SHORT * 2) / 3);
  const end = text.slice(-SHORT / 3);
  const show = () => {
    setWhole(true);
    if (cut) onWhole?.();
  };
  return html`<div class="long">
    <pre class="text">${visible(start)}</pre>
    <button class="more" onClick=${show} disabled=${whole}>
      ${whole ? "Loading…" : `… ${(total - start.length - end.length).toLocaleString("en")} more characters: show all`}
    </button>
    <pre class="text">${visible(end)}</pre>
  </div>`;
}

/** A text in blocks that the browser lays out only where they are looked at; added a few a frame. */
function Blocks({ text }) {
  const place = useRef(null);
  useEffect(() => {
    let next = 0;
    let frame = 0;
    const add = () => {
      const some = document.createDocumentFragment();
      for (let n = 0; n < BLOCKS_A_FRAME && next < text.length; n++, next += BLOCK) {
        const block = document.createElement("pre");
        block.className = "text block";
        block.textContent = visible(text.slice(next, next + BLOCK));
        some.append(block);
      }
      place.current?.append(some);
      if (next < text.length) frame = requestAnimationFrame(add);
    };
    add();
    return () => {
      cancelAnimationFrame(frame);
      place.current?.replaceChildren();
    };
  }, [text]);
  return html`<div class="blocks" ref=${place} tabindex="0" role="region" aria-label="whole text"></div>`;
}
