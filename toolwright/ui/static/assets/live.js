// What the server tells while the page is open: one stream of events for all views, closed while nobody looks.
import { useEffect, useState } from "./dom.js";

const PAUSE_MS = 100;
const byRun = new Map(); // run → listeners
const listeners = new Set();
let source = null;
export const live = { state: "connecting", runs: null, folder: "", version: "", error: null };

let due = null;
let told = -PAUSE_MS;

/** Runs may tell of many steps a second; nobody reads faster than this. */
function tell() {
  due ??= setTimeout(() => {
    [due, told] = [null, performance.now()];
    for (const listener of listeners) listener();
  }, told + PAUSE_MS - performance.now());
}

/** Call `listener(changed, news)` when something of this run changed; `news` holds the new rows of its metrics. Returns how to stop it. */
export function onRun(run, listener) {
  if (!byRun.has(run)) byRun.set(run, new Set());
  byRun.get(run).add(listener);
  return () => byRun.get(run)?.delete(listener);
}

export async function loadRuns() {
  try {
    const response = await fetch("/api/runs");
    const body = await response.json().catch(() => ({}));
    if (response.status === 401) throw new Error("This page needs its token: open the link that the terminal printed.");
    if (!response.ok) throw new Error(body.error ?? `The server answered ${response.status}.`);
    Object.assign(live, { runs: body.runs, folder: body.folder, version: body.version, error: null });
  } catch (error) {
    live.error = error instanceof TypeError ? "The server does not answer. Is `toolwright ui` still running?" : error.message;
  }
  tell();
}

function received({ run, changed, from, rows }) {
  if (live.runs) {
    const others = live.runs.filter((one) => one.name !== run.name);
    const place = live.runs.findIndex((one) => one.name === run.name);
    live.runs = place < 0 ? [run, ...others] : live.runs.map((one) => (one.name === run.name ? run : one));
  }
  for (const listener of byRun.get(run.name) ?? []) listener(changed, { from, rows });
  tell();
}

function connect() {
  source?.close();
  source = new EventSource("/api/events");
  source.addEventListener("hello", () => {
    const again = live.state === "lost";
    live.state = "live";
    loadRuns();
    if (again) for (const some of byRun.values()) for (const listener of some) listener(["metrics", "attempts", "timeline", "log"]);
    tell();
  });
  source.addEventListener("run", (event) => received(JSON.parse(event.data)));
  source.addEventListener("gone", (event) => {
    const { name } = JSON.parse(event.data);
    live.runs = live.runs?.filter((run) => run.name !== name) ?? null;
    tell();
  });
  source.onerror = () => {
    live.state = "lost";
    tell();
    // The browser tries again by itself, unless the server refused.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => document.hidden || connect(), 3000);
  };
}

export function start() {
  loadRuns();
  connect();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      source?.close();
      live.state = "lost"; // so that all is asked for again
    } else {
      connect();
    }
  });
}

export function useRuns() {
  const [, draw] = useState(0);
  useEffect(() => {
    const listener = () => draw((n) => n + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return live;
}
