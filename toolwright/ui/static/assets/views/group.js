// The attempts of one group side by side.
import { runPath, useApi } from "../api.js";
import { branchNote } from "../branches.js";
import { Conversation } from "../conversation.js";
import { Choice, Waiting } from "../controls.js";
import { html, useState } from "../dom.js";
import { compact, whole } from "../numbers.js";
import { change, link } from "../route.js";
import { LongText, oneLine, visible, written } from "../text.js";
import { advantageScale, COLOURINGS, hasColouring, Legend } from "../tokens.js";

export function View({ route, run }) {
  const wanted = route.get("colour", "none");
  const coloured = wanted !== "none";
  const { data, error } = useApi(runPath(run.name, `groups/${route.number("step", 0)}/${encodeURIComponent(route.get("group"))}`, { tokens: coloured }));
  const [token, setToken] = useState("");
  if (!data) return html`<${Waiting} error=${error} data=${null} />`;
  const values = [...new Set(data.attempts.flatMap((attempt) => attempt.values ?? []))];
  const scale = advantageScale(data.attempts.flatMap((attempt) => attempt.segments));
  const view = { colouring: coloured && (hasColouring(wanted, values) || !values.length) ? wanted : "none", scale, onToken: setToken };
  const options = COLOURINGS.filter(([name]) => !values.length || hasColouring(name, values));
  return html`<div class="bar">
      <h1>Group <small>${oneLine(data.group, 80)}, step ${data.step} · reward ${compact(data.reward_mean)} ± ${compact(data.reward_std)}</small></h1>
      <a class="action quiet" href=${link("task", { run: route.runs, task: data.task.id })}>Task through the steps</a>
    </div>
    <div class="attempt-bar"><span class="soft">colour</span><${Choice} label="colour of tokens" value=${view.colouring} options=${options} onChange=${(colour) => change({ colour })} /><${Legend} colouring=${view.colouring} scale=${scale} /></div>
    <div class="card"><${Conversation} attempt=${{ segments: [] }} task=${data.task} view=${{ ...view, colouring: "none" }} /></div>
    ${data.task.ground_truth !== null && data.task.ground_truth !== undefined && html`<p class="truth"><span class="soft">right answer</span> <${LongText} text=${written(data.task.ground_truth)} /></p>`}
    <div class="columns scroll" tabindex="0" role="region" aria-label="attempts of the group">
      ${data.attempts.map((attempt) => html`<article class="card" key=${attempt.row}>
        <header><a href=${link("attempt", { run: route.runs, step: attempt.step ?? data.step, row: attempt.row, colour: wanted === "none" ? null : wanted })}>attempt ${attempt.index}</a>
          <b>${attempt.failure ? "failed" : compact(attempt.reward)}</b> <small>${whole(attempt.length)} tokens · ${visible(attempt.stop)}</small></header>
        <${Conversation} attempt=${marked(attempt)} task=${data.task} view=${view} prompt=${false} />
      </article>`)}
    </div>
    ${view.colouring !== "none" && html`<p class="token-line" role="status" aria-live="polite">${token || "Point at a token, or go through them with the arrow keys."}</p>`}`;
}

/** The attempt, with a word at each segment that branches off. */
function marked(attempt) {
  return { ...attempt, segments: attempt.segments.map((one, n) => ({ ...one, branch: branchNote(attempt.segments, n) })) };
}
