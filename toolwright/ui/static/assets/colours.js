// Colours by the stylesheet, as a canvas needs them, and told anew when light turns to dark.
import { useEffect, useState } from "./dom.js";

export const TONES = 8;

/** The stylesheet's name of the n-th line's colour. */
export function tone(n) {
  return `--c${(n % TONES) + 1}`;
}

/** Which dash the n-th line has: full until the colours have all been used. */
export function dash(n) {
  return [[], [6, 4], [2, 3], [10, 4, 2, 4]][Math.floor(n / TONES) % 4];
}

let probe = null;

/** A variable of the stylesheet as rgb(…). */
export function colour(name) {
  if (!probe) {
    probe = document.createElement("i");
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const CHANGED = "toolwright-theme";

export function theme() {
  return document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
}

export function switchTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("theme", next);
  } catch {
    // storage is switched off: the choice lasts as long as the page
  }
  dispatchEvent(new Event(CHANGED));
}

export function useTheme() {
  const [now, setNow] = useState(theme());
  useEffect(() => {
    const read = () => setNow(theme());
    addEventListener(CHANGED, read);
    dark.addEventListener("change", read);
    return () => {
      removeEventListener(CHANGED, read);
      dark.removeEventListener("change", read);
    };
  }, []);
  return now;
}
