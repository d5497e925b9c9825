// Every view of the page, in the order of the tabs. A new view is a line here and the module views/NAME.js, which exports `View`.
//
// A view is {name, title} and, where it needs them: `run` (it shows a run), `many` (it shows all chosen runs), `needs`
// (what a run must have, of `has` in its summary), `tab` (it belongs to another view's tab), `key` (opens it).
// `View` gets {route, live, chosen, run}: the address, what the server told, the chosen runs' summaries, the first of them.
import { useEffect, useState } from "./dom.js";

export const VIEWS = [
  { name: "runs", title: "Runs", key: "r" },
  { name: "curves", title: "Curves", key: "c", run: true, many: true, needs: "metrics" },
  { name: "attempts", title: "Attempts", key: "a", run: true, needs: "attempts" },
  { name: "tasks", title: "Tasks", run: true, needs: "attempts" },
  { name: "distributions", title: "Distributions", key: "d", run: true, needs: "attempts" },
  { name: "timeline", title: "Timeline", key: "l", run: true, needs: "timeline" },
  { name: "evaluations", title: "Evaluations", key: "e", run: true, needs: "evaluations" },
  { name: "searches", title: "Searches", key: "w", run: true, needs: "search" },
  { name: "failures", title: "Failures", key: "f", run: true },
  { name: "configuration", title: "Configuration", key: "o", run: true },
  { name: "system", title: "System", key: "s", run: true },
  { name: "attempt", title: "Attempt", tab: "attempts", run: true },
  { name: "group", title: "Group", tab: "attempts", run: true },
  { name: "task", title: "Task", tab: "tasks", run: true },
];
const OTHERS_AFTER_MS = 3000;
const loaded = new Map(); // name → View

async function load(name) {
  if (!loaded.has(name)) loaded.set(name, (await import(`./views/${name}.js`)).View);
}

/** Load the other views once the first one stands: they open at once then, even if the server has ended. */
export function loadOthersLater() {
  setTimeout(() => VIEWS.forEach(({ name }) => load(name).catch(() => {})), OTHERS_AFTER_MS);
}

/** The component of a view, null until it is loaded; throws if it cannot be. */
export function useView(name) {
  const [, redraw] = useState(0);
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    if (!loaded.has(name)) load(name).then(() => redraw((n) => n + 1), () => setFailed(true));
  }, [name]);
  if (failed) throw new Error("its code could not be loaded. Is `toolwright ui` still running?");
  return loaded.get(name) ?? null;
}
