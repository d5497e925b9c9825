// One attempt: turn by turn, token by token, with the others of its group.
import { get, runPath, useApi } from "../api.js";
import { branched, Branches, branchNote, through } from "../branches.js";
import { Conversation } from "../conversation.js";
import { Choice, Facts, Pill, Waiting } from "../controls.js";
import { html, useEffect, useMemo, useRef, useState } from "../dom.js";
import { useKeys } from "../keys.js";
import { compact, duration, whole } from "../numbers.js";
import { change, go, link } from "../route.js";
import { LongText, oneLine, visible, written } from "../text.js";
import { advantageScale, COLOURINGS, hasColouring, Legend } from "../tokens.js";

export function View({ route, run }) {
  const [step, row] = [route.number("step", 0), route.number("row", 0)];
  const url = runPath(run.name, `attempts/${step}/${row}`);
  const { data, error, stale } = useApi(url);
  const [whole_, setWhole] = useState(null);
  useEffect(() => setWhole(null), [url]);
  const to = (place) => place && go("attempt", { run: route.runs, step: place.step, row: place.row, colour: route.get("colour") });
  useKeys({
    ArrowLeft: { does: "attempt before", run: () => to(data?.neighbours?.previous) },
    ArrowRight: { does: "next attempt", run: () => to(data?.neighbours?.next) },
    k: { run: () => to(data?.neighbours?.previous) },
    j: { run: () => to(data?.neighbours?.next) },
  });
  const top = useRef(null);
  useEffect(() => top.current?.scrollIntoView({ block: "nearest" }), [url]);
  const onWhole = () => get(runPath(run.name, `attempts/${step}/${row}`, { whole: true, tokens: false })).then(setWhole, () => setWhole(null));
  if (!data || (stale && !data.segments)) return html`<${Waiting} error=${error} data=${null} />`;
  return html`<div ref=${top}><${Waiting} error=${error} data=${data} /><${Attempt} route=${route} attempt=${whole_ ?? data} onWhole=${onWhole} to=${to} /></div>`;
}

function Attempt({ route, attempt, onWhole, to }) {
  const [token, setToken] = useState("");
  const has = attempt.values ?? [];
  const options = COLOURINGS.filter(([name]) => hasColouring(name, has) && attempt.segments.some((one) => one.tokens?.texts));
  const wanted = route.get("colour", "probability");
  const colouring = options.some(([name]) => name === wanted) ? wanted : "none";
  const scale = useMemo(() => advantageScale(attempt.segments), [attempt]);
  const view = { colouring, scale, onToken: setToken };
  const all = attempt.segments;
  const place = all.findIndex((one) => one.turn === route.number("turn", 1));
  const path = useMemo(() => (branched(all) && place >= 0 ? through(all, place) : null), [all, place]);
  const shown = path ? { ...attempt, segments: path.map((n) => ({ ...all[n], branch: branchNote(all, n) })) } : attempt;
  return html`<${Head} route=${route} attempt=${attempt} to=${to} />
    <${Siblings} route=${route} attempt=${attempt} />
    ${path && html`<${Branches} segments=${all} path=${path} chosen=${all[place].turn} onChoose=${(turn) => change({ turn })} />`}
    <div class="attempt-bar">
      ${options.length > 1 && html`<span class="soft">colour</span><${Choice} label="colour of tokens" value=${colouring} options=${options} onChange=${(colour) => change({ colour })} />`}
      <${Legend} colouring=${colouring} scale=${scale} segments=${all} />
    </div>
    <div class="card"><${Conversation} attempt=${shown} task=${attempt.task} view=${view} onWhole=${onWhole} prompt=${!path || path[0] === 0} /></div>
    ${attempt.task.ground_truth !== null && attempt.task.ground_truth !== undefined && html`<section class="card pad"><h2>Right answer</h2><${LongText} text=${written(attempt.task.ground_truth)} /></section>`}
    ${colouring !== "none" && html`<p class="token-line" role="status" aria-live="polite">${token || "Point at a token, or go through them with the arrow keys."}</p>`}`;
}

function Head({ route, attempt, to }) {
  const { previous, next } = attempt.neighbours ?? {};
  const facts = [
    ["tokens", whole(attempt.length)],
    ["turns", whole(attempt.turns)],
    ["stop", visible(attempt.stop || "–")],
    ...Object.entries(attempt.reward_parts ?? {}).map(([name, value]) => [visible(name), compact(value)]),
    ...Object.entries(attempt.counts ?? {}).filter(([, value]) => value).map(([name, value]) => [visible(name).replaceAll("_", " "), compact(value)]),
    ...Object.entries(attempt.timings ?? {}).map(([name, value]) => [`${visible(name).replace(/_s$/, "").replaceAll("_", " ")} time`, duration(value)]),
    ["weights", `version ${attempt.version}`],
    ["seed", String(attempt.seed)],
  ];
  const runs = { run: route.runs };
  return html`<div class="bar">
      <h1>${attempt.failure ? html`<${Pill} kind="failed">failed<//>` : html`<span class="reward">reward ${compact(attempt.reward)}</span>`}
        <small>step ${attempt.step}, attempt ${attempt.index} of group ${oneLine(attempt.group, 60)}</small></h1>
      <span class="pair"><button onClick=${() => to(previous)} disabled=${!previous} aria-label="attempt before">←</button><button onClick=${() => to(next)} disabled=${!next} aria-label="next attempt">→</button></span>
      <a class="action quiet" href=${link("group", { ...runs, step: attempt.step, group: attempt.group })}>Group side by side</a>
      <a class="action quiet" href=${link("task", { ...runs, task: attempt.task.id })}>Task through the steps</a>
      <a class="action quiet" href=${link("attempts", { ...runs, step: attempt.step })}>All of step ${attempt.step}</a>
    </div>
    <${Facts} facts=${facts} />`;
}

/** The others of the group. */
function Siblings({ route, attempt }) {
  const rows = attempt.group_rows ?? [];
  const address = (row) => ({ run: route.runs, step: row.step, row: row.row, colour: route.get("colour") });
  if (rows.length < 2) return null;
  return html`<ul class="siblings" aria-label="attempts of the group">
    ${rows.map((row) => html`<li key=${row.row}><a href=${link("attempt", address(row))} aria-current=${row.row === attempt.row ? "true" : null} class=${tint(row, rows)} title=${`attempt ${row.index}: reward ${compact(row.reward)}, ${whole(row.length)} tokens`}><small>#${row.index}</small> ${compact(row.reward)}</a></li>`)}
  </ul>`;
}

/** Good and bad are relative: the upper and the lower half of the group's rewards. */
function tint(row, rows) {
  const rewards = rows.map((one) => one.reward).filter((reward) => typeof reward === "number");
  const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
  if (typeof row.reward !== "number" || low === high) return "";
  return row.reward >= (low + high) / 2 ? "good" : "bad";
}
