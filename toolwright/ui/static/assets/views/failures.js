// What went wrong: warnings, attempts that failed, processes that died and what was done about it.
import { runPath, useApi } from "../api.js";
import { Empty, Waiting } from "../controls.js";
import { html } from "../dom.js";
import { whole } from "../numbers.js";
import { link } from "../route.js";
import { LongText, visible } from "../text.js";

export function View({ route, run }) {
  const { data, error } = useApi(runPath(run.name), { run: run.name, live: ["attempts", "incidents", "log"], pause: 3000 });
  if (!data) return html`<${Waiting} error=${error} data=${null} />`;
  const { warnings = [], failures: failed = [], incidents = [] } = data;
  return html`<div class="bar"><h1>Failures</h1></div>
    ${!warnings.length && !failed.length && !incidents.length && html`<${Empty}>Nothing went wrong.<//>`}
    ${warnings.map((words) => html`<p class="note" key=${words}>${visible(words)}</p>`)}
    ${failed.length > 0 && html`<h2>Failed attempts</h2><div class="scroll card" tabindex="0" role="region" aria-label="failed attempts"><table>
      <thead><tr><th class="left">kind</th><th class="left">what happened</th><th>attempts</th><th class="left">steps</th><th></th></tr></thead>
      <tbody>${failed.map((one, n) => html`<tr key=${n}><td class="left">${visible(one.kind)}</td><td class="left fill wrap"><${LongText} text=${one.message ?? ""} /></td>
        <td><a href=${link("attempts", { run: route.runs, failed: "true" })}>${whole(one.count)}</a></td><td class="left">${stepsIn(one.steps)}</td>
        <td>${one.example && html`<a href=${link("attempt", { run: route.runs, step: one.example.step, row: one.example.row })}>example</a>`}</td></tr>`)}</tbody></table></div>`}
    ${incidents.length > 0 && html`<h2>Incidents <small>survived</small></h2><div class="scroll card" tabindex="0" role="region" aria-label="incidents"><table>
      <thead><tr><th>step</th><th class="left">who</th><th class="left">what</th><th class="left">what was done</th><th>sampled again</th></tr></thead>
      <tbody>${incidents.map((one, n) => html`<tr key=${n}><td>${one.step ?? "–"}</td><td class="left">${visible(one.who)}</td><td class="left wrap">${visible(one.what)}</td><td class="left wrap">${visible(one.done)}</td><td>${whole(one.resampled ?? 0)}</td></tr>`)}</tbody></table></div>`}`;
}

function stepsIn(steps = []) {
  return steps.slice(0, 8).join(", ") + (steps.length > 8 ? ", …" : "");
}
