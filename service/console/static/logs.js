// Live log of a job: the last lines, then new ones, up to the number of lines that a browser can hold.
const TAIL = 500;
const MOST_CHARACTERS = 400_000;
const AGAIN_MS = 5000;

// The last state of each line, because a progress bar redraws its line after a carriage return.
function lastStates(text) {
  if (!text.includes("\r")) return text;
  const lines = text.split("\n");
  return lines
    .map((line, number) => {
      let end = line.length;
      while (end && line[end - 1] === "\r") end -= 1;
      const state = line.slice(line.lastIndexOf("\r", end - 1) + 1, end);
      return number === lines.length - 1 && end < line.length ? `${state}\r` : state; // more may follow
    })
    .join("\n");
}

// Control and format characters as escapes, because U+202E, for instance, would turn the order of a line around.
const ACTING =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

function visible(text) {
  return text.replace(ACTING, (one) => {
    const code = one.codePointAt(0);
    const digits = code.toString(16);
    if (code < 0xa0) return `\\x${digits.padStart(2, "0")}`;
    return code < 0x10000 ? `\\u${digits.padStart(4, "0")}` : `\\U${digits.padStart(8, "0")}`;
  });
}

export function followLog() {
  const log = document.getElementById("log");
  if (!log) return;
  const state = document.getElementById("log-state");
  const follow = document.getElementById("follow");
  const choices = ["rank", "attempt", "since"].map((name) => document.getElementById(name));
  let source = null;
  let again = 0;
  let held = 0;
  let last = "";
  let unfinished = null; // the node of the last line, which has no end yet
  let begun = ""; // its text as it was written

  function open() {
    source?.close();
    clearTimeout(again);
    log.replaceChildren();
    held = 0;
    last = "";
    unfinished = null;
    const url = new URL(`/api/v1/jobs/${log.dataset.job}/logs`, location.href);
    for (const choice of choices) if (choice.value !== "") url.searchParams.set(choice.id, choice.value);
    if (!url.searchParams.has("since")) url.searchParams.set("tail", TAIL);
    state.textContent = "reading";
    source = new EventSource(url);
    source.addEventListener("open", () => (state.textContent = "following"));
    source.addEventListener("log", (event) => add(JSON.parse(event.data)));
    source.addEventListener("end", () => {
      source.close();
      state.textContent = log.textContent ? "the job has ended" : "nothing was written";
    });
    source.addEventListener("error", () => {
      const refused = source.readyState === EventSource.CLOSED; // the browser does not reconnect by itself then
      state.textContent = refused ? "there is no such log, or it is away; trying again" : "the log is away; trying again";
      if (refused) again = setTimeout(open, AGAIN_MS);
    });
  }

  function add(chunk) {
    const who = `rank ${chunk.present_rank ?? chunk.rank}, generation ${chunk.generation}`;
    if (who !== last) {
      const from = document.createElement("span");
      from.className = "rank";
      from.textContent = who;
      log.append(from);
      last = who;
      unfinished = null;
    }
    if (unfinished) held -= unfinished.length;
    unfinished?.remove();
    const text = lastStates((unfinished ? begun : "") + chunk.text).slice(-MOST_CHARACTERS);
    const lineEnd = text.lastIndexOf("\n") + 1;
    const ended = visible(text.slice(0, lineEnd));
    if (ended) log.append(ended);
    begun = text.slice(lineEnd);
    unfinished = document.createTextNode(visible(begun.replace(/\r$/, ""))); // the next state may follow it
    log.append(unfinished);
    held += ended.length + unfinished.length;
    while (held > MOST_CHARACTERS) {
      if (log.firstChild.nodeType === Node.TEXT_NODE) held -= log.firstChild.length;
      if (log.firstChild === unfinished) unfinished = null;
      log.firstChild.remove();
    }
    if (follow.checked) log.scrollTop = log.scrollHeight;
  }

  for (const choice of choices) choice.addEventListener("change", open);
  follow.addEventListener("change", () => follow.checked && (log.scrollTop = log.scrollHeight));
  log.addEventListener("wheel", () => {
    follow.checked = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  });
  addEventListener("pagehide", () => source?.close());
  open();
}
