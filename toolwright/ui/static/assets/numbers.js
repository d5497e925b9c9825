// Numbers for readers.

/** About four digits: 0.7132, 12.5k, 3.2e-7. */
export function compact(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e15 || size < 1e-4) return value.toExponential(1).replace("e+", "e");
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${trimmed(value / (letter === "k" ? 1e3 : unit), 4)}${letter}`;
  }
  return trimmed(value, 4);
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${trimmed(value * 100, 3)} %`;
}

export function whole(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

/** 1 token, 2 tokens. */
export function counted(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** 0.32 s, 12 s, 3m 05s, 2h 10m. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return `${compact(seconds * 1e6)} µs`;
  if (seconds < 1) return `${trimmed(seconds * 1000, 3)} ms`;
  if (seconds < 60) return `${trimmed(seconds, 3)} s`;
  const all = Math.round(seconds);
  const [hours, minutes, rest] = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60];
  const two = (n) => String(n).padStart(2, "0");
  if (hours >= 48) return `${Math.floor(hours / 24)}d ${two(hours % 24)}h`;
  return hours ? `${hours}h ${two(minutes)}m` : `${minutes}m ${two(rest)}s`;
}

/** How long ago, in words. */
export function ago(time, now = Date.now() / 1000) {
  if (!time) return "–";
  const seconds = Math.max(0, now - time);
  for (const [unit, name] of [[86400, "day"], [3600, "hour"], [60, "minute"]]) {
    const count = Math.floor(seconds / unit);
    if (count) return `${count} ${name}${count > 1 ? "s" : ""} ago`;
  }
  return "just now";
}

function trimmed(value, digits) {
  const text = value.toPrecision(digits);
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : String(Number(text));
}
