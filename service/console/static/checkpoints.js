// The list of checkpoints is read from storage. It is loaded when it becomes visible, and periodically while it is.
const AGAIN_MS = 20_000;

export function listCheckpoints(placed) {
  const box = document.querySelector("#checkpoints[data-from]");
  if (!box) return;
  let timer = 0;
  let shown = "";

  async function load() {
    clearTimeout(timer);
    try {
      const answer = await fetch(box.dataset.from);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const list = page.getElementById("checkpoints");
      if (answer.ok && list) place(list.innerHTML);
      else say(page.querySelector("main p")?.textContent ?? "The service does not answer.");
    } catch {
      say("The service does not answer.");
    }
    timer = setTimeout(load, AGAIN_MS);
  }

  function place(html) {
    if (html === shown) return;
    shown = html;
    box.innerHTML = html; // HTML of the service, which escaped it
    placed(box);
  }

  function say(why) {
    shown = "";
    const text = document.createElement("p");
    text.className = "caution";
    text.setAttribute("role", "status");
    text.textContent = `The list of checkpoints cannot be loaded; trying again. ${why}`;
    box.replaceChildren(text);
  }

  new IntersectionObserver(([seen]) => {
    if (seen.isIntersecting) load();
    else clearTimeout(timer);
  }).observe(box);
  addEventListener("pagehide", () => clearTimeout(timer));
}
