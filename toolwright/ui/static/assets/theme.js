// Light or dark before anything is drawn; no choice follows the system.
"use strict";
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("theme");
  } catch {
    // storage is switched off: follow the system
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
