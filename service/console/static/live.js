// The page follows its stream. Fragments are replaced in place, so that focus, selection and scrolling stay.
import { zone } from "./times.js";

const SILENT_MS = 7000; // The service sends a message every two seconds.
const LONGEST_WAIT_MS = 10_000;

let version = document.body.dataset.version;
let since = document.body.dataset.at;
let source = null;
let heard = 0;
let wait = 0;
let retry = null;
let ahead = Date.parse(since ?? "") - Date.now();

// Unix time of the service's clock in milliseconds, estimated from the fastest message.
export const serviceTime = () => Date.now() + ahead;

export function follow(changed) {
  const stream = document.body.dataset.stream;
  if (!stream) return;
  const badge = document.getElementById("live");
  badge.hidden = false;
  say("ready", "connecting");

  function open() {
    clearTimeout(retry);
    source?.close();
    const url = new URL(stream, location.href);
    url.searchParams.set("since", version);
    heard = Date.now();
    source = new EventSource(url);
    source.addEventListener("patch", (event) => {
      version = event.lastEventId;
      const patch = JSON.parse(event.data);
      changed(apply(patch));
      well(patch.at);
    });
    source.addEventListener("beat", (event) => well(JSON.parse(event.data).at));
    source.addEventListener("stale", (event) => {
      heard = Date.now();
      away(`${JSON.parse(event.data).message}.`);
    });
    source.addEventListener("gone", (event) => {
      source.close();
      clearInterval(watch);
      away(JSON.parse(event.data).message);
    });
    source.onerror = () => lost();
  }

  function lost() {
    source.close();
    away(navigator.onLine ? "The service does not answer." : "This browser is offline.");
    wait = Math.min(LONGEST_WAIT_MS, wait ? 2 * wait : 500);
    clearTimeout(retry);
    retry = setTimeout(open, wait);
  }

  function well(at) {
    heard = Date.now();
    wait = 0;
    since = at;
    ahead = Math.max(ahead, Date.parse(at) - Date.now());
    document.getElementById("stale").hidden = true;
    say("ready", "live");
  }

  function away(why) {
    const bar = document.getElementById("stale");
    const text = `${why} What you see is from ${new Date(since).toLocaleTimeString()} ${zone()}; trying again by itself.`;
    if (bar.textContent !== text) bar.textContent = text;
    bar.hidden = false;
    say("away", "not live");
  }

  function say(state, text) {
    badge.classList.toggle("away", state === "away");
    const word = badge.lastElementChild;
    if (word.textContent !== text) word.textContent = text;
  }

  const watch = setInterval(() => {
    if (source.readyState !== EventSource.CLOSED && Date.now() - heard > SILENT_MS) lost();
  }, 1000);
  addEventListener("offline", lost);
  addEventListener("online", () => {
    wait = 0;
    open();
  });
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => event.persisted && open());
  open();
}

function apply(patch) {
  const pieces = patch.pieces ?? {};
  const fresh = new Map();
  for (const [id, html] of Object.entries(pieces)) {
    const made = element(html);
    const there = document.getElementById(id);
    if (there) morph(there, made);
    else fresh.set(id, made);
  }
  for (const [id, order] of Object.entries(patch.orders ?? {})) {
    const list = document.getElementById(id);
    if (list) arrange(list, order, fresh);
  }
  return new Set(Object.keys(pieces));
}

function element(html) {
  const template = document.createElement("template");
  const drawn = html.startsWith("<g ");
  template.innerHTML = drawn ? `<svg>${html}</svg>` : html;
  const made = template.content.firstElementChild;
  return drawn ? made.firstElementChild : made;
}

function arrange(list, order, fresh) {
  const wanted = new Set(order);
  for (const child of [...list.children]) if (!wanted.has(child.id)) child.remove();
  let next = list.firstElementChild;
  for (const id of order) {
    const child = document.getElementById(id) ?? fresh.get(id);
    if (!child) continue;
    if (child === next) next = next.nextElementSibling;
    else list.insertBefore(child, next);
  }
}

// Change `old` into `made` with as few changes as possible, without touching fields that are being edited.
function morph(old, made) {
  if (old.nodeName !== made.nodeName) {
    old.replaceWith(made);
    return;
  }
  for (const { name, value } of [...made.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!made.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  if (old.hasAttribute("data-chart")) return;
  const olds = [...old.childNodes];
  const mades = [...made.childNodes];
  for (let i = 0; i < mades.length; i++) {
    const [was, is] = [olds[i], mades[i]];
    if (!was) old.append(is);
    else if (was.nodeType !== is.nodeType || was.nodeName !== is.nodeName) was.replaceWith(is);
    else if (is.nodeType === Node.ELEMENT_NODE) morph(was, is);
    else if (was.nodeValue !== is.nodeValue && was.parentNode.nodeName !== "TIME") was.nodeValue = is.nodeValue;
  }
  for (const extra of olds.slice(mades.length)) extra.remove();
}
