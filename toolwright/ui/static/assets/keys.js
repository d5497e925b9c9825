// The keyboard: what each key does now, and the list of them that `?` shows.
import { useEffect, useRef, useState } from "./dom.js";

const bound = new Set(); // the newest last: it is asked first

function typing(target) {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (typing(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  for (const keys of [...bound].reverse()) {
    const found = keys.current[event.key];
    if (!found) continue;
    if (found.run(event) !== false) event.preventDefault();
    return;
  }
});

/** Bind keys while the component is shown: `{j: {does: "next run", run: () => …}}`. */
export function useKeys(keys) {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    bound.add(latest);
    return () => bound.delete(latest);
  }, []);
}

/** What every bound key does, for the help: [[key, words], …]. */
export function boundKeys() {
  const found = new Map();
  for (const keys of [...bound].reverse()) {
    for (const [key, { does }] of Object.entries(keys.current)) if (does && !found.has(key)) found.set(key, does);
  }
  return [...found];
}

/** A list gone through with j, k and the arrows: the place, and how to set it. */
export function useListKeys({ count, open, noun, more = {} }) {
  const [place, setPlace] = useState(-1);
  const last = Math.max(0, count - 1);
  const move = (by) => setPlace((at) => Math.min(last, Math.max(0, at + by)));
  const control = (event) => event.target instanceof HTMLElement && event.target.closest("a, button, [role=slider]");
  useKeys({
    j: { does: `next ${noun}`, run: () => move(1) },
    k: { does: `${noun} before`, run: () => move(-1) },
    ArrowDown: { run: () => move(1) },
    ArrowUp: { run: () => move(-1) },
    Home: { run: () => setPlace(0) },
    End: { run: () => setPlace(last) },
    PageDown: { run: () => move(15) },
    PageUp: { run: () => move(-15) },
    Enter: { does: `open the ${noun}`, run: (event) => (place < 0 || control(event) ? false : open(place)) },
    ...Object.fromEntries(Object.entries(more).map(([key, { does, run }]) => [key, { does, run: () => place >= 0 && run(place) }])),
  });
  return [Math.min(place, count - 1), setPlace];
}

export function focusSearch() {
  const field = document.querySelector("input[type=search]");
  field?.focus();
  field?.select();
}
