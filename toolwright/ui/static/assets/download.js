// Files made in the page: a chart's numbers as CSV, its picture as PNG.
import { colour } from "./colours.js";

export function save(name, blob) {
  const address = URL.createObjectURL(blob);
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name.replace(/[^\p{L}\p{N}._-]+/gu, "-");
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** A cell of CSV. A spreadsheet would compute a text that begins with one of = + - @, so it gets an apostrophe. */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function saveCsv(name, head, rows) {
  const lines = [head, ...rows].map((row) => row.map(cell).join(","));
  save(`${name}.csv`, new Blob([lines.join("\n"), "\n"], { type: "text/csv" }));
}

/** The chart's canvas beneath its title and legend. */
export function savePng(name, canvas, legend) {
  const scale = devicePixelRatio || 1;
  const head = 48 * scale;
  const sheet = document.createElement("canvas");
  sheet.width = canvas.width;
  sheet.height = canvas.height + head;
  const pen = sheet.getContext("2d");
  pen.fillStyle = colour("--card");
  pen.fillRect(0, 0, sheet.width, sheet.height);
  pen.fillStyle = colour("--ink");
  pen.font = `600 ${14 * scale}px system-ui, sans-serif`;
  pen.fillText(name, 10 * scale, 19 * scale);
  pen.font = `${12 * scale}px system-ui, sans-serif`;
  let x = 10 * scale;
  for (const { label, tone } of legend) {
    pen.fillStyle = colour(tone);
    pen.fillRect(x, 30 * scale, 9 * scale, 9 * scale);
    pen.fillStyle = colour("--ink");
    pen.fillText(label, x + 13 * scale, 39 * scale);
    x += pen.measureText(label).width + 28 * scale;
  }
  pen.drawImage(canvas, 0, head);
  sheet.toBlob((blob) => save(`${name}.png`, blob), "image/png");
}
