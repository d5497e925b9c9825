// The tasks of a run: how the reward of each changed from its first attempts to its last.
import { runPath, useApi } from "../api.js";
import { Select, Waiting } from "../controls.js";
import { html } from "../dom.js";
import { useListKeys } from "../keys.js";
import { compact, whole } from "../numbers.js";
import { change, go, link } from "../route.js";
import { oneLine } from "../text.js";

const PAGE = 100;
const SORTS = [["change", "largest gain"], ["-change", "largest loss"], ["-mean", "lowest reward"], ["mean", "highest reward"], ["attempts", "most attempts"], ["task", "name"]];

export function View({ route, run }) {
  const sort = route.get("sort", "change");
  const offset = route.number("offset", 0);
  const [by, order] = [sort.replace(/^-/, ""), sort.startsWith("-") || sort === "task" ? "asc" : "desc"];
  const { data, error } = useApi(runPath(run.name, "tasks", { sort: by, order, offset, limit: PAGE }), { run: run.name, live: ["attempts"] });
  const rows = data?.rows ?? [];
  const params = (row) => ({ run: route.runs, task: row.task });
  const [place] = useListKeys({ count: rows.length, noun: "task", open: (at) => go("task", params(rows[at])) });
  return html`<div class="bar"><h1>Tasks <small>${data ? whole(data.total) : ""}</small></h1>
      <${Select} label="sort by" value=${sort} options=${SORTS} onChange=${(value) => change({ sort: value, offset: null })} /></div>
    <${Waiting} error=${error} data=${data} />
    ${data && rows.length === 0 && html`<p class="empty">No attempts are kept yet.</p>`}
    ${by === "change" && offset === 0 && rows[0]?.change === null && html`<p class="note">No task has come up in two steps yet, so none has gained or lost.</p>`}
    ${rows.length > 0 && html`<div class="scroll card" tabindex="0" role="region" aria-label="tasks"><table>
      <thead><tr><th class="left">question</th><th>attempts</th><th>steps</th><th>first reward</th><th>last</th><th>change</th><th>mean</th></tr></thead>
      <tbody>${rows.map((row, n) => html`<tr key=${row.task} class=${n === place ? "active" : ""}>
        <td class="left fill"><a href=${link("task", params(row))}>${oneLine(row.question || row.task, 160) || "(no text)"}</a></td>
        <td>${whole(row.attempts)}</td><td>${whole(row.steps)}</td><td>${compact(row.first)}</td><td>${compact(row.last)}</td>
        <td class=${row.change > 0 ? "good" : row.change < 0 ? "bad" : ""}>${row.change > 0 ? "+" : ""}${compact(row.change)}</td><td>${compact(row.mean)}</td>
      </tr>`)}</tbody></table></div>
      <${Pages} offset=${offset} total=${data.total} />`}`;
}

function Pages({ offset, total }) {
  if (total <= PAGE) return null;
  return html`<p class="pages"><button disabled=${offset === 0} onClick=${() => change({ offset: Math.max(0, offset - PAGE) || null })}>←</button> ${offset + 1}–${Math.min(total, offset + PAGE)} of ${whole(total)}
    <button disabled=${offset + PAGE >= total} onClick=${() => change({ offset: offset + PAGE })}>→</button></p>`;
}
