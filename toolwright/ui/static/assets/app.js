// The page: a head with the chosen runs, the views' tabs, and the view that the address names.
import { switchTheme, theme, tone, useTheme } from "./colours.js";
import { html, render, useEffect, useErrorBoundary, useMemo, useRef, useState } from "./dom.js";
import { boundKeys, focusSearch, useKeys } from "./keys.js";
import { start, useRuns } from "./live.js";
import { change, go, link, useRoute } from "./route.js";
import { visible } from "./text.js";
import { loadOthersLater, useView, VIEWS } from "./views.js";

const STATES = { live: "live", lost: "connecting again…", connecting: "connecting…" };

function App() {
  const route = useRoute();
  const live = useRuns();
  const [help, setHelp] = useState(false);
  const view = VIEWS.find((one) => one.name === route.view) ?? VIEWS[0];
  const chosen = useMemo(() => choose(live.runs, route.runs), [live.runs, route.runs.join("\n")]);
  const keys = Object.fromEntries(VIEWS.filter((one) => one.key).map((one) => [one.key, { does: `show ${one.title.toLowerCase()}`, run: () => go(one.name, { run: route.runs }) }]));
  useKeys({
    "?": { does: "show or hide the keys", run: () => setHelp(!help) },
    "/": { does: "search", run: focusSearch },
    t: { does: "light or dark", run: switchTheme },
    Escape: { run: () => (help ? setHelp(false) : false) },
    ...keys,
  });
  useEffect(() => {
    if (view.run && !route.runs.length && chosen.length) change({ run: [chosen[0].name] });
  }, [view, chosen]);
  const name = chosen[0] && view.run ? `${visible(chosen[0].name)} – ` : "";
  useEffect(() => {
    document.title = `${view.title} – ${name}Toolwright`;
  }, [view, name]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>Skip to the view</a>
    <header class="top">
      <a class="brand" href=${link("runs", { run: route.runs })}><img src="assets/icon.svg" alt="" width="22" height="22" />Toolwright</a>
      <${ChosenRuns} route=${route} view=${view} chosen=${chosen} />
      <${LiveDot} state=${live.state} />
      <${ThemeButton} />
      <button class="round" onClick=${() => setHelp(!help)} aria-label="keys" title="keys (?)">?</button>
    </header>
    <${Tabs} view=${view} route=${route} run=${chosen[0]} />
    <main id="main" tabindex="-1" class=${`view-${view.name}`}>
      <${Body} key=${view.name} view=${view} route=${route} live=${live} chosen=${chosen} />
    </main>
    ${help && html`<${Help} close=${() => setHelp(false)} />`}`;
}

/** The summaries of the runs in the address; where it names none, the newest run. Until the list is here, a name must do. */
function choose(runs, names) {
  const unknown = { missing: Boolean(runs), has: runs ? [] : VIEWS.map((view) => view.needs), last: {}, spark: [] };
  const found = names.map((name) => runs?.find((run) => run.name === name) ?? { name, ...unknown });
  return found.length ? found : (runs ?? []).slice(0, 1);
}

function Body({ view, route, live, chosen }) {
  const [error, reset] = useErrorBoundary((thrown) => console.error(thrown));
  if (error) {
    return html`<p class="problem" role="alert">This view could not be drawn: ${String(error.message)} <button onClick=${reset}>Try again</button></p>`;
  }
  if (live.error && !live.runs) return html`<p class="problem" role="alert">${live.error}</p>`;
  if (!live.runs && (!view.run || !chosen.length)) return html`<p class="empty" role="status">Loading…</p>`;
  if (view.run && !chosen.length) return html`<p class="empty">No runs in ${live.folder} yet. Start one: <code>toolwright train task=sums</code></p>`;
  if (view.run && chosen[0].missing) return html`<p class="problem" role="alert">There is no run ${visible(chosen[0].name)} in ${live.folder}.</p>`;
  return html`<${Loaded} name=${view.name} route=${route} live=${live} chosen=${chosen.filter((run) => !run.missing)} run=${chosen[0]} />`;
}

function Loaded({ name, ...shown }) {
  const View = useView(name);
  return View ? html`<${View} ...${shown} />` : html`<p class="empty" role="status">Loading…</p>`;
}

function ChosenRuns({ route, view, chosen }) {
  if (!view.run) return html`<div class="chosen"></div>`;
  const many = chosen.length > 1;
  return html`<ul class="chosen" aria-label="chosen runs">
    ${chosen.map((run, n) => html`<li key=${run.name} class=${n === 0 || view.many ? "" : "aside"}>
      <i class="dot" ref=${(dot) => dot && (dot.style.background = `var(${tone(n)})`)}></i>
      <button class="name" title=${view.many ? visible(run.name) : `show ${visible(run.name)}`} onClick=${() => change({ run: [run.name, ...route.runs.filter((one) => one !== run.name)] }, { replace: false })}>${visible(run.name)}</button>
      ${many && html`<button class="drop" aria-label=${`leave out ${visible(run.name)}`} onClick=${() => change({ run: route.runs.filter((one) => one !== run.name) })}>×</button>`}
    </li>`)}
    <li class="add"><a href=${link("runs", { run: route.runs })}>${many ? "change" : "compare…"}</a></li>
  </ul>`;
}

function Tabs({ view, route, run }) {
  const place = useRef(null);
  const tabs = VIEWS.filter((one) => !one.tab && (!one.needs || !run || run.has.includes(one.needs) || one === view));
  useEffect(() => {
    const [bar, tab] = [place.current, place.current.querySelector("[aria-current]")];
    if (tab) bar.scrollLeft = tab.offsetLeft - bar.offsetLeft - (bar.clientWidth - tab.clientWidth) / 2;
  }, [view, tabs.length]);
  return html`<nav class="tabs" aria-label="views" ref=${place}>
    ${tabs.map((one) => html`<a key=${one.name} href=${link(one.name, { run: route.runs })} aria-current=${one.name === (view.tab ?? view.name) ? "page" : null}>${one.title}</a>`)}
  </nav>`;
}

function LiveDot({ state }) {
  return html`<span class=${`live ${state}`} role="status" title=${STATES[state]}><i></i><span>${STATES[state]}</span></span>`;
}

function ThemeButton() {
  useTheme();
  const dark = theme() === "dark";
  return html`<button class="round" onClick=${switchTheme} aria-label=${dark ? "light colours" : "dark colours"} title="light or dark (t)">${dark ? "☀" : "☾"}</button>`;
}

function Help({ close }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current?.showModal(), []);
  return html`<dialog ref=${dialog} class="help" onClose=${close} onClick=${(event) => event.target === dialog.current && close()} aria-labelledby="help-title">
    <h2 id="help-title">Keys</h2>
    <dl>${boundKeys().map(([key, does]) => html`<div key=${key}><dt><kbd>${KEY_NAMES[key] ?? key}</kbd></dt><dd>${does}</dd></div>`)}</dl>
    <button onClick=${close} autofocus>Close</button>
  </dialog>`;
}

const KEY_NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Enter: "↵", " ": "space" };

start();
loadOthersLater();
render(html`<${App} />`, document.getElementById("app"));
