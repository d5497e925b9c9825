// The branches of an attempt whose conversation was edited or split: its turns as a tree, one way through it shown.
import { html, useMemo } from "./dom.js";
import { counted, compact } from "./numbers.js";
import { Tree } from "./tree.js";

export const branched = (segments) => segments.some((segment, n) => segment.parent !== n - 1);

/** The places of the segments on the way to this one, and on from it by the first branch. */
export function through(segments, place) {
  const path = [place];
  while (segments[path[0]].parent >= 0) path.unshift(segments[path[0]].parent);
  for (let next; (next = segments.findIndex((one, n) => n > path.at(-1) && one.parent === path.at(-1))) >= 0; ) path.push(next);
  return path;
}

/** The turn that a segment's way comes from; null: it opens a sequence. */
function turnBefore(segments, place) {
  let at = segments[place].parent;
  while (at >= 0 && !segments[at].turn) at = segments[at].parent;
  return at >= 0 ? segments[at].turn : null;
}

/** What a segment says of itself where it does not go on from the one before it. */
export function branchNote(segments, place) {
  const { parent } = segments[place];
  if (parent === place - 1) return "";
  if (parent < 0) return "branch with a prompt of its own";
  const turn = segments[parent].turn ?? turnBefore(segments, parent);
  return turn ? `branch from turn ${turn}` : "branch from the prompt";
}

/** Every turn of the attempt; those of the shown way are marked. */
export function Branches({ segments, path, chosen, onChoose }) {
  const nodes = useMemo(
    () => segments.flatMap((one, n) => (one.turn ? [{ id: one.turn, parent: turnBefore(segments, n), label: String(one.turn), tone: 0.2, marked: path.includes(n), failed: false, title: `turn ${one.turn}, ${counted(one.tokens?.count ?? 0, "token")}${typeof one.reward === "number" ? `, reward ${compact(one.reward)}` : ""}` }] : [])),
    [segments, path],
  );
  return html`<section class="card branches"><h2>Branches <small>turns of this attempt; the marked way is shown below</small></h2>
    <${Tree} label="branches" nodes=${nodes} chosen=${chosen} onChoose=${onChoose} /></section>`;
}
