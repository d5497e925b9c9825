// Every attempt of a run in one table: sorted, filtered, searched.
import { path, runPath, useLive } from "../api.js";
import { Field, Pill, Select, Waiting } from "../controls.js";
import { html, useState } from "../dom.js";
import { useListKeys } from "../keys.js";
import { compact, duration, whole } from "../numbers.js";
import { Rows, usePages } from "../rows.js";
import { change, link } from "../route.js";
import { oneLine, visible } from "../text.js";

const COLUMNS = [
  ["step", "step"],
  ["task", "question"],
  ["reward", "reward"],
  ["length", "tokens"],
  ["turns", "turns"],
  ["tool_calls", "calls"],
  ["stop", "stop"],
  ["seconds", "time"],
];
const FILTERS = ["step", "group", "task", "reward_min", "reward_max", "length_min", "length_max", "turns_min", "turns_max", "tool_calls_min", "tool_calls_max", "stop", "failed", "source", "q", "q_from"];

/** The filters and the order in the address, as the server takes them. */
export function selection(route) {
  const found = { sort: route.get("sort", "step"), order: route.get("order", "desc") };
  for (const name of FILTERS) found[name] = route.get(name);
  return found;
}

export function View({ route, run }) {
  const [turn, setTurn] = useState(0);
  useLive(run.name, ["attempts"], () => setTurn((n) => n + 1));
  const chosen = selection(route);
  const pages = usePages((offset, limit) => runPath(run.name, "attempts", { ...chosen, offset, limit }), turn);
  const count = pages.stale ? 0 : pages.head?.matched ?? 0;
  const address = (row) => link("attempt", { run: route.runs, step: row.step, row: row.row });
  const [place, setPlace] = useListKeys({ count, noun: "attempt", open: (at) => pages.row(at) && (location.hash = address(pages.row(at))) });
  const order = (name) => change({ sort: name, order: chosen.sort === name && chosen.order === "desc" ? "asc" : "desc" });
  const set = (name) => (value) => change({ [name]: value, q_from: null });
  const facets = pages.head?.facets ?? {};
  const head = COLUMNS.map(([name, words]) => html`<span key=${name} role="columnheader" class=${`c-${name}`} aria-sort=${chosen.sort === name ? (chosen.order === "asc" ? "ascending" : "descending") : "none"}>
    <button class="sort" onClick=${() => order(name)}>${words}</button></span>`);
  return html`<div class="bar">
      <h1>Attempts <small>${pages.head ? counted(pages.head) : ""}</small></h1>
      <${Field} label="search text" hidden type="search" placeholder="search questions and answers" value=${route.get("q")} onChange=${set("q")} />
      <a class="action quiet" href=${path(`/api/runs/${encodeURIComponent(run.name)}/attempts`, { ...chosen, format: "csv" })} download>CSV</a>
    </div>
    <${Filters} route=${route} facets=${facets} set=${set} />
    ${pages.head && !pages.head.complete && html`<p class="note" role="status">Searched ${whole(pages.head.searched)} of ${whole(pages.head.total)} attempts. <button onClick=${() => change({ q_from: pages.head.searched })}>Search the others</button></p>`}
    <${Waiting} error=${pages.error} data=${pages.head} />
    ${pages.head && !pages.stale && count === 0 && html`<p class="empty">${pages.head.total ? "No attempt matches." : "No attempts are kept yet."}</p>`}
    <${Rows} label="attempts" count=${count} pages=${pages} turn=${turn} active=${place} head=${head} address=${address}
      draw=${(row) => html`<${Cells} row=${row} address=${address(row)} run=${route.runs} />`} onChoose=${(n, at) => (setPlace(n), (location.hash = at))} />`;
}

function counted({ matched, total }) {
  return matched === total ? whole(total) : `${whole(matched)} of ${whole(total)}`;
}

function Filters({ route, facets, set }) {
  const stops = Object.entries(facets.stop ?? {}).map(([name, count]) => [name, `${name} (${whole(count)})`]);
  if (route.get("stop") && !facets.stop?.[route.get("stop")]) stops.push([route.get("stop"), route.get("stop")]);
  const sources = Object.keys(facets.source ?? {});
  const field = (name, label, placeholder, size) => html`<${Field} key=${name} label=${label} value=${route.get(name)} placeholder=${placeholder} size=${size} onChange=${set(name)} />`;
  const any = FILTERS.some((name) => route.get(name));
  const clear = Object.fromEntries(FILTERS.map((name) => [name, null]));
  return html`<div class="filters" role="group" aria-label="filters">
    ${field("step", "step", stepsHint(facets.steps), 7)}
    ${field("reward_min", "reward from", "", 4)}${field("reward_max", "to", "", 4)}
    ${field("length_min", "tokens from", "", 4)}${field("length_max", "to", "", 4)}
    ${field("tool_calls_min", "calls from", "", 3)}
    <${Select} label="stop" value=${route.get("stop")} options=${[["", "any"], ...stops]} onChange=${set("stop")} />
    <${Select} label="failed" value=${route.get("failed")} options=${[["", "any"], ["true", "failed"], ["false", "not failed"]]} onChange=${set("failed")} />
    ${sources.length > 1 && html`<${Select} label="source" value=${route.get("source")} options=${[["", "any"], ...sources.map((name) => [name, name])]} onChange=${set("source")} />`}
    ${["group", "task"].filter((name) => route.get(name)).map((name) => html`<button class="chip" key=${name} onClick=${() => set(name)(null)} title="remove this filter">${name} ${oneLine(route.get(name), 30)} ×</button>`)}
    ${any && html`<button class="quiet" onClick=${() => change(clear)}>Clear</button>`}
  </div>`;
}

function stepsHint(steps) {
  return steps?.length ? `${steps[0]}-${steps.at(-1)}` : "";
}

function Cells({ row, address, run }) {
  const words = oneLine(row.question || row.task, 300) || "(no text)";
  return html`<span role="cell" class="c-step">${row.step}</span>
    <span role="cell" class="c-task"><a href=${address}>${words}</a>${row.snippet && html`<small>${oneLine(row.snippet, 200)}</small>`}</span>
    <span role="cell" class="c-reward">${row.failed ? html`<${Pill} kind="failed">failed<//>` : compact(row.reward)}</span>
    <span role="cell" class="c-length">${whole(row.length)}</span>
    <span role="cell" class="c-turns">${whole(row.turns)}</span>
    <span role="cell" class="c-tool_calls">${whole(row.tool_calls)}${row.tool_errors > 0 && html`<small class="bad"> ${whole(row.tool_errors)}!</small>`}</span>
    <span role="cell" class="c-stop">${visible(row.stop)}</span>
    <span role="cell" class="c-seconds">${row.seconds ? duration(row.seconds) : "–"}</span>`;
}
