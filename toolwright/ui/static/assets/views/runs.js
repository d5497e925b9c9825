// All runs of the folder: how far each is, how well it does; choose several to compare.
import { Choice, Empty, Field, Pill } from "../controls.js";
import { html, useEffect, useRef } from "../dom.js";
import { useKeys, useListKeys } from "../keys.js";
import { ago, compact, duration, percent, whole } from "../numbers.js";
import { change, go, link } from "../route.js";
import { Sparkline } from "../sparkline.js";
import { visible } from "../text.js";

const COLUMNS = [
  ["name", "run", (run) => run.name],
  ["state", "state", (run) => run.state],
  ["step", "steps", (run) => run.step ?? -1],
  ["reward", "reward", (run) => run.last["reward/mean"] ?? -Infinity],
  ["held_out", "held-out", (run) => held(run)?.[0] ?? -Infinity],
  ["spark", "curve", null],
  ["seconds", "time", (run) => run.seconds ?? 0],
  ["updated", "changed", (run) => run.updated ?? 0],
];

function held(run) {
  if (typeof run.last["held_out/accuracy"] === "number") return [run.last["held_out/accuracy"], percent];
  return typeof run.last["held_out/reward"] === "number" ? [run.last["held_out/reward"], compact] : null;
}

/** Where a run is best looked at first. */
export function firstView(run) {
  if (run.has.includes("search")) return "searches";
  if (run.kind === "eval") return run.has.includes("attempts") ? "attempts" : "evaluations";
  return "curves";
}

function listed(runs, { q, state, sort, order }) {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.filter((run) => {
    const text = `${run.name} ${run.algorithm ?? ""} ${run.task ?? ""} ${run.model ?? ""} ${run.kind}`.toLowerCase();
    return (!state || run.state === state) && words.every((word) => text.includes(word));
  });
  const by = COLUMNS.find(([name]) => name === sort)?.[2];
  if (!by) return found;
  const sign = order === "asc" ? 1 : -1;
  return found.sort((a, b) => sign * (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : 0));
}

export function View({ route, live }) {
  const [sort, order] = [route.get("sort", "updated"), route.get("order", "desc")];
  const rows = listed([...live.runs], { q: route.get("q"), state: route.get("state"), sort, order });
  const chosen = new Set(route.runs);
  const toggle = (name) => change({ run: chosen.has(name) ? route.runs.filter((one) => one !== name) : [...route.runs, name] });
  const open = (run) => go(firstView(run), { run: [run.name] });
  const [place, setPlace] = useListKeys({ count: rows.length, noun: "run", open: (at) => open(rows[at]), more: { x: { does: "choose the run, or not", run: (at) => toggle(rows[at].name) } } });
  useKeys({ c: { does: "compare the chosen runs", run: () => go("curves", { run: route.runs }) } });
  const body = useRef(null);
  useEffect(() => body.current?.children[place]?.scrollIntoView({ block: "nearest" }), [place]);
  const order_ = (name) => change({ sort: name, order: sort === name && order === "desc" ? "asc" : "desc" });
  return html`<div class="bar">
      <h1>Runs <small>${live.folder}</small></h1>
      <${Field} label="search" hidden type="search" placeholder="search runs" value=${route.get("q")} onChange=${(q) => change({ q })} />
      <${Choice} label="state" value=${route.get("state")} options=${[["", "all"], ["running", "running"], ["finished", "finished"], ["stopped", "stopped"]]} onChange=${(state) => change({ state })} />
      <a class=${`action ${chosen.size ? "" : "off"}`} href=${link("curves", { run: route.runs })}>${chosen.size > 1 ? `Compare ${chosen.size} runs` : chosen.size ? "Show this run" : "Show the newest run"}</a>
    </div>
    ${rows.length === 0 && html`<${Empty}>${live.runs.length ? "No run matches." : html`No runs in ${live.folder} yet. Start one: <code>toolwright train task=sums</code>. It appears here by itself.`}<//>`}
    ${rows.length > 0 && html`<div class="scroll card" tabindex="0" role="region" aria-label="runs"><table class="runs">
      <thead><tr><th class="pick"><span class="unseen">choose</span></th>${COLUMNS.map(([name, words, by]) => html`<th key=${name} class=${`c-${name}`} aria-sort=${sort === name ? (order === "asc" ? "ascending" : "descending") : null}>
        ${by ? html`<button class="sort" onClick=${() => order_(name)}>${words}</button>` : words}</th>`)}</tr></thead>
      <tbody ref=${body}>${rows.map((run, n) => html`<${RunRow} key=${run.name} run=${run} active=${n === place} chosen=${chosen.has(run.name)} toggle=${() => toggle(run.name)} choose=${() => setPlace(n)} />`)}</tbody>
    </table></div>`}`;
}

function RunRow({ run, active, chosen, toggle, choose }) {
  const about = [run.kind === "train" ? run.algorithm : run.kind, run.task, run.model].filter(Boolean).map(visible).join(" · ");
  const done = run.steps ? Math.min(1, run.step / run.steps) : null;
  const score = held(run);
  return html`<tr class=${`${active ? "active" : ""} ${chosen ? "chosen-row" : ""}`} onClick=${choose} data-run=${run.name}>
    <td class="pick"><input type="checkbox" checked=${chosen} onChange=${toggle} aria-label=${`choose ${visible(run.name)}`} /></td>
    <td class="c-name"><a href=${link(firstView(run), { run: [run.name] })}>${visible(run.name)}</a><small>${about}</small></td>
    <td class="c-state"><${Pill} kind=${run.state}>${run.state}<//>${run.deaths > 0 && html` <small class="bad">${run.deaths} deaths</small>`}</td>
    <td class="c-step">${run.step === null ? "–" : whole(run.step)}${run.steps ? html`<small> / ${whole(run.steps)}</small>` : ""}
      ${done !== null && html`<span class="progress"><i ref=${(bar) => bar && (bar.style.width = `${done * 100}%`)}></i></span>`}</td>
    <td class="c-reward">${compact(run.last["reward/mean"])}</td>
    <td class="c-held_out">${score ? score[1](score[0]) : "–"}</td>
    <td class="c-spark"><${Sparkline} values=${run.spark} label="main metric" /></td>
    <td class="c-seconds">${run.seconds ? duration(run.seconds) : "–"}</td>
    <td class="c-updated">${ago(run.updated)}</td>
  </tr>`;
}
