// Metrics as curves: several runs over each other, by step, time or tokens.
import { runPath, useApi } from "../api.js";
import { Chart } from "../chart.js";
import { dash, tone } from "../colours.js";
import { Choice, Empty, Field, Waiting } from "../controls.js";
import { html, useEffect, useMemo, useRef, useState } from "../dom.js";
import { useMetrics } from "../metrics.js";
import { change } from "../route.js";
import { visible } from "../text.js";

const MOST_FOUND = 48; // charts of a search
const MANY_ROWS = 40; // from here on curves are smoothed unless somebody says otherwise
const USUAL_WEIGHT = 0.6;
const NAMES_PAUSE_MS = 10_000; // new metrics are rare
const MARKED = /^held_out\//;

/** What the server suggests for these runs, each title once, and what it has no chart of its own for. */
function suggested(details) {
  const found = new Map();
  for (const { charts } of details) {
    for (const chart of charts) {
      const known = found.get(chart.title);
      if (!known) found.set(chart.title, { ...chart, keys: [...chart.keys] });
      else for (const key of chart.keys) if (!known.keys.some(([name]) => name === key[0])) known.keys.push(key);
    }
  }
  const names = allNames(details);
  const add = (title, note, test, label) => {
    const keys = names.filter(test).map((name) => [name, label(name)]);
    if (keys.length && !found.has(title)) found.set(title, { title, note, keys, zero: true });
  };
  add("Tool calls", "an attempt", (name) => /^attempts\/tool_/.test(name), (name) => name.slice(9).replaceAll("_", " "));
  add("Time by stage", "seconds a step", (name) => /^time\/(?!total).*_s$/.test(name), (name) => name.slice(5, -2).replaceAll("_", " "));
  return [...found.values()];
}

function allNames(details) {
  return [...new Set(details.flatMap(({ metrics }) => metrics))].sort();
}

/** The charts to draw now: the pinned ones, or what a search finds; then the opened groups. */
function chartsOf(details, { q, open }) {
  const single = (name) => ({ title: name, keys: [[name, name]], zero: false });
  const names = allNames(details);
  if (q) {
    const words = q.toLowerCase().split(/\s+/).filter(Boolean);
    const found = names.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
    return { pinned: found.slice(0, MOST_FOUND).map(single), left: Math.max(0, found.length - MOST_FOUND), groups: [] };
  }
  const groups = new Map();
  for (const name of names) {
    const group = name.includes("/") ? name.split("/")[0] : "other";
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(name);
  }
  return { pinned: suggested(details), left: 0, groups: [...groups].map(([name, members]) => ({ name, members, charts: open.includes(name) ? members.map(single) : [] })) };
}

export function View({ route, chosen }) {
  return html`<${Details} key=${chosen.map((run) => run.name).join("\n")} runs=${chosen}>${(details) => html`<${Curves} route=${route} chosen=${chosen} details=${details} />`}<//>`;
}

/** Fetches what is known of each run; shows the curves of those that have arrived. */
function Details({ runs, children }) {
  const [details, setDetails] = useState({});
  const tell = (name, answer) => setDetails((old) => (old[name] === answer ? old : { ...old, [name]: answer }));
  const known = runs.map((run) => details[run.name]).filter((one) => one?.data);
  const data = useMemo(() => known.map((one) => one.data), known.map((one) => one.data));
  const failed = runs.map((run) => details[run.name]?.error).find(Boolean);
  return html`${runs.map((run) => html`<${Detail} key=${run.name} run=${run.name} tell=${tell} />`)}
    <${Waiting} error=${failed} data=${known.length} />
    ${known.length > 0 && children(data)}`;
}

function Detail({ run, tell }) {
  const { data, error } = useApi(runPath(run), { run, live: ["metrics"], pause: NAMES_PAUSE_MS });
  useEffect(() => {
    if (data || error) tell(run, { data, error });
  }, [data, error]);
  return null;
}

