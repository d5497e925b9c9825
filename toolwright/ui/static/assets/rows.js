// A long table drawn only where it is looked at: rows are fetched by the page as they come into sight.
import { get } from "./api.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./dom.js";

const PAGE = 200; // rows a request
const ROW = 40; // pixels; `.rows` of the stylesheet has the same
const AROUND = 12; // rows drawn beyond the edge

/**
 * Pages of `address(offset, limit)`. `turn` grows when the rows may have changed: those in sight are then fetched again,
 * and the old ones stay until the new ones are here.
 */
export function usePages(address, turn) {
  const [state, setState] = useState({ key: null, pages: new Map(), head: null, error: null });
  const key = address(0, PAGE);
  const current = useRef(key);
  current.current = key;
  const pending = useRef(new Set());
  const load = (page) => {
    const url = address(page * PAGE, PAGE);
    if (pending.current.has(url)) return;
    pending.current.add(url);
    get(url).then(
      (answer) => {
        if (current.current !== key) return;
        setState((old) => {
          const pages = new Map(old.key === key ? old.pages : []);
          pages.set(page, answer.rows);
          return { key, pages, head: answer, error: null };
        });
      },
      (error) => current.current === key && setState((old) => ({ ...old, key, error })),
    ).finally(() => pending.current.delete(url));
  };
  useEffect(() => load(0), [key, turn]);
  const same = state.key === key;
  const row = (n) => (same ? state.pages.get(Math.floor(n / PAGE))?.[n % PAGE] : undefined);
  const need = (first, last) => {
    if (!same) return;
    for (let page = Math.floor(first / PAGE); page <= Math.floor(last / PAGE); page++) if (!state.pages.has(page)) load(page);
  };
  // After a change only what is in sight is fetched again; the rest is forgotten.
  const forget = (first, last) => {
    if (!same) return;
    const [from, to] = [Math.floor(first / PAGE), Math.floor(last / PAGE)];
    for (const page of [...state.pages.keys()]) if (page < from || page > to) state.pages.delete(page);
    for (let page = Math.max(1, from); page <= to; page++) load(page);
  };
  return { head: state.head, stale: !same, error: same ? state.error : null, row, need, forget };
}

/** The rows in sight. `draw(row, n)` gives the cells; `active` is kept in sight. */
export function Rows({ label, count, pages, turn, active, head, draw, address, onChoose }) {
  const box = useRef(null);
  const [sight, setSight] = useState({ top: 0, height: 600 });
  const first = Math.max(0, Math.floor(sight.top / ROW) - AROUND);
  const last = Math.min(count - 1, Math.ceil((sight.top + sight.height) / ROW) + AROUND);
  useEffect(() => pages.need(first, last), [first, last, pages.head]);
  useEffect(() => pages.forget(first, last), [turn]);
  useLayoutEffect(() => {
    const element = box.current;
    const read = () => setSight({ top: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(read);
    observer.observe(element);
    element.addEventListener("scroll", read, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", read);
    };
  }, []);
  useEffect(() => {
    if (active < 0) return;
    const element = box.current;
    const room = element.clientHeight - ROW; // the head covers one row
    if (active * ROW < element.scrollTop) element.scrollTop = active * ROW;
    else if ((active + 1) * ROW > element.scrollTop + room) element.scrollTop = (active + 1) * ROW - room;
  }, [active]);
  const shown = [];
  for (let n = first; n <= last; n++) shown.push([n, pages.row(n)]);
  return html`<div class="rows card" ref=${box} role="table" aria-label=${label} aria-rowcount=${count + 1} tabindex="0">
    <div class="row head" role="row" aria-rowindex="1">${head}</div>
    <div class="rows-space" ref=${(space) => space && (space.style.height = `${count * ROW}px`)} role="rowgroup">
      ${shown.map(([n, row]) => html`<div key=${n} role="row" aria-rowindex=${n + 2} class=${`row ${n === active ? "active" : ""} ${n % 2 ? "odd" : ""}`}
          ref=${(element) => element && (element.style.top = `${n * ROW}px`)} onClick=${(event) => row && !event.target.closest("a") && onChoose(n, address(row))}>
        ${row ? draw(row, n) : html`<span role="cell" class="soft">…</span>`}
      </div>`)}
    </div>
  </div>`;
}
