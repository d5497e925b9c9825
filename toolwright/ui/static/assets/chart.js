// A line chart over uPlot: lines of several runs, smoothed, with a legend that follows the cursor.
import uPlot from "./vendor/uPlot.js";
import { colour, useTheme } from "./colours.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./dom.js";
import { saveCsv, savePng } from "./download.js";
import { compact, duration, percent } from "./numbers.js";
import { visible } from "./text.js";

const FEW = 40; // points that are drawn as dots too
const WHOLE = [...Array(10).keys()].flatMap((power) => [1, 2, 5].map((part) => part * 10 ** power)); // steps apart
const X_AXES = { step: compact, time: duration, tokens: compact };

/** A running mean that forgets; the first values are not pulled towards zero. */
export function smoothed(values, weight) {
  let mean = 0;
  let known = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    mean = mean * weight + value * (1 - weight);
    known = known * weight + (1 - weight);
    return mean / known;
  });
}

/** Lines {xs, ys} as uPlot wants them: one x column for all. `weight` adds a smoothed line behind each. */
function aligned(lines, { weight, log }) {
  const tables = lines.map((line) => {
    const ys = log ? line.ys.map((y) => (y > 0 ? y : null)) : line.ys;
    return [line.xs, ys, ...(weight && !line.marks ? [smoothed(ys, weight)] : [])];
  });
  const shared = lines.every((line) => line.xs === lines[0].xs);
  return shared ? [lines[0].xs, ...tables.flatMap((table) => table.slice(1))] : uPlot.join(tables);
}

function seriesOf(lines, weight) {
  return lines.flatMap((line) => {
    const stroke = colour(line.tone);
    const few = line.ys.reduce((n, y) => n + (y !== null && y !== undefined), 0) <= FEW;
    const plain = { label: line.label, stroke, width: 1.8, dash: line.dash ?? [], spanGaps: true, points: { show: few || Boolean(line.marks), size: 5, fill: stroke } };
    if (!weight || line.marks) return [plain];
    return [{ ...plain, width: 1, alpha: 0.28, points: { show: false } }, { ...plain, points: { show: false } }];
  });
}

function options({ lines, size, x, log, zero, share, weight, sync, onCursor }) {
  const axis = { stroke: colour("--soft"), font: "11px system-ui, sans-serif", grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } };
  const format = share ? percent : compact;
  const range = (u, low, high) => {
    if (low === null || high === null) return log ? [0.1, 1] : [0, 1]; // no logarithm has a zero
    if (log) return uPlot.rangeLog(low, high, 10, true);
    if (zero && low === 0 && high === 0) return [0, 1];
    const bottom = zero ? Math.min(0, low) : low;
    return uPlot.rangeNum(bottom, zero ? Math.max(0, high) : high, { min: { pad: 0.06, soft: 0, mode: zero ? 1 : 3 }, max: { pad: 0.06, soft: 0, mode: zero ? 1 : 3 } });
  };
  return {
    ...size,
    padding: [10, 16, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false }, ...(sync ? { sync: { key: sync, setSeries: false } } : {}) },
    scales: { x: { time: false }, y: log ? { distr: 3, log: 10, range } : { range } },
    axes: [
      { ...axis, size: 27, gap: 7, space: 60, ...(x === "step" ? { incrs: WHOLE } : {}), values: (u, at) => at.map((value) => X_AXES[x](value)) },
      { ...axis, size: 50, gap: 6, space: 30, grid: { ...axis.grid, filter: (u, at) => (log ? at.map((value) => (Number.isInteger(Math.round(Math.log10(value) * 1e6) / 1e6) ? value : null)) : at) }, values: (u, at) => at.map((value) => (value === null ? "" : format(value))) },
    ],
    series: [{}, ...seriesOf(lines, weight)],
    hooks: { setCursor: [(u) => onCursor(u.cursor.idx)] },
  };
}