function Curves({ route, chosen, details }) {
  const x = ["step", "time", "tokens"].includes(route.get("x")) ? route.get("x") : "step";
  const open = route.get("open").split(",").filter(Boolean);
  const { pinned, groups, left } = useMemo(() => chartsOf(details, { q: route.get("q"), open }), [details, route.get("q"), route.get("open")]);
  const drawn = [...pinned, ...groups.flatMap((group) => group.charts)];
  const names = [...new Set(drawn.flatMap((chart) => chart.keys.map(([name]) => name)))].sort();
  const metrics = useMetrics(chosen.map((run) => run.name), names);
  const rows = Math.max(0, ...chosen.map((run) => metrics.columns(run.name).step?.length ?? 0));
  const weight = Math.min(0.99, Math.max(0, route.number("smooth", rows >= MANY_ROWS ? USUAL_WEIGHT : 0)));
  const shared = { chosen, metrics, x, weight };
  return html`<div class="bar">
      <h1>Curves</h1>
      <${Field} label="search metrics" hidden type="search" placeholder="search metrics" value=${route.get("q")} onChange=${(q) => change({ q })} />
      <${Choice} label="horizontal axis" value=${x} options=${[["step", "steps"], ["time", "time"], ["tokens", "tokens"]]} onChange=${(value) => change({ x: value === "step" ? null : value })} />
      <label class="field slider"><span>smoothing</span><input type="range" min="0" max="0.98" step="0.02" value=${weight} onInput=${(event) => change({ smooth: event.target.value })} /><output>${weight.toFixed(2)}</output></label>
    </div>
    <${Waiting} error=${metrics.error} data=${true} />
    ${pinned.length === 0 && html`<${Empty}>${route.get("q") ? "No metric has this name." : "There are no metrics yet. They appear with the first step."}<//>`}
    <div class="charts">${pinned.map((chart) => html`<${MetricChart} key=${chart.title} chart=${chart} ...${shared} />`)}</div>
    ${left > 0 && html`<p class="empty">${left} more: search for more of the name.</p>`}
    ${groups.length > 0 && html`<h2>All metrics</h2>`}
    ${groups.map((group) => html`<section class="metric-group" key=${group.name}>
      <button class="fold" aria-expanded=${group.charts.length > 0} onClick=${() => change({ open: (open.includes(group.name) ? open.filter((one) => one !== group.name) : [...open, group.name]).join(",") })}>${visible(group.name)} <small>${group.members.length}</small></button>
      ${group.charts.length > 0 && html`<div class="charts">${group.charts.map((chart) => html`<${MetricChart} key=${chart.title} chart=${chart} ...${shared} />`)}</div>`}
    </section>`)}`;
}

/** A chart of one or more metrics. One run: a colour a metric. Several: a colour a run, a dash a metric. */
function MetricChart({ chart, chosen, metrics, x, weight }) {
  const runs = chosen.map((run) => run.name);
  const lines = useMemo(() => {
    const several = runs.length > 1;
    const single = chart.keys.length === 1;
    const found = [];
    runs.forEach((run, r) => {
      const columns = metrics.columns(run);
      chart.keys.forEach(([name, label], k) => {
        const ys = columns[name];
        if (!ys?.some((y) => typeof y === "number")) return;
        const length = Math.min(ys.length, columns[x].length);
        // For most tasks the held-out reward is the accuracy: the same curve is not drawn twice.
        if (MARKED.test(name) && found.some((line) => line.run === run && line.marks && same(line.ys, ys))) return;
        const words = several ? (single ? run : `${run} · ${label}`) : label;
        found.push({ run, label: words, xs: length === columns[x].length ? columns[x] : columns[x].slice(0, length), ys: ys.slice(0, length).map((y) => (typeof y === "number" ? y : null)), tone: tone(several ? r : k), dash: several ? DASHES[k % DASHES.length] : dash(k), marks: MARKED.test(name) });
      });
    });
    return found;
  }, [chart, runs.join("\n"), x, metrics.version]);
  const [{ seen, near }, place] = useSeen();
  const drawn = useRef([]); // lines of when it was last near: what nobody sees is not drawn again
  if (near || !drawn.current.length) drawn.current = lines;
  return html`<div class=${`chart-place ${seen && !lines.length ? "void" : ""}`} ref=${place}>${seen && lines.length > 0 && html`<${Chart} title=${chart.title} note=${chart.note} lines=${drawn.current} x=${x} log=${Boolean(chart.log)} zero=${chart.zero !== false} share=${Boolean(chart.share)} weight=${weight} sync="curves" />`}</div>`;
}

function same(some, others) {
  return some.length === others.length && some.every((value, n) => value === others[n]);
}

const DASHES = [[], [6, 4], [2, 3], [10, 4, 2, 4]];

/** Whether the element is near the window, and whether it ever was: a hundred charts are not drawn before somebody scrolls to them. */
function useSeen() {
  const [state, setState] = useState({ seen: false, near: false });
  const place = useRef(null);
  useEffect(() => {
    const observer = new IntersectionObserver((entries) => {
      const near = entries.at(-1).isIntersecting;
      setState((old) => ({ seen: old.seen || near, near }));
    }, { rootMargin: "200px" });
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  return [state, place];
}
