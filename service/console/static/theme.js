// Apply the chosen theme before the first paint, so that nothing flashes.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen) root.dataset.theme = chosen;
  } catch {
    // Without storage, the theme of the system applies.
  }
})();
