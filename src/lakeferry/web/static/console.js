// The console's one script. Pages work without it; it adds live regions, filters while one types,
// and dialogs for confirmation. Everything that is shown was rendered by the server.
"use strict";

const LIVE = "Lakeferry-Live";
const DIALOG = "Lakeferry-Dialog";

// --- Live regions ----------------------------------------------------------------

let refreshing = null;

function isInUse(region) {
  // What somebody is typing isn't replaced.
  for (const field of region.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    if (field === document.activeElement) return true;
    if (field.value !== initialValue(field) || (field.type === "checkbox" && field.checked !== field.defaultChecked)) return true;
  }
  return false;
}

function initialValue(field) {
  if (field.tagName !== "SELECT") return field.type === "checkbox" ? field.value : field.defaultValue;
  return ([...field.options].find((each) => each.defaultSelected) ?? field.options[0])?.value;
}

function replaceRegions(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  const regions = [...document.querySelectorAll("[data-live]")];
  const others = [...fresh.querySelectorAll("[data-live]")];
  // The first table, for example, brings the list with it.
  const isOtherPage = regions.map((each) => each.id).join() !== others.map((each) => each.id).join();
  for (const region of isOtherPage ? [document.getElementById("content")] : regions) {
    const next = fresh.getElementById(region.id);
    if (next !== null) replaceRegion(region, next);
  }
}

function replaceRegion(region, next) {
  if (isInUse(region) || region.innerHTML === next.innerHTML) return;
  const open = [...region.querySelectorAll("details")].map((each) => each.open);
  const focused = region.contains(document.activeElement) ? focusPath(region) : null;
  region.replaceChildren(...document.importNode(next, true).childNodes);
  region.querySelectorAll("details").forEach((each, i) => { if (open[i]) each.open = true; });
  if (focused !== null) restoreFocus(region, focused);
}

function focusPath(region) {
  const focusable = [...region.querySelectorAll("a, button, summary, [tabindex]")];
  const active = document.activeElement;
  return { index: focusable.indexOf(active), href: active.getAttribute("href"), text: active.textContent };
}

function restoreFocus(region, was) {
  const focusable = [...region.querySelectorAll("a, button, summary, [tabindex]")];
  const same = focusable.find((each) => each.getAttribute("href") === was.href && each.textContent === was.text);
  const next = same ?? focusable[was.index];
  if (next) next.focus({ preventScroll: true });
}

async function refresh(url) {
  // A newer request replaces one that is under way.
  if (refreshing !== null) refreshing.abort();
  const control = refreshing = new AbortController();
  try {
    const answer = await fetch(url, { headers: { [LIVE]: "1" }, signal: control.signal });
    if (answer.status === 401) return location.reload();
    if (answer.ok) replaceRegions(await answer.text());
  } catch (error) {
    if (error.name !== "AbortError") showState("The server can’t be reached", false);
  } finally {
    if (refreshing === control) refreshing = null;
  }
}

// --- Parts that take longer than the page -------------------------------------------

async function load(part) {
  // Without this, or if it fails, the part has a link to the same page.
  try {
    const answer = await fetch(part.dataset.load, { headers: { [LIVE]: "1" } });
    if (!answer.ok) return;
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(part.id);
    if (next !== null) part.replaceChildren(...document.importNode(next, true).childNodes);
  } catch { /* The link stays. */ }
}

document.querySelectorAll("[data-load]").forEach(load);

// While moves run, something changes every second. Pages are asked for less often than that.
const APART_MS = 1500;
let refreshedMs = 0;
let soon = null;

function refreshSoon() {
  if (soon !== null) return;
  soon = setTimeout(() => {
    soon = null;
    refreshedMs = Date.now();
    refresh(location.href);
  }, Math.max(0, refreshedMs + APART_MS - Date.now()));
}

// --- The connection that says when something has changed --------------------------

const state = document.getElementById("live-state");
let source = null;
let retry = null;

function showState(text, isOn) {
  if (state === null) return;
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle("on", isOn);
}

function connect() {
  if (state === null || !state.dataset.feed || source !== null || document.hidden) return;
  clearTimeout(retry);
  source = new EventSource(state.dataset.feed);
  source.addEventListener("open", () => showState("Live", true));
  source.addEventListener("change", (event) => {
    announce(JSON.parse(event.data).entries);
    refreshSoon();
  });
  source.addEventListener("error", () => {
    showState("Connecting…", false);
    if (source !== null && source.readyState === EventSource.CLOSED) {
      disconnect();
      retry = setTimeout(connect, 10000);
      refresh(location.href);
    }
  });
}

function disconnect() {
  if (source !== null) source.close();
  source = null;
}

function announce(entries) {
  const announcer = document.getElementById("announcer");
  if (announcer !== null && entries.length) announcer.textContent = entries.slice(-3).join("; ");
}

// A hidden tab gives its connection back: browsers open six to a server.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return connect();
  disconnect();
  showState("", false);
});
addEventListener("pagehide", disconnect);
addEventListener("pageshow", connect);

// --- Filters while one types --------------------------------------------------------

let typing = null;

function applyFilter(form) {
  const asked = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value !== "") asked.set(name, value);
  const url = `${form.action.split("?")[0]}?${asked}`;
  history.replaceState(null, "", url);
  refresh(url);
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-filter]");
  if (form === null) return;
  clearTimeout(typing);
  typing = setTimeout(() => applyFilter(form), event.target.type === "search" ? 250 : 0);
});

// --- Confirmations -------------------------------------------------------------------

const dialog = document.getElementById("asked");

async function confirmBy(form, submitter) {
  const fields = new URLSearchParams(new FormData(form, submitter));
  const answer = await fetch(form.action, { method: "POST", headers: { [DIALOG]: "1" }, body: fields });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (answer.redirected) return location.assign(answer.url);
  if (answer.status === 401) return location.reload();
  const asked = page.querySelector("[data-asked]") ?? page.querySelector("main");
  dialog.replaceChildren(...document.importNode(asked, true).childNodes);
  dialog.showModal();
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.matches("form[data-filter]")) {
    event.preventDefault();
    applyFilter(form);
  } else if (form.matches("form[data-confirm]") && dialog !== null) {
    event.preventDefault();
    confirmBy(form, event.submitter).catch(() => form.submit());
  }
});

document.addEventListener("click", (event) => {
  const closer = event.target.closest("dialog [data-close]");
  if (closer === null && event.target !== dialog) return;
  event.preventDefault();
  dialog.close();
});

connect();
