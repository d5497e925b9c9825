// Held-out results with their intervals: of this run by step, and of all runs beside each other.
import { path, runPath, useApi } from "../api.js";
import { Choice, Empty, Waiting } from "../controls.js";
import { html } from "../dom.js";
import { compact, percent, whole } from "../numbers.js";
import { change, link } from "../route.js";
import { visible } from "../text.js";

const USUAL = ["run", "step", "accuracy", "low", "high", "measure", "which"];
const NAMES = { tokens_mean: "tokens", truncated: "cut off" };

function View({ route, run }) {
  const all = route.get("of") === "all";
  const url = all ? "/api/evaluations" : runPath(run.name, "evaluations");
  const { data, error } = useApi(url, { run: run.name, live: ["metrics"] });
  return html`<div class="bar"><h1>Evaluations <small>${data?.interval ? `interval ${data.interval}` : ""}</small></h1>
      <${Choice} label="of" value=${all ? "all" : ""} options=${[["", "this run"], ["all", "all runs"]]} onChange=${(of) => change({ of })} />
      <a class="action quiet" href=${path(url, { format: "csv" })} download>CSV</a></div>
    <${Waiting} error=${error} data=${data} />
    ${data && !data.rows.length && html`<${Empty}>Nothing was evaluated yet.<//>`}
    ${data?.rows.length > 0 && html`<${Results} rows=${data.rows} measure=${data.measure ?? "accuracy"} all=${all} />`}`;
}

function Results({ rows, measure, all }) {
  const others = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) => !USUAL.includes(name) && rows.some((row) => typeof row[name] === "number"));
  const value = (row) => row[row.measure ?? measure] ?? null;
  const words = (row) => ((row.measure ?? measure) === "accuracy" ? percent : compact)(value(row));
  const values = rows.map((row) => value(row) ?? -Infinity);
  const best = Math.max(...values) > Math.min(...values) ? Math.max(...values) : null;
  return html`<div class="scroll card" tabindex="0" role="region" aria-label="evaluations"><table>
    <thead><tr>${all && html`<th class="left">run</th>`}<th>step</th><th>${visible(measure)}</th><th class="left">interval</th>${others.map((name) => html`<th key=${name}>${visible(NAMES[name] ?? name).replaceAll("_", " ")}</th>`)}</tr></thead>
    <tbody>${rows.map((row, n) => html`<tr key=${n} class=${value(row) === best ? "set" : ""}>
      ${all && html`<td class="left"><a href=${link("evaluations", { run: [row.run] })}>${visible(row.run)}</a></td>`}
      <td>${row.step}${row.which && html` <small>${row.which}</small>`}</td><td><b>${words(row)}</b></td><td class="left"><${Interval} row=${row} /></td>
      ${others.map((name) => html`<td key=${name}>${name === "truncated" ? percent(row[name]) : name === "attempts" || name === "failed" ? whole(row[name]) : compact(row[name])}</td>`)}
    </tr>`)}</tbody></table></div>`;
}

/** The interval on a line from 0 to 1, and in numbers. */
function Interval({ row }) {
  if (typeof row.low !== "number") return html`<span class="soft">unknown</span>`;
  return html`<span class="interval"><svg viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true"><line class="ground" x1="0" x2="100" y1="6" y2="6" /><line class="range" x1=${row.low * 100} x2=${row.high * 100} y1="6" y2="6" /><line class="value" x1=${row.accuracy * 100} x2=${row.accuracy * 100} y1="1" y2="11" /></svg>
    <small>${percent(row.low)} to ${percent(row.high)}</small></span>`;
}

export const evaluations = { name: "evaluations", title: "Evaluations", key: "e", run: true, needs: "evaluations", View };
