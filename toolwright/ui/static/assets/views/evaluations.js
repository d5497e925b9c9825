// Held-out results with their intervals: of this run by step, of all runs beside each other, of two task by task.
import { path, runPath, useApi } from "../api.js";
import { Choice, Empty, Select, Waiting } from "../controls.js";
import { html } from "../dom.js";
import { compact, percent, whole } from "../numbers.js";
import { change, link } from "../route.js";
import { visible } from "../text.js";

const USUAL = ["run", "step", "accuracy", "low", "high", "measure", "which"];
const NAMES = { tokens_mean: "tokens", truncated: "cut off", calling: "call a tool" };
const SHARE = /^(truncated|calling|(pass|maj)_at_\d+)$/; // told in percent, as accuracy is

export function View({ route, run, chosen, live }) {
  const other = route.get("with", chosen[1]?.name ?? "");
  const options = [["", "no other run"], ...(live.runs ?? []).filter((one) => one.name !== run.name).map((one) => [one.name, visible(one.name)])];
  const all = route.get("of") === "all";
  const url = all ? "/api/evaluations" : runPath(run.name, "evaluations");
  const { data, error } = useApi(url, { run: run.name, live: ["metrics"] });
  return html`<div class="bar"><h1>Evaluations <small>${data?.interval ? data.interval : ""}</small></h1>
      <${Choice} label="of" value=${all ? "all" : ""} options=${[["", "this run"], ["all", "all runs"]]} onChange=${(of) => change({ of })} />
      <${Select} label="compare with" value=${other} options=${options} onChange=${(name) => change({ with: name || null, ...(name ? {} : { run: [run.name] }) })} />
      <a class="action quiet" href=${path(url, { format: "csv" })} download>CSV</a></div>
    ${other && html`<${Paired} a=${other} b=${run.name} />`}
    <${Waiting} error=${error} data=${data} />
    ${data && !data.rows.length && html`<${Empty}>Nothing was evaluated yet.<//>`}
    ${data?.rows.length > 0 && html`<${Results} rows=${data.rows} measure=${data.measure ?? "accuracy"} all=${all} />`}`;
}

/** This run less another one, over the held-out tasks that both attempted. */
function Paired({ a, b }) {
  const { data, error } = useApi(path("/api/paired", { a, b }));
  if (!data) return html`<${Waiting} error=${error} data=${null} />`;
  if (!data.rows.length) return html`<${Empty}>These runs kept no evaluation of the same tasks.<//>`;
  const value = (row, number) => (row.measure === "reward" ? compact(number) : percent(number));
  const points = (row, number) => `${number < 0 ? "−" : "+"}${row.measure === "reward" ? compact(Math.abs(number)) : (100 * Math.abs(number)).toFixed(1)}`;
  return html`<div class="scroll card" tabindex="0" role="region" aria-label="task by task"><table>
    <thead><tr><th class="left">task by task</th><th>tasks</th><th>${visible(a)}</th><th>${visible(b)}</th><th>difference</th><th class="left">95 %</th><th>p</th><th>worse</th><th>better</th></tr></thead>
    <tbody>${data.rows.map((row, n) => html`<tr key=${n}>
      <td class="left">${visible(`${row.source} ${row.measure.replace("_at_", "@")}`.trim())}</td><td>${whole(row.tasks)}</td><td>${value(row, row.first)}</td><td>${value(row, row.second)}</td>
      <td><b>${points(row, row.difference)}</b></td><td class="left">${points(row, row.low)} to ${points(row, row.high)}</td><td title=${`${row.test} test`}>${row.p < 0.001 ? "<0.001" : row.p.toFixed(3)}</td><td>${whole(row.worse)}</td><td>${whole(row.better)}</td>
    </tr>`)}</tbody></table></div>`;
}

function Results({ rows, measure, all }) {
  const others = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) => !USUAL.includes(name) && !/_(low|high)$/.test(name) && rows.some((row) => typeof row[name] === "number"));
  const value = (row) => row[row.measure ?? measure] ?? null;
  const words = (row) => ((row.measure ?? measure) === "accuracy" ? percent : compact)(value(row));
  const values = rows.map((row) => value(row) ?? -Infinity);
  const best = Math.max(...values) > Math.min(...values) ? Math.max(...values) : null;
  return html`<div class="scroll card" tabindex="0" role="region" aria-label="evaluations"><table>
    <thead><tr>${all && html`<th class="left">run</th>`}<th>step</th><th>${visible(measure)}</th><th class="left">interval</th>${others.map((name) => html`<th key=${name}>${visible(NAMES[name] ?? name).replace("_at_", "@").replaceAll("_", " ")}</th>`)}</tr></thead>
    <tbody>${rows.map((row, n) => html`<tr key=${n} class=${value(row) === best ? "set" : ""}>
      ${all && html`<td class="left"><a href=${link("evaluations", { run: [row.run] })}>${visible(row.run)}</a></td>`}
      <td>${row.step}${row.which && html` <small>${row.which}</small>`}</td><td><b>${words(row)}</b></td><td class="left"><${Interval} row=${row} /></td>
      ${others.map((name) => html`<td key=${name}>${SHARE.test(name) ? percent(row[name]) : name === "attempts" || name === "failed" ? whole(row[name]) : compact(row[name])}</td>`)}
    </tr>`)}</tbody></table></div>`;
}

/** The interval on a line from 0 to 1, and in numbers. */
function Interval({ row }) {
  if (typeof row.low !== "number") return html`<span class="soft">unknown</span>`;
  return html`<span class="interval"><svg viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true"><line class="ground" x1="0" x2="100" y1="6" y2="6" /><line class="range" x1=${row.low * 100} x2=${row.high * 100} y1="6" y2="6" /><line class="value" x1=${row.accuracy * 100} x2=${row.accuracy * 100} y1="1" y2="11" /></svg>
    <small>${percent(row.low)} to ${percent(row.high)}</small></span>`;
}
