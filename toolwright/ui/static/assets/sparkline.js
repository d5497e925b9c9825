// A small curve in a line of text. It needs no library of charts, so that the list of runs loads none.
import { html } from "./dom.js";
import { compact } from "./numbers.js";

/** A run's curve, as small as a word. */
export function Sparkline({ values, label }) {
  const known = (values ?? []).map((y, n) => [n, y]).filter(([, y]) => y !== null);
  if (known.length < 2) return html`<span class="soft">–</span>`;
  const ys = known.map(([, y]) => y);
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const at = ([n, y]) => `${((n / (values.length - 1)) * 96 + 2).toFixed(1)},${(high === low ? 13 : 23 - ((y - low) / (high - low)) * 20).toFixed(1)}`;
  return html`<svg class="spark" viewBox="0 0 100 26" role="img" aria-label=${`${label} from ${compact(ys[0])} to ${compact(ys.at(-1))}`}>
    <polyline points=${known.map(at).join(" ")} />
  </svg>`;
}
