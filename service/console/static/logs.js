// Live log of a job: the last lines, then new ones, up to the number of lines that a browser can hold.
const TAIL = 500;
const MOST_CHARACTERS = 400_000;
const AGAIN_MS = 5000;

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

  function open() {
    source?.close();
    clearTimeout(again);
    log.replaceChildren();
    held = 0;
    last = "";
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
    const who = `rank ${chunk.rank}, generation ${chunk.generation}`;
    if (who !== last) {
      const from = document.createElement("span");
      from.className = "rank";
      from.textContent = who;
      log.append(from);
      last = who;
    }
    const text = chunk.text.slice(-MOST_CHARACTERS);
    log.append(text);
    held += text.length;
    while (held > MOST_CHARACTERS) {
      if (log.firstChild.nodeType === Node.TEXT_NODE) held -= log.firstChild.length;
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
