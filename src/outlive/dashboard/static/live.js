// The script of the dashboard: parts of a page that change, times that pass, the theme, and the keyboard.
// Every page works without it.
"use strict";

const root = document.body.dataset.root || "";
const find = (selector) => document.querySelector(selector);
const findAll = (selector) => [...document.querySelectorAll(selector)];

// Parts that change: replace only the nodes that differ, so that selections, open details and the focus stay.

function sameKind(one, other) {
  return one && other && one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id || "") === (other.id || "");
}

function morphAttributes(have, want) {
  for (const { name } of [...have.attributes]) {
    const kept = name === "class" && have.nodeName === "TR";
    if (!want.hasAttribute(name) && !kept && !(name === "open" && have.nodeName === "DETAILS")) have.removeAttribute(name);
  }
  for (const { name, value } of want.attributes) {
    if (name === "open" && have.nodeName === "DETAILS") continue;
    if (have.getAttribute(name) !== value) have.setAttribute(name, value);
  }
}

function morphChildren(have, want) {
  const byId = new Map([...have.children].filter((child) => child.id).map((child) => [child.id, child]));
  let place = have.firstChild;
  for (const wanted of [...want.childNodes]) {
    const known = wanted.id && byId.get(wanted.id);
    if (known && known !== place && sameKind(known, wanted)) {
      have.insertBefore(known, place);
      morph(known, wanted);
      continue;
    }
    if (sameKind(place, wanted) && (!place.id || known === place)) {
      const next = place.nextSibling;
      morph(place, wanted);
      place = next;
      continue;
    }
    have.insertBefore(wanted, place);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function morph(have, want) {
  if (have.isEqualNode(want)) return;
  if (have.nodeType !== Node.ELEMENT_NODE) {
    if (have.nodeValue !== want.nodeValue) have.nodeValue = want.nodeValue;
    return;
  }
  if (have.nodeName === "TIME") {
    if (have.getAttribute("datetime") !== want.getAttribute("datetime")) {
      morphAttributes(have, want);
      tell(have);
    }
    return;
  }
  morphAttributes(have, want);
  if (have.nodeName === "INPUT") return;
  morphChildren(have, want);
}

// Output shows its end, and follows it, unless the reader has scrolled up.

const AT_END_PX = 24;
const isAbove = (pre) => pre.scrollHeight - pre.clientHeight - pre.scrollTop > AT_END_PX;

function follow(except = []) {
  for (const pre of findAll("pre.follow")) if (!except.includes(pre)) pre.scrollTop = pre.scrollHeight;
}

function update(parts) {
  const read = findAll("pre.follow").filter(isAbove);
  for (const [id, html] of Object.entries(parts)) {
    const have = document.getElementById(id);
    if (!have) continue;
    const parsed = new DOMParser().parseFromString(`<div id="${id}">${html}</div>`, "text/html");
    morph(have, parsed.getElementById(id));
  }
  follow(read);
  tellTimes();
  countChosen();
}

// The stream: open while the page is visible.

let stream = null;
let first = true;

function connect() {
  const address = document.body.dataset.live;
  if (!address || stream || document.hidden) return;
  stream = new EventSource(address);
  stream.addEventListener("open", () => pulse(true));
  stream.addEventListener("error", () => pulse(false));
  stream.addEventListener("parts", (event) => {
    update(JSON.parse(event.data));
    if (!first) say("updated");
    first = false;
  });
  stream.addEventListener("problem", (event) => showProblem(JSON.parse(event.data)));
}

function disconnect() {
  if (stream) stream.close();
  stream = null;
}

function pulse(on) {
  const mark = find("#pulse");
  if (!mark) return;
  mark.hidden = false;
  mark.textContent = on ? "live" : "reconnecting";
  mark.classList.toggle("off", !on);
}

function showProblem(problem) {
  const place = find("#problem");
  place.replaceChildren();
  place.hidden = !problem.text;
  if (!problem.text) return;
  place.append(problem.text);
  if (problem.since) {
    const since = document.createElement("time");
    since.setAttribute("datetime", problem.since);
    since.dataset.local = "";
    place.append(" since ", since);
    tellTimes();
  }
}

let saidAt = 0;
function say(words) {
  // A screen reader hears of updates now and then, not every second.
  if (Date.now() - saidAt < 20000) return;
  saidAt = Date.now();
  find("#said").textContent = words;
}

document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
addEventListener("pagehide", disconnect);
addEventListener("pageshow", (event) => {
  // A page that the browser has kept shows what was there, and only a live one catches up.
  if (event.persisted && !document.body.dataset.live) location.reload();
  else connect();
});

// A question that was answered is not asked again: Back leads to the page before it.
const asked = find("form[data-back]");
if (asked) asked.addEventListener("submit", () => history.replaceState(null, "", asked.dataset.back));

// Times: how long ago, or in local time.

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

function passed(seconds) {
  const whole = Math.round(Math.abs(seconds));
  if (whole < 1) return "now";
  const at = UNITS.findIndex(([, size]) => whole >= size);
  const [unit, size] = UNITS[at];
  let words = `${Math.floor(whole / size)} ${unit}`;
  if (at < 2 && whole % size >= UNITS[at + 1][1]) words += ` ${Math.floor((whole % size) / UNITS[at + 1][1])} ${UNITS[at + 1][0]}`;
  return seconds >= 0 ? `${words} ago` : `in ${words}`;
}

function tell(time) {
  const at = new Date(time.getAttribute("datetime"));
  const pad = (number) => String(number).padStart(2, "0");
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  const local = `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  const words = "ago" in time.dataset ? passed((Date.now() - at) / 1000) : local;
  if (time.textContent !== words) time.textContent = words;
  if (time.title !== local) time.title = local;
}

function tellTimes() {
  findAll("time[data-ago], time[data-local]").forEach(tell);
}

function tellZone() {
  const place = find("#zone");
  if (!place) return;
  const minutes = -new Date().getTimezoneOffset();
  const pad = (number) => String(number).padStart(2, "0");
  const from = `UTC${minutes < 0 ? "-" : "+"}${pad(Math.floor(Math.abs(minutes) / 60))}:${pad(Math.abs(minutes) % 60)}`;
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  place.textContent = minutes || name !== "UTC" ? `Times are local: ${name}, ${from}.` : "Times are in UTC.";
}

// The times of a filter are in the zone in which the page shows times.
const sought = find("form.filter [name=zone]");
if (sought) sought.form.addEventListener("submit", () => {
  const timed = sought.form.since.value + sought.form.before.value;
  sought.value = Intl.DateTimeFormat().resolvedOptions().timeZone;
  sought.disabled = !/[:-]/.test(timed);
});

// The tabs: show the current one, and that more follow.

const tabs = find(".top nav");

function hintTabs() {
  tabs.classList.toggle("more-left", tabs.scrollLeft > 4);
  tabs.classList.toggle("more-right", tabs.scrollLeft + tabs.clientWidth < tabs.scrollWidth - 4);
}

function showTab() {
  const current = tabs.querySelector("[aria-current]");
  if (current) tabs.scrollLeft = current.offsetLeft - tabs.offsetLeft - (tabs.clientWidth - current.offsetWidth) / 2;
  hintTabs();
}

// Choosing rows for an action.

function countChosen() {
  const bar = find("#chosen");
  if (!bar) return;
  const chosen = findAll("input[name=id]:checked").length;
  bar.querySelector("output").textContent = chosen ? `${chosen} selected` : "none selected";
  findAll("[data-of-chosen]").forEach((button) => (button.disabled = !chosen));
  const all = find("#all-rows");
  if (all) {
    const boxes = findAll("input[name=id]").length;
    all.checked = boxes > 0 && chosen === boxes;
    all.indeterminate = chosen > 0 && chosen < boxes;
  }
}

document.addEventListener("change", (event) => {
  if (event.target.id === "all-rows") findAll("input[name=id]").forEach((box) => (box.checked = event.target.checked));
  countChosen();
});

// Keyboard.

const PLACES = { o: "/", j: "/jobs", t: "/tasks", k: "/killers", w: "/workers", q: "/queues", s: "/sources", c: "/schedules", b: "/batches", a: "/audit" };
let waitingForPlace = 0;

function step(by) {
  const rows = findAll("table.rows tbody tr");
  if (!rows.length) return;
  const now = rows.findIndex((row) => row.classList.contains("current"));
  const next = rows[Math.min(rows.length - 1, Math.max(0, now < 0 ? (by > 0 ? 0 : rows.length - 1) : now + by))];
  rows.forEach((row) => row.classList.toggle("current", row === next));
  next.scrollIntoView({ block: "nearest" });
  const link = next.querySelector("a");
  if (link) link.focus({ preventScroll: true });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]), select, textarea, dialog")) return;
  const key = event.key;
  if (Date.now() < waitingForPlace && PLACES[key]) {
    waitingForPlace = 0;
    location.assign(root + PLACES[key]);
  } else if (key === "g") {
    waitingForPlace = Date.now() + 1500;
    return;
  } else if (key === "/") {
    const field = find("input[type=search]");
    if (field) field.focus();
    else location.assign(`${root}/jobs#search`);
  } else if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
  else if (key === "x") {
    const box = find("tr.current input[name=id]");
    if (box) box.click();
  } else if (key === "?") find("#help").showModal();
  else return;
  event.preventDefault();
});

// Theme and start.

const theme = find("#theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.theme = dark === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("outlive-theme", document.documentElement.dataset.theme);
  } catch {
    // It holds for this page only.
  }
});
find("#keys").hidden = false;
find("#keys").addEventListener("click", () => find("#help").showModal());
if (location.hash === "#search" && find("input[type=search]")) find("input[type=search]").focus();
follow();
if (document.body.dataset.live) connect();
tellTimes();
tellZone();
countChosen();
if (tabs) {
  showTab();
  tabs.addEventListener("scroll", hintTabs, { passive: true });
  addEventListener("resize", showTab);
}
setInterval(tellTimes, 1000);
