// The page's address: `#/curves?run=a&run=b&x=time`. Whatever a reader chooses stands in it, so a link shows the same.
import { useEffect, useState } from "./dom.js";

const CHANGED = "toolwright-route";

/** A view's name and its parameters; `runs` are the chosen ones, the first is the one that single-run views show. */
export class Route {
  constructor(hash) {
    const [path, query] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
    this.view = path || "runs";
    this.params = new URLSearchParams(query ?? "");
    this.runs = [...new Set(this.params.getAll("run"))];
  }

  get(name, otherwise = "") {
    return this.params.get(name) ?? otherwise;
  }

  number(name, otherwise = null) {
    const text = this.params.get(name);
    const value = text === null || text === "" ? NaN : Number(text);
    return Number.isFinite(value) ? value : otherwise;
  }
}

/** The address of a view. Empty parameters are left out; a list becomes one parameter an item. */
export function link(view, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") query.append(name, String(one));
    }
  }
  const text = query.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

export function go(view, params) {
  location.hash = link(view, params);
}

/** Change some parameters of the present address; null removes one. Typing must not fill the history: `replace`. */
export function change(params, { replace = true } = {}) {
  const route = new Route(location.hash);
  const all = { run: route.runs };
  for (const name of new Set(route.params.keys())) if (name !== "run") all[name] = route.params.getAll(name);
  const hash = link(route.view, { ...all, ...params });
  if (hash === location.hash) return;
  history[replace ? "replaceState" : "pushState"](null, "", hash);
  dispatchEvent(new Event(CHANGED));
}

export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const read = () => setHash(location.hash);
    addEventListener("hashchange", read);
    addEventListener(CHANGED, read);
    return () => {
      removeEventListener("hashchange", read);
      removeEventListener(CHANGED, read);
    };
  }, []);
  return new Route(hash);
}
