// The same task through the steps of training.
import { runPath, useApi } from "../api.js";
import { Chart } from "../chart.js";
import { Waiting } from "../controls.js";
import { Conversation } from "../conversation.js";
import { html, useMemo } from "../dom.js";
import { compact, whole } from "../numbers.js";
import { link } from "../route.js";
import { LongText, oneLine, visible, written } from "../text.js";

const PLAIN = { colouring: "none", scale: 1, onToken: () => {} };

export function View({ route, run }) {
  const { data, error } = useApi(runPath(run.name, `tasks/${encodeURIComponent(route.get("task"))}`), { run: run.name, live: ["attempts"] });
  const lines = useMemo(() => {
    const xs = (data?.steps ?? []).map((one) => one.step);
    const line = (label, name, tone) => ({ label, xs, ys: data?.steps.map((one) => one[name] ?? null) ?? [], tone });
    return [line("mean", "reward_mean", "--c1"), line("best", "reward_max", "--c3"), line("worst", "reward_min", "--c5")];
  }, [data]);
  if (!data) return html`<${Waiting} error=${error} data=${null} />`;
  const { task } = data;
  return html`<div class="bar"><h1>Task <small>${oneLine(task.id, 80)}</small></h1>
      <a class="action quiet" href=${link("attempts", { run: route.runs, task: task.id })}>All its attempts</a></div>
    <div class="card"><${Conversation} attempt=${{ segments: [] }} task=${task} view=${PLAIN} /></div>
    ${task.ground_truth !== null && task.ground_truth !== undefined && html`<div class="truth"><span class="soft">right answer</span> <${LongText} text=${written(task.ground_truth)} /></div>`}
    ${data.steps.length > 1 && html`<div class="charts"><${Chart} title="Reward of this task" lines=${lines} /></div>`}
    ${data.steps.map((one) => html`<section key=${one.step}>
      <h2>Step ${one.step} <small>reward ${compact(one.reward_mean)} · ${whole(one.length_mean)} tokens${one.failed ? ` · ${one.failed} failed` : ""}</small></h2>
      <div class="answers">${one.rows.map((row) => html`<a class="card answer" key=${row.row} href=${link("attempt", { run: route.runs, step: row.step, row: row.row })}>
        <b>${row.failed ? "failed" : compact(row.reward)}</b> <small>${whole(row.length)} tokens · ${visible(row.stop)}</small><span class="text">${oneLine(row.answer, 300) || "(no text)"}</span></a>`)}</div>
    </section>`)}`;
}
