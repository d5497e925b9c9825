// How length, reward, staleness and the rest are distributed: over all attempts, and step by step.
import { runPath, useApi } from "../api.js";
import { colour, useTheme } from "../colours.js";
import { Empty, Facts, Field, Select, Waiting } from "../controls.js";
import { html, useEffect, useRef, useState } from "../dom.js";
import { compact, whole } from "../numbers.js";
import { change } from "../route.js";
import { visible } from "../text.js";

const PAUSE_MS = 5000;

export function View({ route, run }) {
  const what = route.get("what", "length");
  const step = route.get("step");
  const shared = { run: run.name, live: ["attempts"], pause: PAUSE_MS };
  const all = useApi(runPath(run.name, "distributions", { what, step }), shared);
  const steps = useApi(runPath(run.name, "distributions", { what, step, by: "step" }), shared);
  const data = all.data;
  const options = (data?.available ?? [what]).map((name) => [name, visible(name).replaceAll("_", " ")]);
  const spread = data?.quantiles;
  return html`<div class="bar"><h1>Distributions</h1>
      <${Select} label="of" value=${what} options=${options} onChange=${(value) => change({ what: value })} />
      <${Field} label="steps" value=${step} placeholder="all, 3-9" size=${8} onChange=${(value) => change({ step: value })} />
      <a class="action quiet" href=${runPath(run.name, "distributions", { what, step, format: "csv" })} download>CSV</a></div>
    <${Waiting} error=${all.error} data=${data} />
    ${data && !data.count && html`<${Empty}>No attempt has this number.<//>`}
    ${data?.count > 0 && html`<${Facts} facts=${[["attempts", whole(data.count)], ["mean", compact(data.mean)], ["std", compact(data.std)], ["min", compact(spread.min)], ["5 %", compact(spread["0.05"])], ["median", compact(spread["0.5"])], ["95 %", compact(spread["0.95"])], ["max", compact(spread.max)]]} />
      <div class="charts two"><${Histogram} title=${what} edges=${data.edges} counts=${data.counts} median=${spread["0.5"]} />
      ${steps.data?.by_step?.length > 1 && html`<${HeatMap} title=${`${what} by step`} edges=${steps.data.edges} steps=${steps.data.by_step} />`}</div>`}`;
}

/** Bars as wide as their bins. */
export function Histogram({ title, edges, counts, median }) {
  const most = Math.max(1, ...counts);
  const [low, high] = [edges[0], edges.at(-1)];
  const x = (value) => ((value - low) / Math.max(1e-12, high - low)) * 600;
  const words = (n) => `${compact(edges[n])} to ${compact(edges[n + 1])}: ${whole(counts[n])} attempts`;
  return html`<figure class="chart"><figcaption><h3>${visible(title).replaceAll("_", " ")} <small>attempts per bin, ${whole(most)} at most</small></h3></figcaption>
    <svg class="histogram" viewBox="0 0 600 200" preserveAspectRatio="none" role="img" aria-label=${`histogram of ${title}: from ${compact(low)} to ${compact(high)}, median ${compact(median)}`}>
      ${counts.map((count, n) => html`<rect key=${n} x=${x(edges[n])} width=${Math.max(0.5, x(edges[n + 1]) - x(edges[n]) - 1)} y=${198 - (count / most) * 192} height=${(count / most) * 192}><title>${words(n)}</title></rect>`)}
      <line class="median" x1=${x(median)} x2=${x(median)} y1="0" y2="200" vector-effect="non-scaling-stroke" />
    </svg>
    <div class="ends"><span>${compact(low)}</span><span>median ${compact(median)}</span><span>${compact(high)}</span></div></figure>`;
}

/** One column a step, darker where more attempts are; the line is the median. */
function HeatMap({ title, edges, steps }) {
  const canvas = useRef(null);
  const theme = useTheme();
  const [told, setTold] = useState("");
  const bins = edges.length - 1;
  useEffect(() => {
    const element = canvas.current;
    const ratio = devicePixelRatio || 1;
    element.width = element.clientWidth * ratio;
    element.height = element.clientHeight * ratio;
    const pen = element.getContext("2d");
    const [w, h] = [element.width / steps.length, element.height / bins];
    pen.fillStyle = colour("--c1");
    steps.forEach(({ counts }, n) => {
      const most = Math.max(1, ...counts);
      counts.forEach((count, bin) => {
        if (!count) return;
        pen.globalAlpha = 0.12 + 0.88 * (count / most);
        pen.fillRect(n * w, element.height - (bin + 1) * h, Math.max(1, w - 0.5), Math.max(1, h - 0.5));
      });
    });
    pen.globalAlpha = 1;
    pen.strokeStyle = colour("--c2");
    pen.lineWidth = 2 * ratio;
    pen.beginPath();
    const y = (value) => element.height * (1 - (value - edges[0]) / Math.max(1e-12, edges.at(-1) - edges[0]));
    steps.forEach(({ median }, n) => typeof median === "number" && pen.lineTo((n + 0.5) * w, y(median)));
    pen.stroke();
  }, [steps, theme]);
  const point = (event) => {
    const { left, top, width, height } = canvas.current.getBoundingClientRect();
    const one = steps[Math.floor(((event.clientX - left) / width) * steps.length)];
    const bin = bins - 1 - Math.floor(((event.clientY - top) / height) * bins);
    if (one && bin >= 0 && bin < bins) setTold(`step ${one.step}, ${compact(edges[bin])} to ${compact(edges[bin + 1])}: ${whole(one.counts[bin])} attempts, median ${compact(one.median)}`);
  };
  return html`<figure class="chart"><figcaption><h3>${visible(title).replaceAll("_", " ")} <small>${compact(edges[0])} at the bottom, ${compact(edges.at(-1))} at the top; the line is the median</small></h3></figcaption>
    <canvas class="heat" ref=${canvas} role="img" aria-label=${`${title}, from step ${steps[0].step} to ${steps.at(-1).step}`} onMouseMove=${point} onMouseLeave=${() => setTold("")}></canvas>
    <div class="ends"><span>step ${steps[0].step}</span><span>${told}</span><span>step ${steps.at(-1).step}</span></div></figure>`;
}