/** The value at the cursor, or the last one known before it. */
function valueAt(column, place) {
  for (let n = Math.min(place, column.length - 1); n >= 0; n--) if (column[n] !== null && column[n] !== undefined) return column[n];
  return null;
}

export function Chart({ title, note = "", lines, x = "step", log = false, zero = true, share = false, weight = 0, sync = null, height = 220 }) {
  const place = useRef(null);
  const plot = useRef(null);
  const values = useRef([]);
  const shown = useRef({});
  const [wide, setWide] = useState(false);
  const [logged, setLogged] = useState(log);
  const theme = useTheme();
  const inLog = logged && lines.some((line) => line.ys.some((y) => y > 0)); // nothing but zeros is a line, not an empty frame
  const settings = { weight, log: inLog };
  shown.current = { lines, settings, share };
  const shape = JSON.stringify([lines.map((line) => [line.label, line.tone, line.dash]), weight, inLog, zero, share, x, theme]);

  const onCursor = (index) => {
    const data = plot.current?.data;
    if (!data) return;
    const { lines: now, settings: how, share: asShare } = shown.current;
    let column = 1;
    now.forEach((line, n) => {
      const smooth = how.weight && !line.marks;
      const at = index === null || index === undefined ? data[0].length - 1 : index;
      const value = valueAt(data[column + (smooth ? 1 : 0)] ?? [], at);
      if (values.current[n]) values.current[n].textContent = value === null ? "" : (asShare ? percent : compact)(value);
      column += smooth ? 2 : 1;
    });
  };

  useLayoutEffect(() => {
    const size = { width: Math.max(80, place.current.clientWidth), height };
    const made = new uPlot(options({ lines, size, x, log: inLog, zero, share, weight, sync, onCursor }), aligned(lines, settings), place.current);
    plot.current = made;
    onCursor(null);
    const observer = new ResizeObserver(() => {
      const width = place.current?.clientWidth;
      if (width && width !== made.width) made.setSize({ width, height });
    });
    observer.observe(place.current);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => {
    const made = plot.current;
    if (!made) return;
    const [first, last] = [made.data[0][0], made.data[0].at(-1)];
    const zoomed = made.data[0].length > 1 && (made.scales.x.min > first || made.scales.x.max < last);
    made.setData(aligned(lines, settings), !zoomed);
    if (zoomed) made.redraw(); // keeps the part that the reader looks at
    onCursor(null);
  }, [lines]);

  const csv = () => {
    const data = aligned(lines, { ...settings, weight: 0 });
    saveCsv(title, [x, ...lines.map((line) => line.label)], data[0].map((_, row) => data.map((column) => column[row])));
  };
  const png = () => savePng(title, plot.current.ctx.canvas, lines.map((line) => ({ label: line.label, tone: line.tone })));
  return html`<figure class=${`chart ${wide ? "wide" : ""}`} data-title=${title}>
    <figcaption>
      <h3>${visible(title)}${note && html` <small>${note}</small>`}</h3>
      <span class="tools">
        <button aria-pressed=${inLog} onClick=${() => setLogged(!logged)} title="logarithmic scale">log</button>
        <button onClick=${csv} title="download the numbers">CSV</button>
        <button onClick=${png} title="download the picture">PNG</button>
        <button class="widen" aria-pressed=${wide} onClick=${() => setWide(!wide)} title="wide">⤢</button>
      </span>
      <ul class="legend">
        ${lines.map((line, n) => html`<li key=${line.label}>
          <i class=${line.dash?.length ? "key dashed" : "key"} ref=${(key) => key && (key.style.color = `var(${line.tone})`)}></i>
          <span class="label">${visible(line.label)}</span>
          <b ref=${(element) => (values.current[n] = element)}></b>
        </li>`)}
      </ul>
    </figcaption>
    <div class="plot" ref=${place} role="img" aria-label=${`${title}: ${lines.map((line) => line.label).join(", ")} by ${x}`}></div>
  </figure>`;
}
