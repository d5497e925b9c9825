// What the run asks of the machine: cores, stages, throughput, the sandbox; and what it wrote into its log.
import { runPath, useApi } from "../api.js";
import { Chart } from "../chart.js";
import { dash, tone } from "../colours.js";
import { Choice, Field, Waiting } from "../controls.js";
import { html, useEffect, useMemo, useRef } from "../dom.js";
import { change } from "../route.js";
import { visible } from "../text.js";

export function View({ route, run }) {
  const { data, error } = useApi(runPath(run.name, "load"), { run: run.name, live: ["metrics"], pause: 2000 });
  const x = route.get("x") === "time" ? "time" : "step";
  return html`<div class="bar"><h1>System</h1>
      <${Choice} label="horizontal axis" value=${x} options=${[["step", "steps"], ["time", "time"]]} onChange=${(value) => change({ x: value === "step" ? null : value })} />
      <${Field} label="search the log" hidden type="search" placeholder="search the log" value=${route.get("q")} onChange=${(q) => change({ q })} />
      <a class="action quiet" href=${runPath(run.name, "load", { format: "csv" })} download>CSV</a></div>
    <${Waiting} error=${error} data=${data} />
    ${data && !data.charts.length && html`<p class="empty">This run has told nothing of its machine yet.</p>`}
    <div class="charts">${data?.charts.map((chart) => html`<${LoadChart} key=${chart.title} chart=${chart} columns=${data.columns} x=${x} />`)}</div>
    <${Log} run=${run.name} q=${route.get("q")} />`;
}

function LoadChart({ chart, columns, x }) {
  const lines = useMemo(
    () => chart.keys.filter(([name]) => columns[name]?.some((value) => typeof value === "number")).map(([name, label], n) => ({ label, xs: columns[x], ys: columns[name].map((value) => (typeof value === "number" ? value : null)), tone: tone(n), dash: dash(n) })),
    [chart, columns, x],
  );
  return lines.length ? html`<${Chart} title=${chart.title} note=${chart.note ?? ""} lines=${lines} x=${x} share=${Boolean(chart.share)} sync="system" />` : null;
}

/** The end of log.txt. It follows what is added as long as its last line is in sight. */
function Log({ run, q }) {
  const { data } = useApi(runPath(run), { run, live: ["log", "metrics"], pause: 2000 });
  const box = useRef(null);
  const lines = (data?.log ?? "").split("\n").filter((line) => !q || line.toLowerCase().includes(q.toLowerCase()));
  useEffect(() => {
    const element = box.current;
    if (element && element.scrollHeight - element.scrollTop - element.clientHeight < 80) element.scrollTop = element.scrollHeight;
  }, [data]);
  useEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [run, Boolean(data)]);
  if (!data?.log) return null;
  return html`<h2>Log <small>the last lines</small></h2><pre class="card log" ref=${box} tabindex="0" role="region" aria-label="log">${visible(lines.join("\n"))}</pre>`;
}
