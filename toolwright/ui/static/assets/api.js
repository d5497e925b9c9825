// The server's JSON: fetched once, kept, and fetched again when the run that it is about has changed.
import { useEffect, useRef, useState } from "./dom.js";
import { onRun } from "./live.js";

const KEPT = 60; // answers
const LIVE_PAUSE_MS = 1000;
const answers = new Map();

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The path of a run's data: `/api/runs/NAME/what?…`. */
export function runPath(run, what = "", params = {}) {
  return path(`/api/runs/${encodeURIComponent(run)}${what ? `/${what}` : ""}`, params);
}

export function path(base, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") query.append(name, String(value));
  }
  const text = query.toString();
  return text ? `${base}?${text}` : base;
}

export async function get(url, { signal } = {}) {
  let response;
  try {
    response = await fetch(url, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Is `toolwright ui` still running?");
  }
  if (response.status === 401) throw new ApiError(401, "This page needs its token: open the link that the terminal printed.");
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new ApiError(response.status, body?.error ?? `The server answered ${response.status}.`);
  return body;
}

/**
 * The answer at `url` (null: nothing to ask), with what went wrong, if anything. While another answer is on its way the
 * former one is still given, marked as `stale`. If `run` changes in one of the `live` ways, the answer is fetched again.
 */
export function useApi(url, { run = null, live = [], pause = LIVE_PAUSE_MS } = {}) {
  const [state, setState] = useState({ url: null, data: null, error: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (!url) return undefined;
    const stop = new AbortController();
    if (answers.has(url)) setState({ url, data: answers.get(url), error: null });
    get(url, { signal: stop.signal }).then(
      (data) => {
        keep(url, data);
        setState({ url, data, error: null });
      },
      (error) => error.name !== "AbortError" && setState((old) => ({ ...old, url, error })),
    );
    return () => stop.abort();
  }, [url, turn]);
  useLive(run, live, () => setTurn((n) => n + 1), pause);
  const known = url === null ? null : state.url === url ? state.data : answers.get(url) ?? state.data;
  return { data: known, error: state.url === url ? state.error : null, stale: state.url !== url };
}

/** Call `then` when one of these kinds of data of a run changed, at most once a `pause`. */
export function useLive(run, kinds, then, pause = LIVE_PAUSE_MS) {
  const latest = useRef(then);
  latest.current = then;
  useEffect(() => {
    if (!run || !kinds.length) return undefined;
    let timer = null;
    let last = 0;
    const call = () => {
      timer = null;
      last = Date.now();
      latest.current();
    };
    const off = onRun(run, (changed) => {
      if (timer !== null || !changed.some((kind) => kinds.includes(kind))) return;
      timer = setTimeout(call, Math.max(0, last + pause - Date.now()));
    });
    return () => {
      off();
      clearTimeout(timer);
    };
  }, [run, kinds.join()]);
}

function keep(url, data) {
  answers.delete(url);
  answers.set(url, data);
  if (answers.size > KEPT) answers.delete(answers.keys().next().value);
}
