// A job's log as it is written: the last lines first, then what comes, no more than a browser can hold.
const TAIL = 500;
const MOST_CHARACTERS = 400_000;

export function followLog() {
  const log = document.getElementById("log");
  if (!log) return;
  const state = document.getElementById("log-state");
  const follow = document.getElementById("follow");
  const rank = document.getElementById("rank");
  let source = null;
  let held = 0;
  let last = "";

  function open() {
    source?.close();
    log.replaceChildren();
    held = 0;
    last = "";
    const url = new URL(`/api/v1/jobs/${log.dataset.job}/logs`, location.href);
    url.searchParams.set("tail", TAIL);
    if (rank.value !== "") url.searchParams.set("rank", rank.value);
    state.textContent = "reading";
    source = new EventSource(url);
    source.addEventListener("open", () => (state.textContent = "following"));
    source.addEventListener("log", (event) => add(JSON.parse(event.data)));
    source.addEventListener("end", () => {
      source.close();
      state.textContent = log.textContent ? "the job has ended" : "nothing was written";
    });
    source.addEventListener("error", () => {
      state.textContent = "the log is away; trying again";
    });
  }

  function add(chunk) {
    const who = `rank ${chunk.rank}`;
    if (who !== last) {
      const from = document.createElement("span");
      from.className = "rank";
      from.textContent = who;
      log.append(from);
      last = who;
    }
    log.append(chunk.text);
    held += chunk.text.length;
    while (held > MOST_CHARACTERS) {
      if (log.firstChild.nodeType === Node.TEXT_NODE) held -= log.firstChild.length;
      log.firstChild.remove();
    }
    if (follow.checked) log.scrollTop = log.scrollHeight;
  }

  rank.addEventListener("change", open);
  follow.addEventListener("change", () => follow.checked && (log.scrollTop = log.scrollHeight));
  log.addEventListener("wheel", () => {
    follow.checked = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  });
  addEventListener("pagehide", () => source?.close());
  open();
}
