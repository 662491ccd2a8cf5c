// Before the first paint, so that nothing flashes: the theme that was chosen, if one was.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen) root.dataset.theme = chosen;
  } catch {
    // Without storage the system's theme holds.
  }
})();
