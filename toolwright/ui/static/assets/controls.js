// The few controls that views share.
import { html, useEffect, useRef, useState } from "./dom.js";

const TYPING_PAUSE_MS = 250;

/** One of several: [[value, words], …]. */
export function Choice({ label, value, options, onChange }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(([name, words]) => html`<button key=${name} aria-pressed=${name === value} onClick=${() => onChange(name)}>${words}</button>`)}
  </div>`;
}

export function Select({ label, value, options, onChange, hidden = false }) {
  return html`<label class="field"><span class=${hidden ? "unseen" : ""}>${label}</span>
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${options.map(([name, words]) => html`<option key=${name} value=${name} selected=${name === value}>${words}</option>`)}
    </select>
  </label>`;
}

/** A field that tells what stands in it once the typing pauses. */
export function Field({ label, value, onChange, type = "text", placeholder = "", hidden = false, size = null }) {
  const [text, setText] = useState(value);
  const timer = useRef(0);
  const told = useRef(value);
  useEffect(() => {
    if (value !== told.current) setText(value); // changed from outside, as by a link
    told.current = value;
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const tell = (now) => {
    clearTimeout(timer.current);
    told.current = now;
    onChange(now);
  };
  const typed = (event) => {
    const now = event.target.value;
    setText(now);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => tell(now), TYPING_PAUSE_MS);
  };
  return html`<label class=${`field ${type === "search" ? "search" : ""}`}><span class=${hidden ? "unseen" : ""}>${label}</span>
    <input type=${type} value=${text} placeholder=${placeholder} size=${size} spellcheck="false" autocomplete="off" onInput=${typed}
      onKeyDown=${(event) => event.key === "Enter" && tell(event.target.value)} />
  </label>`;
}

export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

/** What went wrong, or that something is on its way, or nothing at all. */
export function Waiting({ error, data }) {
  if (error) return html`<p class="problem" role="alert">${error.message}</p>`;
  return data ? null : html`<p class="empty" role="status">Loading…</p>`;
}

export function Pill({ kind, children }) {
  return html`<span class=${`pill ${kind}`}>${children}</span>`;
}

/** Small facts on one line. */
export function Facts({ facts }) {
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
