// Who was busy and who waited for whom, step by step.
import { runPath, useApi } from "../api.js";
import { Empty, Waiting } from "../controls.js";
import { html, useState } from "../dom.js";
import { useKeys } from "../keys.js";
import { duration, percent } from "../numbers.js";
import { change } from "../route.js";
import { visible } from "../text.js";

const STAGE_TONES = 7; // the eighth is grey, as waiting is
const WIDTH = 1000; // of the drawing, in its own units
const LANE = 34;
const THINNEST = 0.4; // units: bars below this are joined with their neighbour
const MOST_STEPS = 20; // at once

/** Neighbouring bars that are too thin to tell apart become one. */
function joined(bars, scale) {
  const found = [];
  for (const bar of bars) {
    const last = found.at(-1);
    if (last && last.stage === bar.stage && (bar.start_s + bar.seconds - last.start_s) * scale < THINNEST) last.seconds = bar.start_s + bar.seconds - last.start_s;
    else found.push({ ...bar });
  }
  return found;
}

export function View({ route, run }) {
  const from = route.number("step");
  const to = route.number("to") ?? from;
  const params = from === null ? {} : to > from ? { from, to: Math.min(to, from + MOST_STEPS - 1) } : { step: from };
  const { data, error } = useApi(runPath(run.name, "timeline", params), { run: run.name, live: from === null ? ["timeline"] : [] });
  const steps = data?.steps ?? [];
  const span = to !== null && from !== null ? to - from + 1 : 1;
  const at = from ?? data?.step ?? steps.at(-1) ?? 0;
  const show = (first, count) => {
    const lowest = Math.max(steps[0] ?? 0, Math.min(first, steps.at(-1) ?? 0));
    change({ step: lowest, to: count > 1 ? lowest + count - 1 : null });
  };
  useKeys({
    ArrowLeft: { does: "step before", run: () => show(at - span, span) },
    ArrowRight: { does: "next step", run: () => show(at + span, span) },
  });
  return html`<div class="bar"><h1>Timeline <small>${steps.length ? `step ${at}${span > 1 ? `–${at + span - 1}` : ""} of ${steps.at(-1)}` : ""}</small></h1>
      ${steps.length > 1 && html`<label class="field slider grow"><span>step</span><input type="range" min=${steps[0]} max=${steps.at(-1)} value=${at} onInput=${(event) => show(Number(event.target.value), span)} /></label>
        <label class="field"><span>steps at once</span><select value=${String(span)} onChange=${(event) => show(at, Number(event.target.value))}>${[...new Set([1, 2, 5, 10, 20, span])].sort((a, b) => a - b).map((n) => html`<option key=${n} value=${String(n)} selected=${n === span}>${n}</option>`)}</select></label>`}
      ${from !== null && html`<button class="quiet" onClick=${() => change({ step: null, to: null })}>Follow the newest</button>`}</div>
    <${Waiting} error=${error} data=${data} />
    ${data && !data.roles?.length && html`<${Empty}>This run has no timeline yet.<//>`}
    ${data?.roles?.length > 0 && html`<${Lanes} data=${data} /><${Shares} data=${data} csv=${runPath(run.name, "timeline", { ...params, format: "csv" })} />`}`;
}

function Lanes({ data }) {
  const [told, setTold] = useState("");
  const length = Math.max(1e-6, data.end - data.start);
  const scale = WIDTH / length;
  const stages = [...new Set(data.roles.flatMap((role) => role.stages.map((one) => one.stage)))].sort();
  const toneOf = (stage) => (stages.indexOf(stage) % STAGE_TONES) + 1;
  const bar = (one, words, name) => html`<rect class=${name} x=${one.start_s * scale} width=${Math.max(0.8, one.seconds * scale)} y="5" height=${LANE - 10} onMouseEnter=${() => setTold(words)}><title>${words}</title></rect>`;
  return html`<div class="card pad lanes" onMouseLeave=${() => setTold("")}>
    ${data.roles.map((role) => html`<div class="lane" key=${role.who}><span class="who">${visible(role.who)}</span>
      <svg viewBox=${`0 0 ${WIDTH} ${LANE}`} preserveAspectRatio="none" role="img" aria-label=${`${role.who}: busy ${duration(role.busy_s)}, idle ${duration(role.idle_s)}`}>
        <rect class="ground" x="0" y="5" width=${WIDTH} height=${LANE - 10} />
        ${role.waits.map((one) => bar(one, `${visible(role.who)} waited ${duration(one.seconds)}${one.for?.length ? ` for ${one.for.map(visible).join(", ")}` : ""}`, "wait"))}
        ${joined(role.stages, scale).map((one) => bar(one, `${visible(one.stage)}: ${duration(one.seconds)}${one.cpu_s ? `, ${duration(one.cpu_s)} of processor` : ""}, step ${one.step}`, `stage s${toneOf(one.stage)}`))}
      </svg></div>`)}
    <div class="lane scale"><span></span><span class="ends"><span>0</span><span>${duration(length / 2)}</span><span>${duration(length)}</span></span></div>
    <p class="told" aria-hidden="true">${told || html`<span class="soft">Point at a bar to read it.</span>`}</p>
    <ul class="legend">${stages.map((stage) => html`<li key=${stage}><i class=${`key s${toneOf(stage)}`}></i>${visible(stage)}</li>`)}<li><i class="key waiting"></i>waiting</li></ul>
    ${data.cut && html`<p class="note">Too many stages: only the first are shown. Choose fewer steps.</p>`}
  </div>`;
}

/** The same as a table: how long each role was busy, and whom it waited for. */
function Shares({ data, csv }) {
  const total = Math.max(1e-9, data.end - data.start);
  return html`<h2>Busy and waiting <a class="action quiet" href=${csv} download>CSV</a></h2><div class="scroll card" tabindex="0" role="region" aria-label="busy and waiting"><table>
    <thead><tr><th class="left">role</th><th>busy</th><th>of the time</th><th>idle</th><th class="left">waited for</th></tr></thead>
    <tbody>${data.roles.map((role) => {
      const whom = new Map();
      for (const wait of role.waits) for (const one of wait.for ?? []) whom.set(one, (whom.get(one) ?? 0) + wait.seconds);
      const words = [...whom].sort((a, b) => b[1] - a[1]).map(([one, seconds]) => `${visible(one)} ${duration(seconds)}`).join(", ");
      return html`<tr key=${role.who}><td class="left">${visible(role.who)}</td><td>${duration(role.busy_s)}</td><td>${percent(Math.min(1, role.busy_s / total))}</td><td>${duration(role.idle_s)}</td><td class="left">${words || "–"}</td></tr>`;
    })}</tbody></table></div>`;
}
