// What must not wait for the modules: light or dark, and the code of the view that the address names.
"use strict";
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("theme");
  } catch {
    // storage is switched off: follow the system
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;

  const modules = JSON.parse(document.querySelector("meta[name=view-modules]").content);
  const view = /^#\/([a-z]+)/.exec(location.hash)?.[1] ?? "runs";
  for (const href of modules[view] ?? []) document.head.append(Object.assign(document.createElement("link"), { rel: "modulepreload", href }));
}
