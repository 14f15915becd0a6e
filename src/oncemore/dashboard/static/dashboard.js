// Live updates, local times, copy buttons, theme and keys. Every page works without this file.

const root = document.body.dataset.root ?? "";

// Times --------------------------------------------------------------------------------------------------

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function formatSpan(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

function showTime(element, now) {
  const at = Date.parse(element.dateTime);
  if (Number.isNaN(at)) return;
  const mode = element.dataset.mode;
  let text;
  if (mode === "age") text = `${formatSpan((now - at) / 1000)} ago`;
  else if (mode === "until") text = at > now ? `in ${formatSpan((at - now) / 1000)}` : "now";
  else text = new Date(at).toDateString() === new Date(now).toDateString() ? clock.format(at) : day.format(at);
  if (element.textContent !== text) element.textContent = text;
}

function showTimes(parent = document) {
  const now = Date.now();
  for (const element of parent.querySelectorAll("time")) showTime(element, now);
}

// Ages and countdowns move by themselves; the server sends nothing for them.
setInterval(() => {
  const now = Date.now();
  for (const element of document.querySelectorAll('time[data-mode="age"], time[data-mode="until"]')) showTime(element, now);
}, 1000);

// Live updates -------------------------------------------------------------------------------------------

const stale = document.getElementById("stale");
let stream = null;

// A region in which somebody types or has opened a form is left alone: an update would take the words away.
function isInUse(region) {
  if (region.querySelector("details.act[open]")) return true;
  const active = document.activeElement;
  return region.contains(active) && active.matches("input, select, textarea");
}

function nameOpenDetails(region) {
  return [...region.querySelectorAll("details")].map((each) => each.open);
}

function swapRegion(name, html) {
  const region = document.querySelector(`[data-live="${CSS.escape(name)}"]`);
  if (!region || isInUse(region)) return;
  const open = nameOpenDetails(region);
  const focused = region.contains(document.activeElement) ? [...region.querySelectorAll("a, button, summary, pre")].indexOf(document.activeElement) : -1;
  const fresh = document.createElement("template");
  // Every value in it was escaped on the server, and the content policy runs no inline script.
  fresh.innerHTML = html;
  showTimes(fresh.content);
  region.replaceChildren(fresh.content);
  const details = [...region.querySelectorAll("details")];
  if (details.length === open.length) details.forEach((each, index) => { each.open = open[index]; });
  if (focused >= 0) [...region.querySelectorAll("a, button, summary, pre")][focused]?.focus({ preventScroll: true });
}

function openStream() {
  if (stream || document.hidden) return;
  const page = encodeURIComponent(location.pathname + location.search);
  stream = new EventSource(`${root}/live?page=${page}`);
  stream.addEventListener("regions", (event) => {
    stale.hidden = true;
    for (const [name, html] of Object.entries(JSON.parse(event.data))) swapRegion(name, html);
    document.body.dataset.updated = String(Date.now());
  });
  stream.addEventListener("problem", (event) => {
    stale.textContent = `Not live: ${JSON.parse(event.data)}`;
    stale.hidden = false;
  });
  stream.onopen = () => { stale.hidden = true; };
  stream.onerror = () => { stale.hidden = document.hidden; };
}

function closeStream() {
  stream?.close();
  stream = null;
}

// Browsers permit few connections to a host: a page in a hidden tab gives its own back.
if (document.body.dataset.livePage) {
  document.addEventListener("visibilitychange", () => (document.hidden ? closeStream() : openStream()));
  addEventListener("pagehide", closeStream);
  addEventListener("pageshow", openStream);
  openStream();
}

// Copy buttons -------------------------------------------------------------------------------------------

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1500);
  } catch {
    button.classList.add("failed");
  }
});

// Theme --------------------------------------------------------------------------------------------------

document.getElementById("theme")?.addEventListener("click", () => {
  const isDark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const chosen = isDark ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  try { localStorage.setItem("oncemore-theme", chosen); } catch { /* the choice lasts for this page */ }
});

// Keys ---------------------------------------------------------------------------------------------------

const help = document.getElementById("help");
document.getElementById("keys")?.addEventListener("click", () => help.showModal());

function moveRow(step) {
  const links = [...document.querySelectorAll("main table.list tbody tr a, main .attention a")].filter(
    (link, index, all) => index === 0 || link.closest("tr, li") !== all[index - 1].closest("tr, li"),
  );
  if (!links.length) return;
  const current = links.findIndex((link) => link.closest("tr, li")?.contains(document.activeElement));
  links[Math.min(links.length - 1, Math.max(0, current + step))].focus();
}

let waitsForPage = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  if (waitsForPage) {
    waitsForPage = false;
    const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  if (event.key === "g") { waitsForPage = true; setTimeout(() => { waitsForPage = false; }, 1500); }
  else if (event.key === "j") moveRow(1);
  else if (event.key === "k") moveRow(-1);
  else if (event.key === "?") help.showModal();
  else if (event.key === "/") {
    const filter = document.getElementById("filter");
    if (filter) { event.preventDefault(); filter.focus(); }
  }
});

for (const element of document.querySelectorAll("time")) element.title ||= full.format(Date.parse(element.dateTime));
showTimes();
