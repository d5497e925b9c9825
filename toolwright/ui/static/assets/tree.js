// A tree of numbered things that grew from each other: candidates of a search, branches of an attempt.
import { html, useLayoutEffect, useMemo, useRef } from "./dom.js";
import { visible } from "./text.js";

const ACROSS = 46; // pixels between neighbours
const DOWN = 58; // between generations
const EDGE = 28;

/** Each node's place: leaves side by side, a parent in the middle above its children. */
export function layout(nodes) {
  const known = new Set(nodes.map((node) => node.id));
  const children = new Map(nodes.map((node) => [node.id, []]));
  const roots = [];
  for (const node of nodes) {
    if (node.parent !== null && node.parent !== undefined && known.has(node.parent) && node.parent !== node.id) children.get(node.parent).push(node.id);
    else roots.push(node.id);
  }
  const places = new Map();
  let leaves = 0;
  let deepest = 0;
  const stack = roots.reverse().map((id) => ({ id, depth: 0, done: false }));
  while (stack.length) {
    const at = stack.pop();
    const below = children.get(at.id);
    if (!below.length || at.done) {
      const x = below.length ? (places.get(below[0]).x + places.get(below.at(-1)).x) / 2 : leaves++;
      places.set(at.id, { x, y: at.depth });
      deepest = Math.max(deepest, at.depth);
      continue;
    }
    stack.push({ ...at, done: true });
    for (const id of [...below].reverse()) stack.push({ id, depth: at.depth + 1, done: false });
  }
  return { places, width: Math.max(1, leaves), height: deepest + 1 };
}

/**
 * Nodes are {id, parent, label, title, tone (0 to 1), marked, failed}. The chosen one is ringed and in sight; a click, Enter or space
 * chooses another.
 */
export function Tree({ nodes, chosen, onChoose, label }) {
  const { places, width, height } = useMemo(() => layout(nodes), [nodes]);
  const at = (id) => {
    const place = places.get(id);
    return [place.x * ACROSS + EDGE, place.y * DOWN + EDGE];
  };
  const size = [(width - 1) * ACROSS + 2 * EDGE, (height - 1) * DOWN + 2 * EDGE];
  const box = useRef(null);
  useLayoutEffect(() => {
    if (!places.has(chosen)) return;
    const { clientWidth, clientHeight, scrollLeft, scrollTop } = box.current;
    const [x, y] = at(chosen);
    if (x - EDGE < scrollLeft || x + EDGE > scrollLeft + clientWidth) box.current.scrollLeft = x - clientWidth / 2;
    if (y - EDGE < scrollTop || y + EDGE > scrollTop + clientHeight) box.current.scrollTop = y - clientHeight / 2;
  }, [chosen]);
  const choose = (event, id) => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    onChoose(id);
  };
  return html`<div class="scroll tree-scroll" ref=${box} tabindex="0" role="region" aria-label=${label}>
    <svg class="tree" width=${size[0]} height=${size[1]} viewBox=${`0 0 ${size[0]} ${size[1]}`} role="group" aria-label=${label}>
      ${nodes.filter((node) => places.has(node.parent) && node.parent !== node.id).map((node) => {
        const [[x1, y1], [x2, y2]] = [at(node.parent), at(node.id)];
        return html`<path key=${`e${node.id}`} class=${node.marked ? "edge marked" : "edge"} d=${`M${x1} ${y1}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}`} />`;
      })}
      ${nodes.filter((node) => places.has(node.id)).map((node) => {
        const [x, y] = at(node.id);
        return html`<g key=${node.id} class=${`node ${node.failed ? "failed" : ""} ${node.marked ? "marked" : ""} ${node.id === chosen ? "chosen" : ""}`} transform=${`translate(${x} ${y})`}
            role="button" tabindex="0" aria-pressed=${node.id === chosen} aria-label=${visible(node.title)} data-node=${node.id} onClick=${(event) => choose(event, node.id)} onKeyDown=${(event) => choose(event, node.id)}>
          <title>${visible(node.title)}</title>
          <circle class="under" r="16" /><circle class="over" r="16" fill-opacity=${node.tone === null ? 0 : 0.12 + 0.6 * node.tone} />
          <text dy="4">${visible(node.label)}</text>
        </g>`;
      })}
    </svg>
  </div>`;
}
