// The metrics of the chosen runs: a column is fetched once, then only the rows that are new.
import { get, runPath } from "./api.js";
import { useEffect, useState } from "./dom.js";
import { onRun } from "./live.js";

const PAUSE_MS = 1000;
const tables = new Map(); // run → MetricTable

class MetricTable {
  constructor(run) {
    this.run = run;
    this.rows = 0;
    this.columns = { step: [], time: [], tokens: [] };
    this.queue = Promise.resolve(); // one request at a time: a column must not miss the rows of another
  }

  /** Fetch these columns if they are not here, and rows that came since. Resolves to true if anything changed. */
  update(names, { grow }) {
    const work = async () => {
      const missing = names.filter((name) => !(name in this.columns));
      let changed = false;
      if (missing.length) changed = this.take(await this.fetch(missing, 0)) || changed;
      const known = Object.keys(this.columns).filter((name) => !["step", "time", "tokens"].includes(name));
      if (grow && known.length) changed = this.take(await this.fetch(known, this.rows)) || changed;
      return changed;
    };
    this.queue = this.queue.then(work, work);
    return this.queue;
  }

  /** Add what is new of the rows that an event brought. False if rows before them are missing here, or the run went back. */
  append({ from, rows }) {
    const columns = Object.entries(this.columns);
    const end = from + rows.length;
    if (!rows.length || columns.some(([, column]) => column.length < from || column.length > end)) return false;
    for (const [name, column] of columns) {
      this.columns[name] = column.concat(rows.slice(column.length - from).map((row) => row[name] ?? null));
    }
    this.rows = end;
    return true;
  }

  fetch(names, since) {
    return get(runPath(this.run, "metrics", { names: names.join(","), since }));
  }

  take({ from, rows, columns }) {
    if (from > 0 && rows === this.rows) return false;
    for (const [name, values] of Object.entries(columns)) {
      this.columns[name] = from > 0 && this.columns[name] ? this.columns[name].slice(0, from).concat(values) : values;
    }
    // Columns fetched alone may have rows that the others lack: those come with the next `grow`.
    const shortest = Math.min(...Object.values(this.columns).map((column) => column.length));
    this.rows = Math.min(rows, shortest);
    return true;
  }
}

/** {run: columns} of these metrics, with a number that grows whenever they do. */
export function useMetrics(runs, names) {
  const [state, setState] = useState({ version: 0, error: null });
  const wanted = names.join(",");
  useEffect(() => {
    let over = false;
    const timers = new Map();
    const redraw = () => setState((old) => ({ version: old.version + 1, error: null }));
    const update = (run, grow) => {
      if (!tables.has(run)) tables.set(run, new MetricTable(run));
      tables.get(run).update(names, { grow }).then(
        (changed) => !over && changed && redraw(),
        (error) => !over && setState((old) => ({ ...old, error })),
      );
    };
    const stop = runs.map((run) => {
      update(run, true);
      return onRun(run, (changed, news = { rows: [] }) => {
        if (timers.has(run) || !changed.includes("metrics")) return;
        if (tables.get(run).append(news)) redraw();
        else timers.set(run, setTimeout(() => (timers.delete(run), update(run, true)), PAUSE_MS));
      });
    });
    return () => {
      over = true;
      for (const off of stop) off();
      for (const timer of timers.values()) clearTimeout(timer);
    };
  }, [runs.join("\n"), wanted]);
  return { ...state, columns: (run) => tables.get(run)?.columns ?? {} };
}
