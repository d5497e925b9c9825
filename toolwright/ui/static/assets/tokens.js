// Tokens one by one, coloured by what is known of each.
import { html, useEffect, useMemo, useRef, useState } from "./dom.js";
import { compact, percent } from "./numbers.js";
import { visible } from "./text.js";

const MOST = 4_000; // tokens drawn before somebody asks for all

/** Steps of a colour: `at` are the upper bounds of all steps but the last; `classes` one a step, and `words` for the legend. */
const BANDS = {
  probability: { at: [0.01, 0.05, 0.2, 0.5, 0.8, 0.95], classes: ["h6", "h5", "h4", "h3", "h2", "h1", ""], words: ["< 1 %", "< 5 %", "< 20 %", "< 50 %", "< 80 %", "< 95 %", "more"] },
  entropy: { at: [0.05, 0.2, 0.5, 1, 2, 3], classes: ["", "v1", "v2", "v3", "v4", "v5", "v6"], words: ["< 0.05", "< 0.2", "< 0.5", "< 1", "< 2", "< 3", "more nats"] },
  gap: { at: [1e-12, 1e-4, 1e-3, 1e-2, 1e-1, 1], classes: ["", "h1", "h2", "h3", "h4", "h5", "h6"], words: ["none", "< 0.0001", "< 0.001", "< 0.01", "< 0.1", "< 1", "more"] },
};
/** Said where no token has a colour: a policy that is sure of all it says looks like a page that forgot its colours. */
const PLAIN = { probability: "here every token was above 95 %", entropy: "here every token was below 0.05", advantage: "here every token is near 0", gap: "here no token differs" };
const SIGNED = ["n3", "n2", "n1", "", "p1", "p2", "p3"];

export const COLOURINGS = [["none", "none"], ["probability", "probability"], ["entropy", "entropy"], ["advantage", "advantage"], ["gap", "engine–learner gap"], ["mask", "mask"]];

/** What a colouring needs of the values that an attempt has. */
export function hasColouring(name, values) {
  const needs = { probability: ["log_prob"], entropy: ["entropy"], advantage: ["advantage"], gap: ["log_prob", "learner_log_prob"] }[name] ?? [];
  return needs.every((one) => values.includes(one));
}

/** The numbers of one token: null where nobody measured it. */
function numbersOf(tokens, n) {
  const of = (name) => tokens.values?.[name]?.[n] ?? null;
  const [logProb, learner] = [of("log_prob"), of("learner_log_prob")];
  return {
    probability: logProb === null ? null : Math.exp(logProb),
    logProb,
    entropy: of("entropy"),
    advantage: of("advantage"),
    gap: logProb === null || learner === null ? null : learner - logProb,
    mask: of("mask"),
  };
}

/** The largest advantage, by which the colours are scaled. */
export function advantageScale(segments) {
  let most = 0;
  for (const { tokens } of segments) for (const value of tokens?.values?.advantage ?? []) most = Math.max(most, Math.abs(value ?? 0));
  return most || 1;
}

function classOf(colouring, numbers, { learned, scale }) {
  if (colouring === "mask") return (numbers.mask === null ? learned : numbers.mask) ? "on" : "off";
  if (colouring === "advantage") {
    if (numbers.advantage === null) return "";
    return SIGNED[Math.round((numbers.advantage / scale) * 3) + 3];
  }
  const bands = BANDS[colouring];
  const value = colouring === "gap" && numbers.gap !== null ? Math.abs(numbers.gap) : numbers[colouring];
  if (!bands || value === null || value === undefined) return "";
  const place = bands.at.findIndex((bound) => value < bound);
  return bands.classes[place < 0 ? bands.at.length : place];
}

function isPlain(colouring, segments, scale) {
  return segments.every(({ tokens }) => !tokens?.texts || tokens.texts.every((_, n) => !classOf(colouring, numbersOf(tokens, n), { scale })));
}

