// Searches for workflows: the tree of candidates, what each costs against how well it does, and the best so far.
import { runPath, useApi } from "../api.js";
import { Chart } from "../chart.js";
import { Empty, Facts, Select, Waiting } from "../controls.js";
import { html, useMemo } from "../dom.js";
import { compact, percent, whole } from "../numbers.js";
import { change } from "../route.js";
import { LongText, visible } from "../text.js";
import { Tree } from "../tree.js";

export function View({ route, run }) {
  const { data, error } = useApi(runPath(run.name, "workflow"), { run: run.name, live: ["search", "metrics"], pause: 2000 });
  const searches = data?.searches ?? [];
  const search = searches.find((one) => one.name === route.get("search")) ?? searches[0];
  return html`<div class="bar"><h1>Searches</h1>
      ${searches.length > 1 && html`<${Select} label="data set" value=${search.name} options=${searches.map((one) => [one.name, visible(one.name)])} onChange=${(name) => change({ search: name, candidate: null })} />`}
      <a class="action quiet" href=${runPath(run.name, "workflow", { format: "csv" })} download>CSV</a></div>
    <${Waiting} error=${error} data=${data} />
    ${data && !search && html`<${Empty}>This run searched for no workflow.<//>`}
    ${search && html`<${Search} key=${search.name} search=${search} route=${route} />`}`;
}

function Search({ search, route }) {
  const { candidates } = search;
  const chosen = candidates.find((one) => one.number === route.number("candidate")) ?? candidates.find((one) => one.number === search.best) ?? candidates[0];
  const scores = candidates.map((one) => one.score).filter((score) => typeof score === "number");
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const nodes = useMemo(
    () => candidates.map((one) => ({ id: one.number, parent: one.parent, label: String(one.number), marked: one.on_path, failed: Boolean(one.failure), tone: typeof one.score === "number" ? (high > low ? (one.score - low) / (high - low) : 1) : null, title: `candidate ${one.number}, score ${compact(one.score)}, ${one.runs} runs${one.number === search.best ? ", the best" : ""}${one.failure ? `, failed: ${one.failure}` : ""}` })),
    [candidates],
  );
  const curve = useMemo(() => [{ label: "best score", xs: search.curve.map((one) => one.runs), ys: search.curve.map((one) => one.score ?? null), tone: "--c1" }], [search.curve]);
  const choose = (number) => change({ candidate: number });
  const held = search.held_out;
  return html`<${Facts} facts=${[["data set", visible(search.name)], ["setting", visible(search.setting)], ["selection", visible(search.select)], ["candidates", whole(candidates.length)], ["best", `candidate ${search.best}`], ["budget", compact(search.budget)], ...(held ? [["held-out", `${percent(held.start)} → ${percent(held.best)}`]] : []), ...(search.ended ? [["ended", visible(search.ended)]] : [])]} />
    <div class="search-panes">
      <section class="card"><h2>Candidates <small>fuller is better, the orange way leads to the best</small></h2><${Tree} label="tree of candidates" nodes=${nodes} chosen=${chosen.number} onChoose=${choose} /></section>
      <${Candidate} one=${chosen} best=${search.best} />
    </div>
    <div class="charts two"><${CostAgainstScore} candidates=${candidates} chosen=${chosen.number} best=${search.best} onChoose=${choose} />
      ${search.curve.length > 1 && html`<${Chart} title="Best score by runs" lines=${curve} zero=${false} />`}</div>`;
}

function Candidate({ one, best }) {
  return html`<section class="card pad candidate" aria-live="polite"><h2>Candidate ${one.number} ${one.number === best && html`<span class="pill finished">best</span>`}</h2>
    <${Facts} facts=${[["score", `${compact(one.score)}${one.sd ? ` ± ${compact(one.sd)}` : ""}`], ["runs", whole(one.runs)], ["cost of a run", compact(one.cost)], ["parent", one.parent ?? "none"], ...(one.prior === null || one.prior === undefined ? [] : [["prior", compact(one.prior)]])]} />
    ${one.edit && html`<h3>Edit</h3><${LongText} text=${one.edit} />`}
    ${one.failure && html`<h3>Failure</h3><${LongText} text=${one.failure} />`}
    ${one.diagram && html`<h3>Workflow</h3><div class="scroll" tabindex="0" role="region" aria-label="workflow"><pre class="diagram">${visible(one.diagram)}</pre></div>`}
    ${one.program && html`<details><summary>Program</summary><${LongText} text=${JSON.stringify(one.program, null, 2)} /></details>`}</section>`;
}

/** Every candidate as a dot; the line joins those that nobody beats for less. */
function CostAgainstScore({ candidates, chosen, best, onChoose }) {
  const known = candidates.filter((one) => typeof one.score === "number" && typeof one.cost === "number");
  if (known.length < 2) return null;
  const [costs, scores] = [known.map((one) => one.cost), known.map((one) => one.score)];
  const range = (values) => [Math.min(...values), Math.max(...values) - Math.min(...values) || 1];
  const [[cost0, costs_], [score0, scores_]] = [range(costs), range(scores)];
  const at = (one) => [64 + ((one.cost - cost0) / costs_) * 516, 16 + (1 - (one.score - score0) / scores_) * 190];
  let top = -Infinity;
  const front = [...known].sort((a, b) => a.cost - b.cost || b.score - a.score).filter((one) => one.score > top && ((top = one.score), true));
  return html`<figure class="chart"><figcaption><h3>Cost against score <small>of a run; the line: nothing better for less</small></h3></figcaption>
    <svg class="scatter" viewBox="0 0 600 240" role="group" aria-label="cost against score">
      <path class="axis" d="M56 8V214H592" fill="none" />
      <path class="front" d=${front.map((one, n) => `${n ? "L" : "M"}${at(one).join(" ")}`).join("")} />
      ${known.map((one) => html`<circle key=${one.number} class=${`${one.number === best ? "best" : ""} ${one.number === chosen ? "chosen" : ""}`} cx=${at(one)[0]} cy=${at(one)[1]} r="6" onClick=${() => onChoose(one.number)}><title>${`candidate ${one.number}: cost ${compact(one.cost)}, score ${compact(one.score)}`}</title></circle>`)}
      <text x="56" y="232">${compact(cost0)}</text><text x="592" y="232" class="end">${compact(cost0 + costs_)} cost</text>
      <text x="50" y="20" class="end">${compact(score0 + scores_)}</text><text x="50" y="115" class="end">score</text><text x="50" y="210" class="end">${compact(score0)}</text>
    </svg></figure>`;
}
