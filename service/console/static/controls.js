// Confirmations, the theme, file upload, and the name of the job under the pointer.

export function themeSwitch(redraw) {
  const button = document.getElementById("theme");
  if (!button) return;
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const name = () => (button.textContent = isDark() ? "Light" : "Dark");
  button.hidden = false;
  button.title = "Switch between light and dark";
  name();
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      // The theme then applies to this page only.
    }
    name();
    redraw();
  });
  dark.addEventListener("change", () => {
    name();
    redraw();
  });
}

// Forms with a confirmation open a dialog. The request then states that the user confirmed.
export function confirmForms() {
  const dialog = document.getElementById("confirm");
  document.addEventListener("submit", (event) => {
    const form = event.target;
    const question = form.dataset.confirm;
    if (!question || form.dataset.sure) return;
    event.preventDefault();
    const chosen = event.submitter;
    const action = form.getAttribute("action");
    const values = new FormData(form, chosen);
    document.getElementById("confirm-question").textContent = asked(question, values);
    document.getElementById("confirm-yes").textContent = `Yes, ${chosen.textContent.trim().toLowerCase()}`;
    document.getElementById("confirm-yes").classList.toggle("danger", chosen.classList.contains("danger"));
    dialog.returnValue = "no";
    dialog.addEventListener("close", () => dialog.returnValue === "yes" && send(action, values), { once: true });
    dialog.showModal();
  });
}

function asked(question, values) {
  for (const name of ["policy", "priority"]) {
    if (values.has(name)) return `${question} The ${name} is to be ${values.get(name)}.`;
  }
  if (!values.has("slots")) return question;
  if (values.get("who") === "scheduler") return `${question} The scheduler chooses it again.`;
  return `${question} It is kept at ${values.get("slots")} slots until you change it again.`;
}

// Send a separate form, since the form on the page may have been replaced in the meantime.
function send(action, values) {
  const form = document.createElement("form");
  form.method = "post";
  form.action = action;
  form.dataset.sure = "yes";
  values.set("sure", "yes");
  for (const [name, value] of values) {
    const input = document.createElement("input");
    Object.assign(input, { type: "hidden", name, value });
    form.append(input);
  }
  document.body.append(form);
  form.submit();
}

export function openFile() {
  const file = document.getElementById("file");
  if (!file) return;
  file.parentElement.hidden = false;
  file.addEventListener("change", async () => {
    if (file.files[0]) document.getElementById("job").value = await file.files[0].text();
  });
}

export function whatIf() {
  const change = document.getElementById("change");
  if (!change) return;
  const show = () => {
    for (const part of document.querySelectorAll("[data-for]")) {
      part.hidden = !part.dataset.for.split(" ").includes(change.value);
    }
  };
  change.addEventListener("change", show);
  show();
}

// The name of the job that holds the slot under the pointer.
export function tips() {
  const tiles = document.getElementById("tiles");
  if (!tiles) return;
  const tip = tipElement();
  tiles.addEventListener("pointermove", (event) => {
    const cells = event.target.closest(".cells");
    if (!cells || event.target === cells) {
      tip.hidden = true;
      return;
    }
    const slot = [...cells.children].indexOf(event.target);
    tip.textContent = `slot ${slot}: ${cells.dataset.holders.split("|")[slot]}`;
    place(tip, event);
  });
  tiles.addEventListener("pointerleave", () => (tip.hidden = true));
}

export function tipElement() {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);
  return tip;
}

// Position beside the pointer and inside the window.
export function place(tip, event) {
  tip.hidden = false;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
}