/** What the colours mean, and that these segments have none of them. */
export function Legend({ colouring, scale, segments = [] }) {
  const plain = useMemo(() => segments.length > 0 && colouring in PLAIN && isPlain(colouring, segments, scale), [colouring, segments, scale]);
  const items =
    colouring === "mask"
      ? [["on", "learned from"], ["off", "context"]]
      : colouring === "advantage"
        ? SIGNED.map((name, n) => [name, compact(((n - 3) / 3) * scale)])
        : BANDS[colouring]?.classes.map((name, n) => [name, BANDS[colouring].words[n]]);
  if (!items) return null;
  return html`<ul class="token-legend" aria-label=${`colours of ${colouring}`}>${items.map(([name, words]) => html`<li key=${words}><i class=${`t ${name}`}></i>${words}</li>`)}${plain && html`<li><b>${PLAIN[colouring]}</b></li>`}</ul>`;
}

/** What is known of one token, in a line. */
function described(segment, n) {
  const { tokens } = segment;
  const numbers = numbersOf(tokens, n);
  const parts = [`token ${n + 1} of ${tokens.count}`, `id ${tokens.ids?.[n] ?? "?"}`];
  if (numbers.probability !== null) parts.push(`probability ${percent(numbers.probability)}`, `log ${compact(numbers.logProb)}`);
  if (numbers.entropy !== null) parts.push(`entropy ${compact(numbers.entropy)}`);
  if (numbers.advantage !== null) parts.push(`advantage ${compact(numbers.advantage)}`);
  if (numbers.gap !== null) parts.push(`gap ${compact(numbers.gap)}`);
  const learned = numbers.mask === null ? segment.source === "policy" : Boolean(numbers.mask);
  parts.push(learned ? "learned from" : "context");
  return `${JSON.stringify(visible(tokens.texts?.[n] ?? ""))} · ${parts.join(" · ")}`;
}

/**
 * A segment's tokens as coloured text. The element is one stop of the tab key; the arrows go from token to token, and
 * `onToken` is told what is known of the one under the pointer or the keys.
 */
export function Tokens({ segment, colouring, scale, onToken }) {
  const box = useRef(null);
  const [all, setAll] = useState(false);
  const { tokens } = segment;
  const count = Math.min(tokens.texts.length, all ? Infinity : MOST);
  useEffect(() => {
    const learned = segment.source === "policy";
    const some = document.createDocumentFragment();
    for (let n = 0; n < count; n++) {
      const span = document.createElement("span");
      span.className = `t ${classOf(colouring, numbersOf(tokens, n), { learned, scale })}`;
      span.dataset.n = n;
      span.textContent = visible(tokens.texts[n]).replaceAll("\n", "⏎\n").replaceAll("\t", "⇥\t");
      some.append(span);
    }
    box.current.replaceChildren(some);
  }, [tokens, colouring, scale, count]);
  const show = (n) => {
    box.current.querySelector(".at")?.classList.remove("at");
    const span = box.current.children[n];
    span?.classList.add("at");
    span?.scrollIntoView({ block: "nearest" });
    onToken(span ? described(segment, n) : "");
  };
  const keys = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const at = Number(box.current.querySelector(".at")?.dataset.n ?? -1);
    show(Math.min(count - 1, Math.max(0, at + by)));
  };
  const over = (event) => event.target.dataset.n !== undefined && onToken(described(segment, Number(event.target.dataset.n)));
  return html`<div class="tokens text" ref=${box} tabindex="0" role="group" aria-label=${`${segment.source}: ${tokens.count} tokens, arrows go through them`} onKeyDown=${keys} onMouseOver=${over} onClick=${over}></div>
    ${count < tokens.texts.length && html`<button class="more" onClick=${() => setAll(true)}>… ${(tokens.texts.length - count).toLocaleString("en")} more tokens: show all</button>`}`;
}
