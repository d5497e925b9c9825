// A run's configuration: every value and where it came from, or what differs from another run.
import { path, runPath, useApi } from "../api.js";
import { Facts, Field, Select, Waiting } from "../controls.js";
import { html } from "../dom.js";
import { change } from "../route.js";
import { LongText, visible, written } from "../text.js";

function matches(key, value, q) {
  return !q || `${key} ${written(value ?? "")}`.toLowerCase().includes(q.toLowerCase());
}

export function View({ route, run, chosen, live }) {
  const other = route.get("with", chosen[1]?.name ?? "");
  const options = [["", "no other run"], ...(live.runs ?? []).filter((one) => one.name !== run.name).map((one) => [one.name, visible(one.name)])];
  return html`<div class="bar"><h1>Configuration</h1>
      <${Field} label="search settings" hidden type="search" placeholder="search settings" value=${route.get("q")} onChange=${(q) => change({ q })} />
      <${Select} label="compare with" value=${other} options=${options} onChange=${(name) => change({ with: name || null, ...(name ? {} : { run: [run.name] }) })} />
    </div>
    ${other ? html`<${Difference} a=${run.name} b=${other} q=${route.get("q")} all=${route.get("all")} />` : html`<${Settings} run=${run.name} q=${route.get("q")} />`}`;
}

function Settings({ run, q }) {
  const { data, error } = useApi(runPath(run));
  if (!data) return html`<${Waiting} error=${error} data=${null} />`;
  const rows = data.config.filter(({ key, value }) => matches(key, value, q));
  return html`${!q && html`<${Facts} facts=${data.facts.map(([name, value]) => [visible(name), visible(value)])} />`}
    <div class="scroll card" tabindex="0" role="region" aria-label="settings"><table class="settings">
      <thead><tr><th class="left">key</th><th class="left">value</th><th class="left">from</th></tr></thead>
      <tbody>${rows.map(({ key, value, origin }) => html`<tr key=${key} class=${origin && origin !== "default" ? "set" : ""}><td class="left"><code>${visible(key)}</code></td><td class="left wrap"><code>${visible(written(value))}</code></td><td class="left soft">${visible(origin ?? "")}</td></tr>`)}</tbody>
    </table></div>
    ${!rows.length && html`<p class="empty">${data.config.length ? "No setting matches." : "This run has no configuration."}</p>`}
    ${data.command && !q && html`<h2>Command and machine</h2><div class="card pad"><${LongText} text=${data.command} /></div>`}`;
}

function Difference({ a, b, q, all }) {
  const url = path("/api/diff", { a, b, all });
  const { data, error } = useApi(url);
  if (!data) return html`<${Waiting} error=${error} data=${null} />`;
  const rows = data.rows.filter((row) => matches(row.key, [row.a, row.b], q));
  const cell = (row, side, only) => (only.includes(row.key) ? html`<i class="soft">no such setting</i>` : html`<code>${visible(written(row[side]))}</code>`);
  return html`<p class="summary"><b>${data.rows.filter((row) => row.differs !== false).length}</b> differ, ${data.same} are the same.
      <button class="quiet" aria-pressed=${Boolean(all)} onClick=${() => change({ all: all ? null : "true" })}>${all ? "only differences" : "show all"}</button>
      <a class="action quiet" href=${path("/api/diff", { a, b, all, format: "csv" })} download>CSV</a></p>
    <div class="scroll card" tabindex="0" role="region" aria-label="differences"><table class="settings">
      <thead><tr><th class="left">key</th><th class="left">${visible(a)}</th><th class="left">${visible(b)}</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.key} class=${row.differs === false ? "" : "set"}><td class="left"><code>${visible(row.key)}</code></td><td class="left wrap">${cell(row, "a", data.only_b ?? [])}</td><td class="left wrap">${cell(row, "b", data.only_a ?? [])}</td></tr>`)}</tbody>
    </table></div>`;
}
